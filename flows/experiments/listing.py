"""Experiments in words, for a terminal and for the states of flow runs."""

from __future__ import annotations

from collections.abc import Sequence

from flows.experiments.changes import as_text
from flows.experiments.refs import Experiment


def told(one: Experiment) -> str:
    """Return one line on an experiment."""
    if one.state == "done":
        return f"{one.name}: done (dvc exp show; dvc exp apply {one.name})"
    return f"{one.name}: {one.state}" + (f": {one.about.reason}" if one.about.reason else "")


def listing(known: Sequence[Experiment]) -> str:
    """Return a line for each experiment: name, state, settings, reason."""
    rows = [(one.name, one.state, as_text(one.about.settings), one.about.reason) for one in known]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    aligned = [[*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in aligned) or "there are no experiments"
