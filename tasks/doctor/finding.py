"""Checks and their findings; a check that fails itself is a finding, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tasks.doctor.facts import Facts
from tasks.doctor.text import one_line

OK, WARNING, MISSING = "ok", "warning", "missing"
"""States: nothing to do; `make repro` works, but something else does not or it is slow; `make repro` does not work."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    state: str
    found: str
    """One line."""
    fix: str = ""
    """What to do, one line; empty where the state is ok."""


@dataclass(frozen=True)
class Check:
    """One thing to look at."""

    name: str
    needed_for: str
    look: Callable[[Facts], Finding]
    required: bool = False
    """Whether `make repro` needs it."""

    @property
    def absent(self) -> str:
        """The state where the thing is not there at all."""
        return MISSING if self.required else WARNING


@dataclass(frozen=True)
class Result:
    """A check and what it found."""

    name: str
    state: str
    found: str
    needed_for: str
    """Empty where the state is ok, as is `fix`."""
    fix: str


def run(check: Check, facts: Facts) -> Result:
    """Run a check. An exception counts as the thing not being there, since nothing shows that it works."""
    try:
        finding = check.look(facts)
    except Exception as error:  # noqa: BLE001 (a broken installation may raise anything)
        fix = "fix what the message names"
        finding = Finding(check.absent, f"not checked: {one_line(error)}", fix)
    if finding.state == OK:
        return Result(check.name, OK, finding.found, "", "")
    return Result(check.name, finding.state, finding.found, check.needed_for, finding.fix)
