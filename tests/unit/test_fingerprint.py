"""A name that changes with settings, data and code."""

from pathlib import Path

import pytest

from tasks import fingerprint as module
from tasks.errors import InputError
from tasks.files import seal
from tasks.fingerprint import discard_others, fingerprint
from tasks.training.settings import TrainingSettings


def test_it_changes_with_each_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TASKS", tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text("1")
    (tmp_path / "single.py").write_text("1")
    (tmp_path / "data.jsonl").write_text("1")

    def made(steps: int = 10) -> str:
        return fingerprint({"t": TrainingSettings(steps=steps)}, [tmp_path / "data.jsonl"], ["package", "single"])

    names = [made(), made(steps=11)]
    for changed in ("data.jsonl", "single.py", "package/one.py"):
        (tmp_path / changed).write_text("2")
        names.append(made())
    assert len(set(names)) == len(names)
    assert made() == names[-1]


def test_files_of_other_work_are_discarded(tmp_path: Path) -> None:
    discard_others(tmp_path / "not" / "there")
    for work in ("ours", "other"):
        (tmp_path / work / "step").mkdir(parents=True)
    for name in ("stray", ".lock"):
        (tmp_path / name).touch()
    discard_others(tmp_path / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "ours"]
    assert (tmp_path / "ours/step").is_dir()


def test_a_file_that_is_not_as_it_was_written_has_no_name(tmp_path: Path) -> None:
    """It would be taken for other work, and that begun anew with it."""
    file = tmp_path / "calibration.jsonl"
    file.write_text("1")
    seal(tmp_path)
    assert fingerprint({}, [file], []) == fingerprint({}, [file], [])
    file.write_text("2")
    with pytest.raises(InputError, match=r"calibration.jsonl is not as it was written; run the stage that makes it again"):
        fingerprint({}, [file], [])
