"""What the report says of alignment: a claim where the interval allows one, and every number in its cell."""

from __future__ import annotations

import dataclasses

from tasks.evaluation.report.arms import NO_LOSS, SPECULATIVE
from tasks.evaluation.report.arms_text import arms_table, effect_sentences
from tasks.evaluation.results.rows import TestStatus as Says
from tasks.evaluation.results.summary import AlignmentEffect, ArmComparison, ArmPoint, ArmResult
from tasks.models.settings import TrainingRecord

POINT = ArmPoint(
    purpose=NO_LOSS,
    settings={"fallback_threshold": 0.5},
    speedup=1.5,
    speedup_interval=(1.4, 1.6),
    quality_difference=-0.25,
    quality_difference_interval=(-0.5, 0.0),
)
ARMS = ArmComparison(
    results=[
        ArmResult(arm="unaligned", seed=1, training=TrainingRecord("w", 700, 20, 12345), points=[POINT]),
        ArmResult(arm="aligned", seed=1, points=[ArmPoint(purpose=NO_LOSS)]),
    ],
    effects=[
        AlignmentEffect(purpose=SPECULATIVE, by_seed={1: 1.2, 2: 1.2}, mean=1.2, interval=(1.1, 1.3), finding="helps"),
        AlignmentEffect(purpose=NO_LOSS, by_seed={1: 0.67}, mean=0.67, finding="open"),
    ],
)


def test_a_claim_needs_an_interval_and_one_seed_proves_nothing() -> None:
    claimed, open_ = effect_sentences(ARMS)
    assert "alignment makes speculative decoding 1.20 [1.10, 1.30] times as fast on test, over 2 seeds." in claimed
    assert "whether alignment helps BiLD chosen for no loss is open" in open_
    assert "with one seed, which proves nothing" in open_


def test_the_table_has_a_row_for_each_drafter_and_one_for_the_effect() -> None:
    headings, rows = arms_table(ARMS)
    assert headings[:4] == ["drafter", "seed", "steps", "target tokens"]
    assert rows[0][:4] == ["unaligned", "1", "700", "12,345"]
    assert rows[0][4] == "not swept" and rows[0][5].startswith("1.50× [1.40, 1.60], -0.25 [-0.50, +0.00]")
    assert rows[1][5] == "none: vanilla"
    assert rows[2][4:6] == ["1.20 [1.10, 1.30]: helps", "0.67: open"]


def test_a_choice_that_test_contradicts_says_so_in_its_cell() -> None:
    statuses = (Says(quality="contradicted", speed="confirmed"), Says(quality="open", speed="confirmed"))
    points = [dataclasses.replace(POINT, margin=0.5, test=status) for status in statuses]
    arms = ArmComparison(results=[ArmResult(arm="aligned", seed=1, points=[point]) for point in points], effects=[])
    cells = [row[5] for row in arms_table(arms)[1]]
    assert cells[0].endswith(", contradicted: loses more than 0.5 points") and "contradicted" not in cells[1]
