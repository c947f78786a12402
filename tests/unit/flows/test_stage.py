"""One stage under DVC, real or faked by a script: what counts as run, when it is retried, what a failure says."""

import os
import sys
import threading
from pathlib import Path

import pytest

from flows import stage
from flows.stage import StageError, StageRunner, repair
from tests.served import until
from tests.unit.flows.conftest import Repository

LOCKED = "ERROR: Unable to acquire lock. Most likely another DVC process is running"
BUSY = "ERROR: failed to reproduce 'align': 'models/a' is busy, it is being blocked by:"


COUNT = """
import os, sys
from pathlib import Path
file = Path("tries")
tries = len(file.read_text()) if file.exists() else 0
file.write_text("x" * (tries + 1))
"""


def fake_runner(folder: Path, script: str, timeout: float = 600, flow_run: str = "") -> StageRunner:
    """A runner whose dvc is `script`, in which `tries` counts the earlier calls."""
    return StageRunner(folder, timeout=timeout, flow_run=flow_run, dvc=[sys.executable, "-c", COUNT + script])


def tries(folder: Path) -> int:
    return len((folder / "tries").read_text())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_FIRST_PAUSE", 0.05)


def test_a_stage_runs_once_and_is_then_cached(repository: Repository) -> None:
    root = repository({"count": {"cmd": "echo counted && cat in > out", "deps": ["in"], "outs": ["out"]}})
    (root / "in").write_text("one\n", encoding="utf-8")
    real = StageRunner(root, timeout=600)
    lines: list[str] = []
    assert real.run("count", lines.append).state == "ran"
    assert "counted" in lines
    assert real.run("count", lines.append).state == "cached"
    (root / "out").unlink()
    assert real.run("count", lines.append).state == "cached"
    assert (root / "out").read_text() == "one\n"
    assert lines.count("counted") == 1


def test_what_a_killed_dvc_leaves_is_repaired(repository: Repository) -> None:
    root = repository({"count": {"cmd": "cat in > out", "deps": ["in"], "outs": ["out"]}})
    (root / "in").write_text("one\n", encoding="utf-8")
    real = StageRunner(root, timeout=600)
    note = root / ".dvc" / "tmp" / "rwlock"
    note.parent.mkdir(exist_ok=True)
    note.write_text('{"', encoding="utf-8")
    repair(root)
    real.run("count", print)
    # Half a lock file: DVC finds what ran in its cache of runs.
    half = (root / "dvc.lock").read_text(encoding="utf-8").rpartition("outs:")[0] + "out"
    (root / "dvc.lock").write_text(half, encoding="utf-8")
    with pytest.raises(StageError, match="stage 'count' failed"):
        real.run("count", print)
    repair(root)
    assert (root / "dvc.lock.damaged").read_text(encoding="utf-8") == half
    assert real.run("count", print).state == "cached"
    # An entry of the cache of runs whose file was never written.
    [entry] = (root / ".dvc/cache/runs").glob("*/*/*")
    entry.unlink()
    (root / "in").write_text("two\n", encoding="utf-8")
    repair(root)
    real.run("count", print)
    (root / "in").write_text("one\n", encoding="utf-8")
    repair(root)
    assert real.run("count", print).state == "ran"


def test_a_conflict_in_the_lock_file_is_left_to_the_user(repository: Repository) -> None:
    root = repository({})
    (root / "dvc.lock").write_text("<<<<<<< HEAD\n", encoding="utf-8")
    repair(root)
    assert (root / "dvc.lock").exists()


def test_only_the_named_stage_runs(repository: Repository) -> None:
    root = repository({"a": {"cmd": "touch a", "outs": ["a"]}, "b": {"cmd": "touch b", "deps": ["a"], "outs": ["b"]}})
    with pytest.raises(StageError, match="stage 'b' failed"):
        StageRunner(root, timeout=600).run("b", print)
    assert not (root / "a").exists()


