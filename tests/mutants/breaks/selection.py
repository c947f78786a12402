"""Breaks of what chooses an operating point: paired statistics, frontiers, corrected bounds, the choice."""

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break("interval-not-paired", "tasks.evaluation.scoring.statistics", "ratio_interval", "sums[:, 0] / sums[:, 1]",
          "sums[:, 0] / resampled_sums(denominator, samples, seed + 1)[:, 0]",
          (f"{_UNIT}/scoring/test_statistics.py",)),
    Break("bootstrap-seed-ignored", "tasks.evaluation.scoring.statistics", "_times_drawn", "default_rng(seed)",
          "default_rng(0)", (f"{_UNIT}/scoring/test_statistics.py",)),
    Break("frontier-inverted", "tasks.evaluation.frontier", "frontier", "point.quality > best",
          "point.quality < best or not kept", (f"{_UNIT}/test_frontier.py",)),
    Break("frontier-keeps-equal-points", "tasks.evaluation.frontier", "frontier", "point.quality > best",
          "point.quality >= best", (f"{_UNIT}/test_frontier.py",)),
    Break("choice-made-on-test", "tasks.evaluation.selection", "choose_rows", "row.split == CHOSEN_ON",
          'row.split == "test"', (f"{_UNIT}/test_selection.py",)),
    Break("margin-added", "tasks.evaluation.selection", "keeps_quality", "lower > -margin", "lower > margin",
          (f"{_UNIT}/test_selection.py",)),
    Break("slowest-point-chosen", "tasks.evaluation.selection", "choose", "(-point.speedup,", "(point.speedup,",
          (f"{_UNIT}/test_selection.py",)),
    Break("bound-not-corrected", "tasks.evaluation.selection", "max_t_bounds",
          "max_t_quantile(differences.influence, alpha, seed)", "NormalDist().inv_cdf(1.0 - alpha)",
          (f"{_UNIT}/test_selection.py",)),
    Break("unseen-losses-cost-nothing", "tasks.evaluation.selection", "_lower",
          "second + further**2, third - further**3", "second, third", (f"{_UNIT}/test_selection.py",)),
    Break("loss-of-the-points-at-hand-alone", "tasks.evaluation.selection", "_lower", "max(differences.possible, ", "max(0.0, ",
          (f"{_UNIT}/test_selection.py",)),
    Break("drafters-do-not-share-the-level", "tasks.evaluation.selection", "level_of_arm", " / len(ARMS)", "",
          (f"{_UNIT}/test_selection.py",)),
    Break("test-status-flipped", "tasks.evaluation.scoring.statistics", "status_of", "lower > limit", "upper > limit",
          (f"{_UNIT}/report/test_recommendation.py",)),
    Break("gap-inverted", "tasks.evaluation.frontier", "frontier_gap", "_attained(own, left) - _attained(other, left)",
          "_attained(other, left) - _attained(own, left)", (f"{_UNIT}/test_frontier.py",)),
    Break("quality-differences-not-paired", "tasks.evaluation.scoring.quality", "Quality.minus",
          "self.resampled - other.resampled", "self.resampled - other.resampled[::-1]",
          (f"{_UNIT}/scoring/test_quality.py",)),
    Break("failed-row-is-a-point", "tasks.evaluation.frontier", "tradeoff_of", "math.isfinite(row.value) and ", "",
          (f"{_UNIT}/test_frontier.py",)),
)  # fmt: skip
