"""Bad input ends a command with one line and status 2."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tasks.errors import stage
from tasks.files import seal
from tests.e2e.conftest import ROOT, copy_of, environment, read_params, tiny, write_params


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
