"""CALM's threshold by Learn then Test: chosen on validation, told on test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.results.risk_tables import ControlledRow
from tasks.evaluation.results.rows import TestMeasurements, TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.selection import TestedSequence, controlled, hoeffding_bentkus, threshold_of
from tasks.evaluation.settings import RiskSettings
from tasks.evaluation.statistics import Status
from tasks.paths import ARMS


def controlled_rows(summary: Summary) -> Iterator[ControlledRow]:
    """A row for each tested sequence of each sweep; none where no losses of CALM were measured."""
    for arm in ARMS:
        risk = summary.pairs.of(arm).risk or RiskSettings()
        for sequence in controlled(summary.timed_points(arm), risk):
            yield _row(sequence, arm, risk)


def _row(sequence: TestedSequence[TimedPoint], arm: str, risk: RiskSettings) -> ControlledRow:
    row = ControlledRow(
        label=f"CALM, {settings_text(sequence.fixed)}, {arm} sweep",
        arm=arm,
        tested=len(sequence.points),
        accepted=sequence.accepted,
        tolerance_share=risk.tolerance,
        level=sequence.level,
    )
    if sequence.accepted < len(sequence.points):
        refused = sequence.points[sequence.accepted]
        row = dataclasses.replace(
            row, refused_threshold=threshold_of(refused), refused_p_value=sequence.p_values[sequence.accepted]
        )
    point = sequence.chosen
    if point is None:
        return row
    p_value = sequence.p_values[sequence.accepted - 1]
    row = dataclasses.replace(row, settings=point.settings, loss_share=point.loss_share, p_value=p_value)
    if point.test is None:
        return row
    return dataclasses.replace(
        row,
        test_loss_share=point.test.loss_share,
        test_status=status_on_test(point.test, risk),
        quality_difference=point.test.quality_difference,
        quality_difference_interval=point.test.quality_difference_interval,
        speedup=point.test.speedup,
        speedup_interval=point.test.speedup_interval,
    )


def status_on_test(measured: TestMeasurements, risk: RiskSettings) -> Status | None:
    """What the test split says of a chosen threshold by the same p-value, one test at level ε in either direction."""
    loss, examples = measured.loss_share, measured.examples
    if loss is None or not examples:
        return None
    if hoeffding_bentkus(loss, examples, risk.tolerance) <= risk.level:
        return "confirmed"
    # A risk of at most δ is a gain of at least 1 - δ, which the same inequality refutes.
    return "contradicted" if hoeffding_bentkus(1.0 - loss, examples, 1.0 - risk.tolerance) <= risk.level else "open"
