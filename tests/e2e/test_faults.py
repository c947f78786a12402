"""Bad input ends a command with one line and status 2."""

import json
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tasks.files import seal
from tests.commands import runner
from tests.e2e.conftest import ROOT, copy_of, read_params, run_in, tiny, write_params


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a stage in a folder, in this process, and returns the one line of its refusal."""

    def run(folder: Path, module: str, *arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))  # no lock of this machine
        ended = runner(import_module(module).main, monkeypatch, capsys)(*arguments)
        lines = [line for line in ended.said.splitlines() if line.strip()]
        assert ended.status == 2
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
    done = run_in(folder, sys.executable, "-m", "tasks.prepare", "--task", "nothing", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: params.yaml has no task 'nothing'; it has translation\n"


def test_a_pair_with_different_vocabularies_is_refused(finished: Path, tmp_path: Path, refused: Refused) -> None:
    from tasks.models.settings import TokenizerSettings
    from tasks.models.tokenizers import train_tokenizer

    clone = copy_of(finished, tmp_path)
    text = [json.loads(line)["source"] for line in (clone / "data/translation/corpus/train.jsonl").read_text().splitlines()]
    train_tokenizer(text, TokenizerSettings(vocabulary=390)).save_pretrained(clone / "models/translation/unaligned/1")
    seal(clone / "models/translation/unaligned/1")
    line = refused(clone, "tasks.sweep", "--task", "translation")
    assert "models/translation/unaligned/1 has 390 tokens but models/translation/large has 1000" in line


def test_a_model_that_is_missing_is_named(folder: Path, refused: Refused) -> None:
    assert "models/translation/large" in refused(folder, "tasks.calibrate", "--task", "translation")
