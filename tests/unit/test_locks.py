"""Locks between processes: what waits, what runs concurrently, and how the lock of a dead process is released."""

import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tasks import locks
from tasks.errors import InputError
from tasks.locks import Share, timing_lock, working_lock
from tests.held_locks import holding


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def order_of(lock: str, held_by: str, folder: Path, seconds: float, device: str = "cpu") -> list[str]:
    """Take a lock while another process holds one and releases it after some seconds; return the order of both events."""
    events: list[str] = []
    with holding(f"{held_by}({device!r})", folder) as holder:

        def release() -> None:
            events.append("released")
            holder.stdin.close()

        timer = threading.Timer(seconds, release)
        timer.start()
        with locks.host_lock() if lock == "host_lock" else getattr(locks, lock)("cpu"):
            events.append("taken")
            if len(events) == 1:
                timer.cancel()
                release()
    return events


def test_nothing_runs_during_a_timing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert order_of("working_lock", "timing_lock", tmp_path, 0.5) == ["released", "taken"]
    assert re.search(r"waiting: process \d+ \(\S+ -c import sys, .*\) uses the cpu of this machine", capfd.readouterr().err)
    assert order_of("timing_lock", "working_lock", tmp_path, 0.5) == ["released", "taken"]
    assert order_of("timing_lock", "timing_lock", tmp_path, 0.5) == ["released", "taken"]


def test_untimed_work_runs_concurrently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert order_of("working_lock", "working_lock", tmp_path, 120) == ["taken", "released"]
    assert "waiting" not in capfd.readouterr().err


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_without_a_device_waits_for_every_timing(device: str, tmp_path: Path) -> None:
    assert order_of("host_lock", "timing_lock", tmp_path, 0.5, device) == ["released", "taken"]
    assert order_of("host_lock", "working_lock", tmp_path, 120, device) == ["taken", "released"]


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    with holding("timing_lock('cpu')", tmp_path) as holder:
        holder.kill()
    with timing_lock("cpu"):
        pass


def test_a_second_run_of_a_stage_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def second() -> None:
        with locks.folder_lock(tmp_path / "work"):
            done.append("second")

    with locks.folder_lock(tmp_path / "work"), locks.folder_lock(tmp_path / "other"):
        thread = threading.Thread(target=second)
        thread.start()
        printed, deadline = "", time.monotonic() + 120
        while f"waiting: process {os.getpid()} (" not in printed and not done:
            assert time.monotonic() < deadline, printed
            time.sleep(0.05)
            printed += capsys.readouterr().err
        done.append("first")
    thread.join(timeout=120)
    assert done == ["first", "second"] and f") works in {tmp_path / 'work'}" in printed


@pytest.mark.parametrize("name", ["prepare", "calibrate", "report"])
def test_a_stage_locks_its_work_before_it_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second process on the same work would remove what the first one writes."""

    class LockedError(Exception):
        pass

    def lock(folder: Path) -> None:
        raise LockedError(folder)

    stage = import_module(f"tasks.{name}")
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    params["tasks"]["translation"]["corpus"]["embedded"] |= {"train": 40, "validation": 5, "test": 5}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "folder_lock", lock)
    monkeypatch.setattr(sys, "argv", [name, "--task", "translation"])
    with pytest.raises(LockedError, match=rf"resume/translation/{name}$"):
        stage.main()
    assert list(tmp_path.iterdir()) == [tmp_path / "params.yaml"]


@pytest.mark.parametrize("other", ["a file", "a link", "open to others"])
def test_a_folder_that_others_write_to_gives_way(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it first could stall every stage."""

    def taken(folder: Path) -> None:
        if other == "a file":
            folder.touch()
        elif other == "a link":
            folder.symlink_to(tmp_path)
        else:
            folder.mkdir()
            folder.chmod(0o777)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / f"draftline-{os.getuid()}", tmp_path / "cache/draftline" / f"locks-{platform.node()}"
    taken(first)
    with timing_lock("cpu"):
        assert second.stat().st_mode & 0o777 == 0o700 and [*second.glob("cpu.lock*")]
    shutil.rmtree(second)
    taken(second)
    message = rf"neither {first} nor {second} is a folder that this user alone writes to; have one removed, or set TMPDIR"
    with pytest.raises(InputError, match=message):
        timing_lock("cpu")


def test_a_folder_of_the_user_s_own_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / f"draftline-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with timing_lock("cpu"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_each_device_has_its_own_lock() -> None:
    with timing_lock("cuda:0"), timing_lock("cpu"), working_lock("cuda:1"):
        pass


@pytest.mark.parametrize(
    ("first", "second", "beside"),
    [((1, 50), (1, 50), True), ((1, 50), (1, 51), False), ((1, 10), (2, 10), False), ((3, 10), (1, 10), False)],
    ids=["both fit", "too much memory", "too many threads", "the first is larger than the machine"],
)
def test_shares_that_fit_are_held_side_by_side(
    first: tuple[int, int], second: tuple[int, int], beside: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with holding(f"share_lock('cpu', Share{first}, Share(2, 100))", tmp_path) as holder:
        timer = threading.Timer(120 if beside else 0.5, holder.kill)
        timer.start()
        with locks.share_lock("cpu", Share(*second), Share(2, 100)):
            assert (holder.poll() is None) == beside
        timer.cancel()
        holder.kill()
    assert ("waiting" in capfd.readouterr().err) != beside
    assert not list(tmp_path.rglob("*.share")) or beside
