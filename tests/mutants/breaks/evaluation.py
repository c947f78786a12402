"""Breaks of evaluation: statistics, frontiers, choices, timing, costs, sweeps, reports."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break(
        "interval-not-paired", "tasks.evaluation.statistics", "ratio_interval",
        "sums[:, 0] / sums[:, 1]", "sums[:, 0] / resampled_sums(denominator, samples, seed + 1)[:, 0]",
        (f"{_UNIT}/test_statistics.py",),
    ),
    Break(
        "bootstrap-seed-ignored", "tasks.evaluation.statistics", "_times_drawn",
        "default_rng(seed)", "default_rng(0)",
        (f"{_UNIT}/test_statistics.py",),
    ),
    Break(
        "frontier-inverted", "tasks.evaluation.frontier", "frontier",
        "point.quality > best", "point.quality < best or not kept",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "frontier-keeps-equal-points", "tasks.evaluation.frontier", "frontier",
        "point.quality > best", "point.quality >= best",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "choice-made-on-test", "tasks.evaluation.frontier", "choose_rows",
        'row["split"] == CHOSEN_ON', 'row["split"] == REPORTED_ON',
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "tolerance-added", "tasks.evaluation.frontier", "choose",
        "vanilla_quality - tolerance - EDGE", "vanilla_quality + tolerance - EDGE",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "slowest-point-chosen", "tasks.evaluation.frontier", "choose",
        "(-point.speedup,", "(point.speedup,",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "gap-inverted", "tasks.evaluation.frontier", "frontier_gap",
        "_attained(own, left) - _attained(other, left)", "_attained(other, left) - _attained(own, left)",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "holm-without-correction", "tasks.evaluation.changes", "more_than_noise",
        "LEVEL / (len(judged) - rank)", "LEVEL",
        (f"{_UNIT}/test_changes.py",),
    ),
    Break(
        "quality-differences-not-paired", "tasks.evaluation.quality", "Quality.minus",
        "self.resampled - other.resampled", "self.resampled - other.resampled[::-1]",
        (f"{_UNIT}/test_quality.py",),
    ),
    Break(
        "rate-over-the-wrong-count", "tasks.evaluation.measurements", "_RATIOS",
        '("rollbacks", "large_calls")', '("rollbacks", "tokens")',
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "acceptance-is-the-union", "tasks.evaluation.acceptance", "_agreements",
        "torch.minimum(p, q)", "torch.maximum(p, q)",
        (f"{_UNIT}/test_acceptance.py",),
    ),
    Break(
        "acceptance-not-conditional", "tasks.evaluation.acceptance", "acceptance_by_position",
        " and kept >= position - 1", "",
        (f"{_UNIT}/test_acceptance.py",),
    ),
    Break(
        "speedup-inverted", "tasks.evaluation.timing", "Latencies.speedup",
        "sum(self.vanilla) / sum(self.method)", "sum(self.method) / sum(self.vanilla)",
        (f"{_UNIT}/test_timing.py",),
    ),
    Break(
        "latency-per-call-forgotten", "tasks.evaluation.sweeping.costs", "Costs.latency",
        "runs + text + call * calls", "runs + text + call",
        (f"{_UNIT}/sweeping/test_costs.py",),
    ),
    Break(
        "resumed-row-measured-again", "tasks.evaluation.sweeping.finishing", "Finisher.timed",
        'if found is not None and "speedup" in found:', 'if found is not None and "speedup" not in found:',
        (f"{_UNIT}/sweeping/test_finishing.py",),
    ),
    Break(
        "rows-of-other-work-kept", "tasks.evaluation.rows", "RowFile.__init__",
        'row.get("fingerprint") == fingerprint and ', "",
        (f"{_UNIT}/test_rows.py",),
    ),
    Break(
        "resume-loses-the-last-row", "tasks.evaluation.rows", "read_rows",
        'split(b"\\n")', 'split(b"\\n")[:-2]',
        (f"{_UNIT}/test_rows.py",),
    ),
)  # fmt: skip
