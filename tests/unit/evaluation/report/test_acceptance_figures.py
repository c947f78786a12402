"""What the figure of accepted drafts shows."""

from __future__ import annotations

import pytest

from tasks.evaluation.report.figures import acceptance
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, present


def test_shares_of_drafts_add_up_to_all_drafts(full_record: Summary) -> None:
    histogram, positions = present(acceptance.accepted_lengths(full_record)).panels
    names = {bar["series"] for bar in drawn(histogram, "bar")}
    assert names == {f"{method}, {arm}" for method in ("BiLD", "speculative") for arm in ("aligned", "unaligned")}
    for name in names:
        assert sum(bar["y"] for bar in drawn(histogram, "bar") if bar["series"] == name) == pytest.approx(100, abs=0.01)
    first = [mark["y"] for mark in drawn(positions, "point") if mark["series"] == "speculative, aligned"]
    assert first == pytest.approx([90] * len(first), abs=1) and len(first) > 2
