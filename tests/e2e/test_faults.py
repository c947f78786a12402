"""A killed stage resumes where it stopped, and bad input ends in one line."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import stage
from tasks.evaluation.selection import BASELINES
from tasks.files import seal
from tests.e2e.conftest import GRID, ROOT, copy_of, environment, read_params, run_in, tiny, write_params


def kill_when(clone: Path, ready: Callable[[], bool], *command: str) -> None:
    """Start a command and kill it by SIGKILL as soon as `ready` returns true."""
    with subprocess.Popen(
        command, cwd=clone, env=environment(clone), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 1200
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=300)


def test_a_killed_sweep_resumes_at_the_next_point(finished: tuple[Path, str], tmp_path: Path) -> None:
    clone = copy_of(finished[0], tmp_path)
    rows = clone / "results/translation/sweep/unaligned/rows.jsonl"
    params = read_params(clone)
    grid = params["tasks"]["translation"]["sweep"]["grid"] = GRID[:2]
    params["tasks"]["translation"]["seeds"] = [1]  # of the second seed nothing is compared
    write_params(clone, params)
    # What the sweep of the larger grid found for these methods.
    methods = {*BASELINES, *(entry["method"] for entry in grid)}
    whole = [row for row in rows.read_text().splitlines() if _in_grid(json.loads(row), methods)]
    rows.unlink()
    command = [sys.executable, "-m", "tasks.sweep", "--task", "translation"]
    kill_when(clone, lambda: rows.is_file() and len(rows.read_text().splitlines()) >= 3, *command)
    kept = rows.read_text().splitlines()
    assert 3 <= len(kept) < len(whole)
    with rows.open("a") as file:
        file.write('{"task": "translation", "split": "valid')
    result = run_in(clone, *command)
    assert result.returncode == 0, result.stderr[-3000:]
    after = rows.read_text().splitlines()
    resumed = {key_of(row): row for row in map(json.loads, after)}
    for row in map(json.loads, kept):
        found = resumed[key_of(row)]
        assert found.get("rounds", [])[: len(row.get("rounds", []))] == row.get("rounds", []), "a finished round was lost"

    def keys(lines: list[str]) -> list[tuple[str, str, str]]:
        return sorted(map(key_of, map(json.loads, lines)))

    assert keys(after) == sorted(set(keys(after)))
    assert [key for key in keys(after) if key[0] == "validation"] == [key for key in keys(whole) if key[0] == "validation"]


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["split"], row["method"], json.dumps(row["settings"])


def _in_grid(row: dict[str, Any], methods: set[str]) -> bool:
    return row["method"] in methods and row["settings"].get("drafter", "small") == "small"


@pytest.mark.slow
def test_a_killed_training_resumes_from_its_checkpoint(finished: tuple[Path, str], tmp_path: Path) -> None:
    clone = copy_of(finished[0], tmp_path)
    model = clone / "models/translation/small/model.safetensors"
    uninterrupted = model.read_bytes()
    shutil.rmtree(model.parent)
    command = [sys.executable, "-m", "tasks.finetune", "--task", "translation", "--model", "small"]
    kill_when(clone, lambda: bool(list((clone / ".cache/resume").rglob("SHA256SUMS"))), *command)
    assert not model.exists()
    result = run_in(clone, *command)
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(r"150 steps, resumed at step (50|100), in \d+ s", result.stderr), result.stderr
    assert model.read_bytes() == uninterrupted


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a stage in a folder, in this process, and returns the one line of its refusal."""

    def run(folder: Path, module: str, *arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))  # no lock of this machine
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises(SystemExit) as ended, stage():
            import_module(module).main()
        lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        assert ended.value.code == 2
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return run


@pytest.fixture
def with_files(tmp_path: Path) -> Path:
    """A folder with parameters whose task reads three pairs of files."""
    (tmp_path / "text").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "text" / f"{split}.jsonl").write_text('{"de": "Hallo Welt", "en": "hello world"}\n' * 3)
        (tmp_path / "text" / f"{split}.de").write_text("Hallo\nWelt\n")
        (tmp_path / "text" / f"{split}.en").write_text("hello\nworld\n")
    params = tiny(read_params(ROOT))
    params["active"] = {"translation": "text"}
    use_files(params, "parallel", {split: [f"{split}.de", f"{split}.en"] for split in ("train", "validation", "test")})
    write_params(tmp_path, params)
    return tmp_path


def use_files(params: dict[str, dict[str, dict[str, object]]], form: str, files: dict[str, list[str]]) -> None:
    corpus = {"source": "files", "files": {"format": form, "files": files}}
    if form == "jsonl":
        corpus["files"] |= {"source_field": "de", "reference_fields": ["en"]}  # type: ignore[operator]  # a plain YAML tree
    params["tasks"]["translation"]["corpus"] = corpus


Refused = Callable[..., str]


def test_bad_input_ends_the_command_with_one_line_and_status_2(with_files: Path) -> None:
    command = [sys.executable, "-m", "tasks.prepare", "--task", "nothing"]
    variables = environment(with_files) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=with_files, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: params.yaml has no task 'nothing'; it has translation\n"


def test_a_broken_line_is_named(with_files: Path, refused: Refused) -> None:
    params = read_params(with_files)
    use_files(params, "jsonl", {split: [f"{split}.jsonl"] for split in ("train", "validation", "test")})
    write_params(with_files, params)
    with (with_files / "text/train.jsonl").open("a") as file:
        file.write('{"de": "kaputt", "en": \n')
    assert "train.jsonl, line 4" in refused(with_files, "tasks.prepare", "--task", "translation")


def test_an_unequal_pair_of_files_is_named(with_files: Path, refused: Refused) -> None:
    with (with_files / "text/validation.en").open("a") as file:
        file.write("one more\n")
    line = refused(with_files, "tasks.prepare", "--task", "translation")
    assert "validation.de has 2 lines" in line
    assert "validation.en has 3" in line


def test_an_unknown_parameter_is_named(with_files: Path, refused: Refused) -> None:
    params = read_params(with_files)
    params["tasks"]["translation"]["align"]["learning_rat"] = 0.1
    write_params(with_files, params)
    assert "tasks.translation.align.learning_rat" in refused(with_files, "tasks.align", "--task", "translation")


def test_a_pair_with_different_vocabularies_is_refused(finished: tuple[Path, str], tmp_path: Path, refused: Refused) -> None:
    from tasks.models.settings import TokenizerSettings
    from tasks.models.tokenizers import train_tokenizer

    clone = copy_of(finished[0], tmp_path)
    text = [json.loads(line)["source"] for line in (clone / "data/translation/corpus/train.jsonl").read_text().splitlines()]
    train_tokenizer(text, TokenizerSettings(vocabulary=390)).save_pretrained(clone / "models/translation/unaligned/1")
    seal(clone / "models/translation/unaligned/1")
    line = refused(clone, "tasks.sweep", "--task", "translation")
    assert "models/translation/unaligned/1 has 390 tokens but models/translation/large has 400" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks.finetune", "--task", "nothing", "--model", "large"], "no task 'nothing'; it has translation"),
        (["tasks.calibrate", "--task", "translation"], "models/translation/large"),
        (["tasks.report", "--task", "translation"], "tasks.sweep"),
        (["tasks.prepare", "--task", "translation", "--params", "none.yaml"], "none.yaml"),
    ],
)
def test_what_is_missing_is_named(with_files: Path, refused: Refused, arguments: list[str], words: str) -> None:
    assert words in refused(with_files, *arguments)
