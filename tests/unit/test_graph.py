"""dvc.yaml against the code: a stage depends on every module that it imports and that can change its output."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.fingerprint import WITHOUT_EFFECT, code_of
from tasks.paths import TaskPaths
from tasks.tracking.registry import copy_code
from tasks.training.settings import DEEPSPEED
from tests.optional import NOT_FOR_DECODING

ROOT = Path(__file__).parents[2]


def stages() -> dict[str, Any]:
    """The stages of dvc.yaml with their own variables filled in, except `${key}` and `${item}`."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: filled(stage["do"]) for name, stage in stages.items()}


def filled(stage: dict[str, Any]) -> dict[str, Any]:
    text = yaml.safe_dump({key: value for key, value in stage.items() if key != "vars"})
    for variables in stage.get("vars", []):
        for name, value in variables.items():
            text = text.replace(f"${{{name}}}", value)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


STAGES = stages()


def code(module: str, without: frozenset[str] = WITHOUT_EFFECT) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in code_of(module, without)]


def test_a_registered_model_carries_the_code_that_decodes(tmp_path: Path) -> None:
    copy = copy_code(tmp_path / "tasks")
    needed = code("tasks.decoding.inference", frozenset())
    assert len(needed) > 20
    assert [file for file in needed if not (tmp_path / file).is_file()] == []
    code_without = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:]))  # their import fails\n"
    code_without += "import tasks.decoding.inference as one; print(one.__file__)"
    ran = [sys.executable, "-c", code_without, *NOT_FOR_DECODING.split()]
    found = subprocess.run(ran, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(copy))


def covers(dependency: str, file: str) -> bool:
    return file == dependency or file.startswith(f"{dependency}/")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_the_code_that_it_runs(name: str) -> None:
    module = STAGES[name]["cmd"].partition(" -m ")[2].split()[0]
    declared = [path for path in STAGES[name]["deps"] if path.startswith("tasks/")]
    needed = code(module)
    assert [file for file in needed if not any(covers(path, file) for path in declared)] == []
    assert [path for path in declared if not any(covers(path, file) for file in needed)] == []


def test_the_report_starts_without_torch() -> None:
    """Importing it would take most of the stage's time."""
    code = "import sys, tasks.report; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("name", [name for name in STAGES if not name.startswith(("sweep", "report"))])
def test_an_edit_of_the_report_trains_nothing(name: str) -> None:
    elsewhere = [*(ROOT / "tasks" / "bench").rglob("*.py"), *(ROOT / "tasks" / "evaluation" / "report").rglob("*.py")]
    files = [str(file.relative_to(ROOT)) for file in elsewhere]
    assert len(files) > 5
    assert [file for file in files for path in STAGES[name]["deps"] if covers(path, file)] == []


def test_an_edit_of_the_report_keeps_the_rows_of_a_sweep() -> None:
    assert [file for file in code("tasks.sweep") if covers("tasks/evaluation/report", file)] == []


def test_what_trains_depends_on_the_user_s_configurations_of_deepspeed() -> None:
    depending = [name for name, stage in STAGES.items() if str(DEEPSPEED) in stage["deps"]]
    assert depending == ["finetune_large", "finetune_small", "control", "align"]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", str(DEEPSPEED)]
    assert subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout, "dvc needs the folder to be there"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_writes_where_the_code_says(name: str) -> None:
    paths = TaskPaths("${key}")
    known = {
        "prepare": [paths.corpus, paths.tests, paths.corpus_report, paths.tokenizer],
        "finetune_large": [paths.model("large")],
        "finetune_small": [paths.model("small")],
        "calibrate": [paths.calibration],
        "control": [paths.model("unaligned")],
        "align": [paths.model("aligned")],
        "sweep": [paths.rows("unaligned").parent.parent],
    }
    outs = [next(iter(out)) if isinstance(out, dict) else out for out in STAGES[name]["outs"]]
    if name in known:
        assert sorted(outs) == sorted(str(path) for path in known[name])
    else:
        assert all(out.startswith(str(paths.results)) for out in outs)


def test_a_changed_grid_does_not_retrain() -> None:
    for name in ("prepare", "finetune_large", "finetune_small", "calibrate", "control", "align"):
        assert not any("sweep" in param or param == "tasks.${key}" for param in STAGES[name]["params"])


def test_every_active_task_has_its_models_as_artifacts() -> None:
    active = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["active"]
    artifacts = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["artifacts"]
    outputs = {next(iter(out)) if isinstance(out, dict) else out for stage in STAGES.values() for out in stage["outs"]}
    for task in active:
        named = {name.removeprefix(f"{task}-"): entry for name, entry in artifacts.items() if name.startswith(f"{task}-")}
        assert {"pair", "large", "aligned", "unaligned"} == named.keys()
        assert all(entry["type"] == "model" and entry["desc"] for entry in named.values())
        assert {entry["path"] for entry in named.values()} <= {out.replace("${key}", task) for out in outputs}
