"""Checkpoints are whole or not there, wherever writing them is cut off."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.training import checkpoints
from tasks.training.checkpoints import latest, load_latest, save


class Engine:
    """Writes two files a checkpoint, as DeepSpeed does, and reads them back."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def save_checkpoint(self, folder: str, tag: str, client_state: dict[str, Any], save_latest: bool) -> None:
        (Path(folder) / tag).mkdir(parents=True, exist_ok=True)
        for name in ("model.pt", "optimizer.pt"):
            self._before()
            (Path(folder) / tag / name).write_text(json.dumps(client_state))

    def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        return tag, json.loads((Path(folder) / tag / "optimizer.pt").read_text())


class Killed(BaseException):
    """Nothing catches it, as nothing runs after kill -9."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Callable[[], None]]]:
    """Ends a process before its nth change of the disk; gives what counts one."""
    with monkeypatch.context() as patched:

        def at(last: int) -> Callable[[], None]:
            done = iter(range(last + 1))

            def change() -> None:
                if next(done, last) == last:
                    raise Killed

            for name in ("unlink", "rename", "rmdir", "mkdir"):
                real = getattr(os, name)
                real = getattr(real, "real", real)

                def changed(*arguments: Any, real: Any = real, **options: Any) -> Any:
                    change()
                    return real(*arguments, **options)

                changed.real = real  # type: ignore[attr-defined]
                patched.setattr(os, name, changed)
            return change

        yield at


def test_a_run_killed_anywhere_resumes_from_a_complete_checkpoint(kill_at: Any, tmp_path: Path) -> None:
    """A third checkpoint, which also rotates the first away, cut off before each of its changes in turn."""
    finished = False
    for last in range(100):
        folder = tmp_path / str(last)
        for step in (4, 8):
            save(Engine(kill_at(10_000)), folder, step, {})
        try:
            save(Engine(kill_at(last)), folder, 12, {})
            finished = True
        except Killed:
            pass
        assert latest(folder) in ({"step00000012"} if finished else {"step00000008", "step00000012"})
        step, _ = load_latest(Engine(), folder)
        assert f"step{step:08d}" == latest(folder)
        # Taken up, it writes the same checkpoint again, over whatever lies there.
        save(Engine(kill_at(10_000)), folder, 12, {"again": True})
        assert load_latest(Engine(), folder) == (12, {"again": True, "step": 12})
        assert sorted(path.name for path in folder.iterdir()) == ["step00000008", "step00000012"]
        if finished:
            break
    assert finished
    assert last > 5


def test_only_a_complete_and_undamaged_checkpoint_is_loaded(tmp_path: Path) -> None:
    assert load_latest(Engine(), tmp_path) == (0, {})
    for step in (3, 5):
        save(Engine(), tmp_path, step, {"extra": step})
    (tmp_path / "step00000009").mkdir()
    (tmp_path / "step00000009" / "model.pt").write_text("partial")
    assert load_latest(Engine(), tmp_path) == (5, {"extra": 5, "step": 5})
    (tmp_path / "step00000005" / "model.pt").write_text("changed")
    assert load_latest(Engine(), tmp_path) == (3, {"extra": 3, "step": 3})


def test_a_new_checkpoint_is_kept_rather_than_damaged_later_ones(tmp_path: Path) -> None:
    for step in (8, 12):
        save(Engine(), tmp_path, step, {})
        (tmp_path / f"step{step:08d}" / "model.pt").write_text("damaged")
    assert load_latest(Engine(), tmp_path) == (0, {})
    save(Engine(), tmp_path, 4, {})
    assert load_latest(Engine(), tmp_path) == (4, {"step": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["step00000004"]


@pytest.mark.parametrize("seal", ["", "{}", "[]", '{"model.pt": "'])
def test_an_incomplete_seal_does_not_count(seal: str, tmp_path: Path) -> None:
    save(Engine(), tmp_path, 3, {})
    (tmp_path / "step00000003" / "complete.json").write_text(seal)
    assert latest(tmp_path) is None


def test_nothing_is_unpickled_before_its_checksum_holds(tmp_path: Path) -> None:
    class Refusing(Engine):
        def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
            raise AssertionError

    save(Engine(), tmp_path, 3, {})
    (tmp_path / "step00000003" / "optimizer.pt").write_text("other")
    assert load_latest(Refusing(), tmp_path) == (0, {})


def test_a_checkpoint_without_a_part_for_this_process_is_named(tmp_path: Path) -> None:
    class Missing(Engine):
        def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
            return None, {}

    save(Engine(), tmp_path, 3, {})
    with pytest.raises(InputError, match="step00000003 has no part for rank 0; remove it and run again"):
        load_latest(Missing(), tmp_path)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("earlier", "fix"), [((3, 5), "goes on from step 5"), ((), "starts anew")])
def test_no_space_left_leaves_older_checkpoints_and_no_partial_one(earlier: tuple[int, ...], fix: str, tmp_path: Path) -> None:
    for step in earlier:
        save(Engine(), tmp_path, step, {})
    with pytest.raises(InputError, match=rf"no space left for the checkpoint of step 7 in {tmp_path}.* MB .*{fix}"):
        save(Engine(full), tmp_path, 7, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step{step:08d}" for step in earlier]


def test_no_space_left_for_the_seal_is_no_checkpoint_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoints, "checksum", lambda _: full())
    with pytest.raises(InputError, match="no space left"):
        save(Engine(), tmp_path, 7, {})
    assert not list(tmp_path.iterdir())


def test_another_failure_is_unchanged_and_leaves_nothing_partial(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        save(Engine(broken), tmp_path, 7, {})
    assert not list(tmp_path.iterdir())
