"""A killed stage resumes where it stopped, and bad input ends in one line."""

import json
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
from tests.e2e.conftest import GRID, ROOT, copy_of, environment, key_of, read_params, run_in, tiny, write_params


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


def _in_grid(row: dict[str, Any], methods: set[str]) -> bool:
    return row["method"] in methods and row["settings"].get("drafter", "small") == "small"


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


Refused = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tiny parameters, and nothing that they name."""
    write_params(tmp_path, tiny(read_params(ROOT)))
    return tmp_path


def test_bad_input_ends_the_command_with_one_line_and_status_2(folder: Path) -> None:
    command = [sys.executable, "-m", "tasks.prepare", "--task", "nothing"]
    variables = environment(folder) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: params.yaml has no task 'nothing'; it has translation\n"


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
        (["tasks.calibrate", "--task", "translation"], "models/translation/large"),
        (["tasks.prepare", "--task", "translation", "--params", "none.yaml"], "none.yaml"),
    ],
)
def test_what_is_missing_is_named(folder: Path, refused: Refused, arguments: list[str], words: str) -> None:
    assert words in refused(folder, *arguments)