@pytest.mark.parametrize("message", [LOCKED, BUSY])
def test_a_locked_repository_is_tried_again(tmp_path: Path, message: str) -> None:
    lines: list[str] = []
    script = f"if tries < 2: print({message!r}); sys.exit(255)"
    assert fake_runner(tmp_path, script).run("align", lines.append).name == "align"
    assert tries(tmp_path) == 3
    assert sum("another dvc works on the same files" in line for line in lines) == 2


@pytest.mark.parametrize(
    "script",
    [
        "print('ERROR: failed to reproduce'); sys.exit(255)",
        f"print({LOCKED.removeprefix('ERROR: ')!r}); print('ERROR: failed to run'); sys.exit(255)",
        f"print({LOCKED!r}); sys.exit(1)",
    ],
    ids=["another failure", "a stage's own words", "another status"],
)
def test_other_failures_are_not_tried_again(tmp_path: Path, script: str) -> None:
    with pytest.raises(StageError, match="stage 'align' failed") as error:
        fake_runner(tmp_path, script).run("align", print)
    assert error.value.kind == "Failed"
    assert tries(tmp_path) == 1


def test_waiting_for_the_lock_ends_with_the_time(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"Unable to acquire lock|took more than"):
        fake_runner(tmp_path, f"print({LOCKED!r}); sys.exit(255)", timeout=10).run("align", print)
    assert tries(tmp_path) > 1


def test_a_failure_gives_the_reason_first_and_then_the_last_lines(repository: Repository) -> None:
    """Rejected input is distinguished from failure."""
    command = "for n in $(seq 40); do echo line $n; done; echo the reason; exit 3"
    refusal = "echo 'error: params.yaml, line 3' >&2; exit 2"
    root = repository({"broken": {"cmd": command, "outs": ["out"]}, "strict": {"cmd": refusal, "outs": ["other"]}})
    errors = []
    for name in ("broken", "strict"):
        with pytest.raises(StageError) as caught:
            StageRunner(root, timeout=600).run(name, print)
        errors.append(caught.value)
    assert [error.kind for error in errors] == ["Failed", "Refused"]
    first, *others = str(errors[0]).splitlines()
    assert first == "stage 'broken' failed: the reason"
    assert "line 40" in others and "line 1" not in others
    assert "error: params.yaml, line 3" in str(errors[1])


def test_the_time_limit_ends_the_stage_and_its_command(tmp_path: Path) -> None:
    script = "import subprocess, time; p = subprocess.Popen(['sleep', '300'])\n"
    script += "Path('pids').write_text(f'{os.getpid()} {p.pid}'); print('begun', flush=True); time.sleep(300)"
    with pytest.raises(StageError, match=r"took more than .*\nbegun") as error:
        fake_runner(tmp_path, script, timeout=10).run("slow", print)
    assert error.value.kind == "TimedOut"
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_closing_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    script = "Path('pid').write_text(str(os.getpid())); import time; time.sleep(300)"
    one = fake_runner(tmp_path, script)
    errors: list[StageError] = []

    def run() -> None:
        try:
            one.run("slow", print)
        except StageError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until("the command", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    one.close()
    thread.join(300)
    assert [error.kind for error in errors] == ["Stopped"]
    assert not alive(int((tmp_path / "pid").read_text()))
    with pytest.raises(StageError, match="was stopped"):
        one.run("slow", print)
    assert tries(tmp_path) == 1


def test_stages_see_the_flow_run_and_no_other_variable_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__CONTROL_TOKEN", "secret")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "another")
    lines: list[str] = []
    script = "print(*(f'{k}={v}' for k, v in os.environ.items() if k.startswith('PREFECT__')), os.environ['PATH'])"
    fake_runner(tmp_path, script, flow_run="run-1").run("align", lines.append)
    assert lines == [f"PREFECT__FLOW_RUN_ID=run-1 {Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"]


def test_a_progress_bar_is_logged_in_its_last_state(tmp_path: Path) -> None:
    lines: list[str] = []
    script = r"sys.stdout.write('step 1\rstep 2\rstep 3\n\nsm\xc3\xb8r\n'); sys.stdout.buffer.write(b'\xff\n')"
    fake_runner(tmp_path, script).run("align", lines.append)
    assert lines[0] == "step 3"
    assert len(lines) == 3
