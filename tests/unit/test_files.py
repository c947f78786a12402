"""Files and folders appear whole or not at all."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tasks import files
from tasks.files import SUMS, atomic_folder, atomic_write, damage, folder_checksum, is_sealed, link_folder, unsealed


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("content", "written"), [("ä\r\n", "ä\r\n".encode()), (b"\xff", b"\xff")])
def test_a_file_has_its_content_and_no_part_is_left(tmp_path: Path, content: str | bytes, written: bytes, sync: bool) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("older")
    assert atomic_write(file, content, sync=sync) == file
    assert file.read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_is_replaced_only_when_the_new_one_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "figure.svg"
    file.write_text("older")
    with files.atomic_path(file) as partial:
        assert partial.suffix == ".svg"
        partial.write_text("newer")
        assert file.read_text() == "older"
    assert file.read_text() == "newer"


def test_a_failure_keeps_the_older_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("older")
    with pytest.raises(KeyError), files.atomic_path(file) as partial:
        partial.write_text("half")
        raise KeyError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rows.jsonl", "older")]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old.txt").write_text("older")
    left = files.partial_path(folder)
    left.mkdir()
    (left / "cut.txt").write_text("a killed run left this")
    with atomic_folder(folder) as partial:
        (partial / "new.txt").write_text("newer")
        assert [path.name for path in folder.iterdir()] == ["old.txt"]
    assert sorted(path.name for path in folder.iterdir()) == [SUMS, "new.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_one_of_two_folders_is_there_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at each step of putting the new one in place of the old, a whole one lies there under some name."""
    rename, moved, folder = Path.rename, list[set[str]](), tmp_path / "model"

    def watched(path: Path, target: Path) -> Path:
        done = rename(path, target)
        moved.append({one.parent.name for one in tmp_path.glob("*/new.txt")})
        return done

    monkeypatch.setattr(Path, "rename", watched)
    for _ in range(2):
        with atomic_folder(folder) as partial:
            (partial / "new.txt").touch()
    assert moved[1:] == [{".old.model", ".partial.model"}, {".old.model", "model"}]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_keeps_the_older_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old.txt").write_text("older")
    with pytest.raises(KeyError), atomic_folder(folder):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old.txt"]


def test_files_folders_and_missing_paths_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("folder", "file", "missing"):
        files.remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_checksum_is_of_the_bytes(tmp_path: Path) -> None:
    file = atomic_write(tmp_path / "abc", "abc")
    assert files.checksum(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one/inner").mkdir(parents=True)
    (tmp_path / "one/a.txt").write_text("a")
    (tmp_path / "one/inner/b.txt").write_text("b")
    return tmp_path / "one"


def test_a_checksum_depends_on_every_name_and_every_byte(folder: Path) -> None:
    sums = [folder_checksum(folder)]
    (folder / "a.txt").write_text("A")
    sums.append(folder_checksum(folder))
    (folder / "a.txt").rename(folder / "c.txt")
    sums.append(folder_checksum(folder))
    (folder / "inner").rename(folder / "other")
    sums.append(folder_checksum(folder))
    assert len(set(sums)) == 4
    shutil.copytree(folder, folder.parent / "copy")
    assert folder_checksum(folder.parent / "copy") == sums[-1]


@pytest.fixture
def sealed_folder(folder: Path) -> Path:
    with atomic_folder(folder.parent / "whole") as partial:
        shutil.copytree(folder, partial, dirs_exist_ok=True)
    return folder.parent / "whole"


def test_a_folder_is_sealed_when_it_is_whole(sealed_folder: Path, folder: Path) -> None:
    assert is_sealed(sealed_folder) and damage(sealed_folder) == damage(sealed_folder / "a.txt") == ""
    assert damage(folder) == damage(folder / "a.txt") == "" and not is_sealed(folder)  # a user's own
    (sealed_folder / "notes").touch()
    assert is_sealed(sealed_folder)
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=sealed_folder, check=True)


OTHER_SUMS = "SHA256SUMS is not as it was written"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "inner/b.txt").write_text("c"), "inner/b.txt is not as it was written"),
        (lambda folder: (folder / "inner/b.txt").write_text(""), "inner/b.txt is not as it was written"),
        (lambda folder: (folder / "inner/b.txt").unlink(), "inner/b.txt is missing"),
        (lambda folder: (folder / SUMS).write_text(""), OTHER_SUMS),
        (lambda folder: (folder / SUMS).write_text("# 0 files\n"), OTHER_SUMS),
        (lambda folder: (folder / SUMS).write_text((folder / SUMS).read_text().split("\n", 1)[1]), OTHER_SUMS),
        (lambda folder: (folder / SUMS).write_text((folder / SUMS).read_text().replace("b.txt", "c.txt")), OTHER_SUMS),
    ],
)
def test_what_was_changed_or_lost_is_named(change: Callable[[Path], object], said: str, sealed_folder: Path) -> None:
    change(sealed_folder)
    assert damage(sealed_folder) == said and not is_sealed(sealed_folder)
    assert damage(sealed_folder / "a.txt") == (said if SUMS in said else "")  # a file stands for itself


def test_a_list_of_an_earlier_release_is_read(sealed_folder: Path) -> None:
    *lines, _ = (sealed_folder / SUMS).read_text().splitlines()
    (sealed_folder / SUMS).write_text("\n".join([*lines, f"# {len(lines)} files", ""]))
    assert is_sealed(sealed_folder)
    (sealed_folder / "a.txt").write_text("b")
    assert damage(sealed_folder) == "a.txt is not as it was written"


def test_every_changed_byte_of_a_sealed_object_is_noticed() -> None:
    for body in ('{"speedup": 0.747, "text": "ö"}', '{\n  "version": 1\n}\n'):
        text = files.sealed(body)
        assert unsealed(text) == body and json.loads(text).items() >= json.loads(body).items()
        for position in range(len(text)):
            for other in ("7", "x", ""):
                changed = text[:position] + other + text[position + 1 :]
                if changed != text:
                    with contextlib.suppress(ValueError):
                        # In the name of the field: the object has a field more, and is otherwise what was written.
                        assert json.loads(unsealed(changed)).items() >= json.loads(body).items()
    assert unsealed('{"a": 1}') == '{"a": 1}'


def test_a_linked_folder_has_the_files_of_the_newest_one(folder: Path, tmp_path: Path) -> None:
    for content in ("a", "a", "new"):
        (folder / "a.txt").unlink()
        (folder / "a.txt").write_text(content)
        for _ in range(2):
            link_folder(folder, tmp_path / "linked")
            assert folder_checksum(tmp_path / "linked") == folder_checksum(folder)
            assert all((tmp_path / "linked" / name).samefile(folder / name) for name in ("a.txt", "inner/b.txt"))
    with pytest.raises(FileNotFoundError):
        link_folder(folder, tmp_path / "gone" / "linked")


def test_files_that_cannot_be_linked_are_copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    link_folder(folder, tmp_path / "new")
    assert folder_checksum(tmp_path / "new") == folder_checksum(folder)
    assert not (tmp_path / "new/a.txt").samefile(folder / "a.txt")


def test_an_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the call that fails does not know; without a name the error would be no line but a traceback."""

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    for write in (partial(atomic_write, tmp_path / "a", "x", sync=True), partial(files.append_line, tmp_path / "b", "x\n")):
        with pytest.raises(OSError, match="Read-only file system") as error:
            write()
        assert Path(error.value.filename).parent in (tmp_path, tmp_path.parent)
