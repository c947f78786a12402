"""Checks this machine and says what is missing for what.

`python -m tasks.doctor` prints a line for each check, and below it, where something is wrong, what needs it and what to do.
`--json` prints the same as one line for programs. The exit status is 0 if everything that `make repro` needs is there, and 1 if
something is missing; a warning is about something that `make repro` does without. No connection leaves this machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.doctor import devices, libraries, ports, resources, software, toolchain
from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Result, run
from tasks.errors import one_line_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKS: tuple[Check, ...] = (
    *software.CHECKS,
    *resources.CHECKS,
    *devices.CHECKS,
    *toolchain.CHECKS,
    *libraries.CHECKS,
    *ports.CHECKS,
)
_NAMES, _STATES = max(len(check.name) for check in CHECKS), len(WARNING)


def lines(result: Result) -> list[str]:
    """Return a check as lines of the table."""
    indent = " " * (_NAMES + _STATES + 4)
    table = [f"{result.name:{_NAMES}}  {result.state:{_STATES}}  {result.found}"]
    if result.state != OK:
        table += [f"{indent}needed for: {result.needed_for}", f"{indent}to do: {result.fix}"]
    return table


def verdict(results: Sequence[Result]) -> str:
    """Return the last line of the table."""
    missing, warnings = ([one.name for one in results if one.state == state] for state in (MISSING, WARNING))
    said = f"missing for make repro: {', '.join(missing)}" if missing else "everything that make repro needs is there"
    return said + (f"; warnings: {', '.join(warnings)}" if warnings else "")


def as_json(results: Sequence[Result]) -> dict[str, object]:
    """Return the results as plain data."""
    return {
        "ready": all(one.state != MISSING for one in results),
        "missing": [one.name for one in results if one.state == MISSING],
        "warnings": [one.name for one in results if one.state == WARNING],
        "checks": [dataclasses.asdict(one) for one in results],
    }


def main(argv: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks, print what they find, each as soon as it is known, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(argv)
    if not Path("dvc.yaml").is_file():
        parser.error("there is no dvc.yaml here; run the command in the root folder of the repository")
    facts, results = Facts(), []
    for check in checks:
        results.append(run(check, facts))
        if not options.json:
            print("\n".join(lines(results[-1])), flush=True)
    print(json.dumps(as_json(results)) if options.json else f"\n{verdict(results)}")
    return 1 if any(one.state == MISSING for one in results) else 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
