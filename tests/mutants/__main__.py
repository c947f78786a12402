"""Breaks the code on purpose, one mistake at a time, and checks that the tests notice: `python -m tests.mutants [NAME ...]`.

Each break is applied to a copy of the working tree, where its own tests run; it is noticed where one of them fails that passes
without any break. The exit status is 0 where every break is noticed, 1 where one survives, and 2 where one does not apply to
the code. The last line of the output is JSON.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.breaks import BREAKS
from tests.mutants.patching import Break, PatchError, broken, missing_tests

SECONDS = 1800
"""Tests that take longer are ended, and the break counts as a survivor."""
_PASSED, _FAILED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the breaks that the command line selects and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="run only breaks whose name contains one of these (default: all)")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="breaks at once (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="list the breaks and check that they apply; run nothing")
    options = parser.parse_args(argv)
    chosen = [one for one in BREAKS if not options.names or any(name in one.name for name in options.names)]
    return check(Path.cwd(), chosen, jobs=options.jobs, only_list=options.list)


def check(root: Path, breaks: Sequence[Break], *, jobs: int = 1, only_list: bool = False) -> int:
    """Apply each break to a copy of the tree at `root`, run its tests, and print one line a break and a last line of JSON."""
    refused = _refused(root, breaks)
    for line in refused or ([] if breaks else ["no break has such a name; --list shows all"]):
        print(f"error: {line}", file=sys.stderr)
    if refused or not breaks:
        return 2
    if only_list:
        for one in breaks:
            print(f"{one.name:36} {one.file} {one.symbol}")
        return 0
    with tempfile.TemporaryDirectory(prefix="draftline-mutants-") as folder:
        copies = [Path(folder) / f"copy{slot}" for slot in range(max(1, min(jobs, len(breaks))))]
        for copy in copies:
            copy_tree(root, copy)
        # A test that fails without any break has noticed nothing.
        status = _pytest(copies[0], sorted({test for one in breaks for test in one.tests}))
        if status != _PASSED:
            print(f"error: without any break, the tests end with status {status}; make them pass first", file=sys.stderr)
            return 2
        survivors = _run(breaks, copies)
    counts = {"mutants": len(breaks), "killed": len(breaks) - len(survivors), "survived": len(survivors)}
    print(json.dumps({**counts, "survivors": sorted(survivors)}))
    return 1 if survivors else 0


def _run(breaks: Sequence[Break], copies: Sequence[Path]) -> list[str]:
    """Run each break on the next free copy; print a line as each ends, and return the names of those that survive."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def noticed(change: Break) -> bool:
        copy = free.get()
        try:
            return _noticed(change, copy)
        finally:
            free.put(copy)

    survivors = []
    with ThreadPoolExecutor(len(copies)) as pool:
        running = {pool.submit(noticed, one): one.name for one in breaks}
        for done in as_completed(running):
            name = running[done]
            survivors += [] if done.result() else [name]
            print(f"{'killed' if done.result() else 'SURVIVED':8} {name}", flush=True)
    return survivors


def _noticed(change: Break, copy: Path) -> bool:
    """Whether the tests of a break fail with it: one of them, or each by itself where the break asks for `every`."""
    file = copy / change.file
    before, stat = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(broken(before, change), encoding="utf-8")
    try:
        runs = [[test] for test in change.tests] if change.every else [list(change.tests)]
        return all(_pytest(copy, tests, own_kernel=change.file.suffix != ".py") == _FAILED for tests in runs)
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, (stat.st_atime, stat.st_mtime))


def _pytest(copy: Path, tests: Sequence[str], *, own_kernel: bool = False) -> int:
    """Run tests in a copy of the tree; return pytest's exit status, or −1 if they took too long."""
    # A compiled file of broken code must not be left to the next break.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    if own_kernel:
        environment["XDG_CACHE_HOME"] = str(copy / ".cache")
    # What only a slow test noticed would pass `make test`.
    options = ("-q", "-x", "-m", "not slow", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--basetemp={copy}.tmp")
    with Path(f"{copy}.log").open("wb") as log:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def copy_tree(root: Path, copy: Path, without: tuple[str, ...] = ()) -> None:
    """Copy every file of the working tree that git does not ignore, links aside, with what Python has compiled of it.

    Args:
        root: The working tree.
        copy: The folder of the copy.
        without: Beginnings of paths that are left out.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not (root / name).is_file() or (root / name).is_symlink() or name.startswith(without):
            continue
        # A compiled file names the time of its source, which the copy keeps.
        compiled = Path(name).parent / "__pycache__" / f"{Path(name).stem}.{sys.implementation.cache_tag}.pyc"
        for part in (Path(name), compiled):
            if (root / part).is_file():
                (copy / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / part, copy / part)


def _refused(root: Path, breaks: Sequence[Break]) -> list[str]:
    """Say which breaks do not apply to the code as it is."""
    lines = []
    for one in breaks:
        try:
            if sum(other.name == one.name for other in breaks) > 1:
                lines.append(f"{one.name}: two breaks have this name; give each its own")
            lines += [
                f"{one.name}: there is no test {test}; name the one that has to notice" for test in missing_tests(root, one)
            ]
            broken((root / one.file).read_text(encoding="utf-8"), one)
        except FileNotFoundError:
            lines.append(f"{one.name}: {one.file} does not exist; carry the break over to where its code is now")
        except PatchError as error:
            lines.append(str(error))
    return lines


if __name__ == "__main__":
    sys.exit(main())
