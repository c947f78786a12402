"""The training log: the values of a whole run by step, also of one that was interrupted and resumed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import cast

LogMetrics = Callable[[dict[str, float], int], None]
"""Takes metrics by name and the step that they belong to."""

Rows = dict[int, dict[str, float]]
"""Values by name for each step at which something was logged, in the order of the steps."""


class TrainingLog:
    """Collects what is logged and passes it on. Checkpoints carry the rows, so that a resumed run has those before it."""

    def __init__(self, state: Mapping[str, object], log: LogMetrics) -> None:
        """Continue from a checkpoint's state; an empty one has no rows."""
        self.rows = cast("Rows", state.get("log", {}))
        self._log = log

    def add(self, values: dict[str, float], step: int) -> None:
        """Add values to the row of a step."""
        self.rows.setdefault(step, {}).update(values)
        self._log(values, step)

    def last(self, name: str) -> float:
        """The last logged value of that name; 0 before the first."""
        return next((values[name] for values in reversed(self.rows.values()) if name in values), 0.0)

    def state_dict(self) -> dict[str, Rows]:
        """Return the state for a checkpoint."""
        return {"log": self.rows}


def as_csv(rows: Rows) -> str:
    """Return a line for each step, with empty fields where a value was not measured at that step.

    There is always a column `loss`, which dvc plots, even of a model that was not trained.
    """
    names = dict.fromkeys(["loss", *(name for values in rows.values() for name in values)])
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **values} for step, values in rows.items())
    return text.getvalue()
