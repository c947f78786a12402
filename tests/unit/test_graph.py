"""dvc.yaml against the code: a stage depends on every module that it imports and that can change its output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.paths import TaskPaths
from tasks.tracking.model_files import CODE

ROOT = Path(__file__).parents[2]
EMBEDDED = ("tasks.corpora.summarization", "tasks.corpora.translation")
"""Packages that `prepare` imports by name: `${item}` of dvc.yaml covers the package itself."""


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
WITHOUT_EFFECT = {
    "tasks.config",
    "tasks.cgroups",
    "tasks.errors",
    "tasks.files",
    "tasks.fingerprint",
    "tasks.hub",
    "tasks.lineage",
    "tasks.locks",
    "tasks.paths",
    "tasks.schema",
    "tasks.setting_errors",
    "tasks.settings",
    "tasks.starts",
    "tasks.supervisor",
    "tasks.tracking",
}
"""Modules and packages that cannot change a result; dvc.yaml says why."""


def module_file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((one for one in candidates if one.is_file()), None)


@cache
def imported(file: Path) -> tuple[str, ...]:
    return tuple(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    """What a file imports, at its start or in a function; imports for the type checker alone never run."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        yield from _names(node)
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            waiting.extend(ast.iter_child_nodes(node))


def _names(node: ast.AST) -> Iterator[str]:
    """What an import statement names; nothing for any other node."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def without_effect(module: str) -> bool:
    return not WITHOUT_EFFECT.isdisjoint(with_packages(module))


def code_of(module: str) -> set[str]:
    """Files that importing a module runs, without those of the embedded corpora and those that cannot change a result."""
    found: set[Path] = set()
    waiting = [module, *(EMBEDDED if module == "tasks.prepare" else ())]
    while waiting:
        for name in with_packages(waiting.pop()):
            file = module_file(name)
            if name.split(".")[0] != "tasks" or without_effect(name) or file is None or file in found:
                continue
            found.add(file)
            waiting.extend(imported(file))
    code = {str(file.relative_to(ROOT)) for file in found if does_something(file)} - {"tasks/__init__.py"}
    return {file for file in code if not any(covers(package.replace(".", "/"), file) for package in EMBEDDED)}


def test_a_registered_model_carries_the_code_that_decodes() -> None:
    needed, waiting = set[str](), ["tasks.decoding.inference"]
    while waiting:
        for name in with_packages(waiting.pop()):
            file = module_file(name)
            if name.split(".")[0] == "tasks" and file is not None and str(file.relative_to(ROOT)) not in needed:
                needed.add(str(file.relative_to(ROOT)))
                waiting.extend(imported(file))
    assert len(needed) > 80
    assert [file for file in sorted(needed) if not any(covers(f"tasks/{carried}", file) for carried in CODE)] == []


def does_something(file: Path) -> bool:
    """False for the `__init__.py` of a package that holds a docstring alone."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return not (file.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in body))


def covers(dependency: str, file: str) -> bool:
    return file == dependency or file.startswith(f"{dependency}/")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_the_code_that_it_runs(name: str) -> None:
    module = STAGES[name]["cmd"].partition(" -m ")[2].split()[0]
    declared = [path for path in STAGES[name]["deps"] if path.startswith("tasks/")]
    code = code_of(module)
    assert [file for file in sorted(code) if not any(covers(path, file) for path in declared)] == []
    assert [path for path in declared if not any(covers(path, file) for file in code)] == []


def test_the_report_starts_without_torch() -> None:
    """Importing it would take most of the stage's time. Imports inside functions do not count: they run when needed."""
    heavy = {
        file
        for file in code_of("tasks.report")
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if {name.split(".")[0] for name in _names(node)} & {"torch", "transformers"}
    }
    assert heavy == set()


@pytest.mark.parametrize("name", STAGES)
def test_an_edit_that_cannot_change_a_stage_does_not_run_it_again(name: str) -> None:
    elsewhere = list((ROOT / "tasks" / "bench").rglob("*.py"))
    if name != "report":
        elsewhere += (ROOT / "tasks" / "evaluation" / "report").rglob("*.py")
    for module in WITHOUT_EFFECT:
        package = ROOT.joinpath(*module.split("."))
        elsewhere += package.rglob("*.py") if package.is_dir() else [package.with_suffix(".py")]
    files = [str(file.relative_to(ROOT)) for file in elsewhere]
    assert len(files) > 20
    assert [file for file in files for path in STAGES[name]["deps"] if covers(path, file)] == []


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
        "sweep_unaligned": [paths.rows("unaligned").parent],
        "sweep_aligned": [paths.rows("aligned").parent],
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
