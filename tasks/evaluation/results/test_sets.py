"""What the chosen points give on each of several test sets."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.results.arms import AlignmentEffect
from tasks.evaluation.results.tables import TableRow


@dataclass(frozen=True, kw_only=True)
class NamedTestSet:
    """One test set: Table 1 with this set in place of test, and what alignment gives on it."""

    name: str
    split: str
    """Its split: `test` for the main one, on which everything else of the report is measured, or `test.NAME`."""
    examples: int | None = None
    table: list[TableRow]
    """`test` and `test_status` of a row are of this set; without published numbers but for the main one."""
    effects: list[AlignmentEffect]
    """Aligned drafters over unaligned ones, over all seeds."""
