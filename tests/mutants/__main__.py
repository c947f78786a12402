"""Breaks the code on purpose, one mistake at a time, and checks that the tests notice: `python -m tests.mutants [NAME ...]`.

The exit status is 0 where every break is noticed, 1 where one survives, and 2 where a break does not apply to the code. A break
is noticed where one of its tests fails that passes without it. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import running
from tests.mutants.breaks import BREAKS
from tests.mutants.patching import Break, PatchError, broken, missing_tests


def main(argv: Sequence[str] | None = None) -> int:
    """Run the breaks that the command line selects and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="run only breaks whose name contains one of these (default: all)")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="breaks at once (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="list the breaks and check that they apply; run nothing")
    options = parser.parse_args(argv)
    chosen = [one for one in BREAKS if not options.names or any(name in one.name for name in options.names)]
    return check(Path.cwd(), chosen, jobs=options.jobs, only_list=options.list)


def check(
    root: Path, breaks: Sequence[Break], *, jobs: int = 1, only_list: bool = False, heavy: Sequence[str] = running.HEAVY
) -> int:
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
    running.preload(heavy)
    with tempfile.TemporaryDirectory(prefix="draftline-mutants-") as folder:
        copies = [Path(folder) / f"copy{slot}" for slot in range(max(1, min(jobs, len(breaks))))]
        running.copy_tree(root, copies)
        outcomes = []
        for outcome in running.run_breaks(root, copies, breaks):
            outcomes.append(outcome)
            state = "killed" if outcome.noticed_by else "SURVIVED"
            print(
                f"{state:8} {outcome.name:36} {outcome.seconds:5.1f} s  {', '.join(outcome.noticed_by) or outcome.detail}",
                flush=True,
            )
        # A test that fails in any case has noticed nothing.
        noticing = [test for outcome in outcomes for test in outcome.noticed_by]
        try:
            unreliable = set(running.failing_unbroken(root, copies[0], noticing)) if noticing else set()
        except running.BaselineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    for test in sorted(unreliable):
        print(f"SURVIVED every break that {test} noticed: it fails without any", flush=True)
    survivors = sorted(one.name for one in outcomes if not one.noticed_by or not unreliable.isdisjoint(one.noticed_by))
    counts = {"mutants": len(breaks), "killed": len(breaks) - len(survivors), "survived": len(survivors)}
    print(json.dumps({**counts, "survivors": survivors, "cpu_seconds": round(sum(os.times()[:4]))}))
    return 1 if survivors else 0


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
