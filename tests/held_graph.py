"""A toy graph whose stages wait in their middle, so that something can be killed in each of them, and its undisturbed outcome.

Each command waits for as long as `hold-STAGE` exists. `points` appends to an output that DVC keeps (`persist`), as a sweep does
with its rows: three points, the second of them held.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from tests.served import below, ended, gone, log, repository, until

Outcome = tuple[Any, dict[str, str]]
"""What DVC recorded of each stage, and the outputs themselves."""


def held(name: str, command: str) -> str:
    """A command that writes its name to `log`, then waits while it is held, then does its work."""
    return f"echo {name} >> log; while test -e hold-{name}; do sleep 0.1; done; {command}"


_EACH_POINT = "grep -qsx $p points || { while test -e hold-points -a $p = 2; do sleep 0.1; done; echo $p >> points; }"
GRAPH: dict[str, Any] = {
    "source": {"cmd": held("source", "cp raw.txt source.txt"), "deps": ["raw.txt"], "outs": ["source.txt"]},
    "left": {"cmd": held("left", "cp source.txt left.txt"), "deps": ["source.txt"], "outs": ["left.txt"]},
    "points": {
        "cmd": f"echo points >> log; for p in 1 2 3; do {_EACH_POINT}; done",
        "deps": ["source.txt"],
        "outs": [{"points": {"persist": True}}],
    },
    "report": {"cmd": held("report", "cat left.txt points > table.md"), "deps": ["left.txt", "points"], "outs": ["table.md"]},
}
NEEDS = {"source": (), "left": ("source",), "points": ("source",), "report": ("left", "points")}
ONCE = dict.fromkeys(GRAPH, 1)
"""How often each stage begins where no run is killed."""
KILLED_IN_EACH = {"source": 2, "left": 2, "points": 3, "report": 2}
"""How often each stage begins where a run is killed in each: `points` is also at work beside `left`."""


def graph(folder: Path, *holds: str, stages: dict[str, Any] = GRAPH) -> Path:
    """Make a repository with the graph in which these stages wait."""
    root = repository(folder, stages)
    for name in holds:
        (root / f"hold-{name}").touch()
    return root


def let_go(folder: Path, name: str) -> None:
    (folder / f"hold-{name}").unlink()


def at_work(folder: Path, name: str, before: Sequence[str] = ()) -> bool:
    """Whether a stage waits in its middle, and with it all that can run; `before` is the log as it was when the run began."""
    done, entered = set(ended(folder)), log(folder)
    can_run = [one for one, needs in NEEDS.items() if one not in done and done.issuperset(needs)]
    return name in can_run and all(
        entered.count(one) > before.count(one)
        and (folder / f"hold-{one}").exists()
        and (one != "points" or (folder / "points").exists())
        for one in can_run
    )


def begun(folder: Path) -> dict[str, int]:
    """How often each stage has begun."""
    entered = log(folder)
    return {name: entered.count(name) for name in GRAPH}


def outcome(folder: Path) -> Outcome:
    """What DVC recorded of each stage, apart from its command, and the outputs themselves."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    recorded = {name: (stage["deps"], stage["outs"]) for name, stage in stages.items()}
    return recorded, {name: (folder / name).read_text() for name in ("source.txt", "left.txt", "points", "table.md")}


def undisturbed_outcome(folder: Path) -> Outcome:
    """The outcome of a run by DVC alone in a folder, which must not exist."""
    root = graph(folder)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], cwd=root, check=True)
    assert begun(root) == ONCE
    return outcome(root)


def kill_in_each_stage(root: Path, started: Callable[[], AbstractContextManager[subprocess.Popen[Any]]]) -> None:
    """Kill a process in the middle of each stage; fail if it leaves a process behind, or if a point is lost.

    Args:
        root: a graph in which every stage is held.
        started: starts a run of the graph and yields the process to kill.
    """
    for name in GRAPH:
        if name == "points":  # it is held beside `left`, in which the run before was killed
            assert (root / "points").read_text() == "1\n"
        before = log(root)
        with started() as process:
            until(f"{name} at work", lambda: at_work(root, name, before) or process.poll() is not None)  # noqa: B023
            assert process.poll() is None
            running = below(process)
            process.kill()
            assert gone(running), f"killed in {name}, it left a process behind"
        let_go(root, name)
