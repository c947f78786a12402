"""Breaks of evaluation besides sweeps, scores and reports: statistics, frontiers, costs, benchmarks."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break(
        "lenience-counts-as-none", "tasks.evaluation.acceptance", "_accepted",
        "p.dist / lenience", "p.dist",
        (f"{_UNIT}/test_acceptance.py::test_lenience_accepts_more",),
    ),
    Break(
        "measured-drafter-never-learns", "tasks.evaluation.acceptance", "_OneByOne._observe",
        "if self.drafter.recycles", "if False",
        (f"{_UNIT}/test_acceptance.py::test_acceptance_of_drafters_without_a_model_by_hand",),
    ),
    Break(
        "oracle-drafts-for-free", "tasks.decoding.draft_length", "oracle_speedup",
        " + acceptance_rate * min(cost_ratio, 1.0)", "",
        (f"{_UNIT}/report/test_tables.py::test_no_window_beats_the_oracle_in_theory",),
    ),
    Break(
        "energy-without-wrap-around", "tasks.evaluation.energy", "EnergyMeter.joules",
        "(late - early) % one.range", "late - early",
        (f"{_UNIT}/test_energy.py",),
    ),
    Break(
        "interval-not-paired", "tasks.evaluation.statistics", "ratio_interval",
        "sums[:, 0] / sums[:, 1]", "sums[:, 0] / resampled_sums(denominator, samples, seed + 1)[:, 0]",
        (f"{_UNIT}/test_statistics.py",),
    ),
    Break(
        "ratio-of-methods-without-vanilla", "tasks.evaluation.rounds", "_ratio_of_speedups",
        "(sums[..., 1] / sums[..., 0]) / (sums[..., 3] / sums[..., 2])", "sums[..., 2] / sums[..., 0]",
        (f"{_UNIT}/test_rounds.py",),
    ),
    Break(
        "ratio-of-methods-over-rounds-of-one", "tasks.evaluation.rounds", "speed_ratio",
        "math.hypot(rounds_reach(method), rounds_reach(other))", "rounds_reach(method)",
        (f"{_UNIT}/test_rounds.py",),
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
        "choice-made-on-test", "tasks.evaluation.selection.choosing", "choose_rows",
        "row.split == CHOSEN_ON", 'row.split == "test"',
        (f"{_UNIT}/selection/test_choosing.py",),
    ),
    Break(
        "margin-added", "tasks.evaluation.selection.choosing", "keeps_quality",
        "lower > -margin", "lower > margin",
        (f"{_UNIT}/selection/test_choosing.py",),
    ),
    Break(
        "slowest-point-chosen", "tasks.evaluation.selection.choosing", "choose",
        "(-point.speedup,", "(point.speedup,",
        (f"{_UNIT}/selection/test_choosing.py",),
    ),
    Break(
        "bound-not-corrected", "tasks.evaluation.selection.bounds", "max_t_bounds",
        "max_t_quantile(differences.influence, alpha, seed)", "NormalDist().inv_cdf(1.0 - alpha)",
        (f"{_UNIT}/selection/test_bounds.py",),
    ),
    Break(
        "unseen-losses-cost-nothing", "tasks.evaluation.selection.bounds", "_lower",
        "second + typical**2, third - typical**3", "second, third",
        (f"{_UNIT}/selection/test_bounds.py",),
    ),
    Break(
        "drafters-do-not-share-the-level", "tasks.evaluation.selection.row_bounds", "level_of_drafter",
        " / len(DRAFTERS)", "",
        (f"{_UNIT}/selection/test_row_bounds.py",),
    ),
    Break(
        "test-status-flipped", "tasks.evaluation.selection.status", "status_of",
        "lower > limit", "upper > limit",
        (f"{_UNIT}/report/test_recommendation.py",),
    ),
    Break(
        "gap-inverted", "tasks.evaluation.frontier", "frontier_gap",
        "_attained(own, left) - _attained(other, left)", "_attained(other, left) - _attained(own, left)",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "holm-without-correction", "tasks.evaluation.changes", "more_than_noise",
        "LEVEL / (len(ordered) - rank)", "LEVEL",
        (f"{_UNIT}/test_changes.py",),
    ),
    Break(
        "quality-differences-not-paired", "tasks.evaluation.quality", "Quality.minus",
        "self.resampled - other.resampled", "self.resampled - other.resampled[::-1]",
        (f"{_UNIT}/test_quality.py",),
    ),
    Break(
        "rate-over-the-wrong-count", "tasks.evaluation.measurements", "_counted",
        "ratio(counts.rollbacks, counts.large_calls)", "ratio(counts.rollbacks, counts.tokens)",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "acceptance-is-the-union", "tasks.evaluation.acceptance", "_accepted",
        "torch.minimum(p.dist, q)", "torch.maximum(p.dist, q)",
        (f"{_UNIT}/test_acceptance.py",),
    ),
    Break(
        "acceptance-not-conditional", "tasks.evaluation.accepted_drafts", "acceptance_by_position",
        " and kept >= position - 1", "",
        (f"{_UNIT}/test_acceptance.py::test_drafts_by_hand",),
    ),
    Break(
        "intervals-ignore-rounds", "tasks.evaluation.rounds", "speedup_interval",
        "rounds_reach(rounds))", "0.0)",
        (f"{_UNIT}/test_rounds.py",),
    ),
    Break(
        "stalled-call-counts-in-full", "tasks.evaluation.rounds", "_capped",
        "_STALLED *", "1e9 *",
        (f"{_UNIT}/test_rounds.py",),
    ),
    Break(
        "busy-machine-not-noticed", "tasks.evaluation.rounds", "vanilla_scatter",
        "low, middle, high = np.percentile(visits, (5, 50, 95))", "low, middle, high = np.percentile(visits, (50, 50, 50))",
        (f"{_UNIT}/test_rounds.py",),
    ),
    Break(
        "published-row-of-another-data-set", "tasks.evaluation.results.published", "PublishedTable.rows",
        "found.dataset == dataset and ", "",
        (f"{_UNIT}/report/test_tables.py", f"{_UNIT}/report/test_table.py"),
    ),
    Break(
        "published-row-of-another-metric", "tasks.evaluation.results.published", "PublishedTable.rows",
        " and found.metric in (None, metric)", "",
        (f"{_UNIT}/report/test_tables.py", f"{_UNIT}/report/test_table.py"),
    ),
    Break(
        "generated-corpus-passed-off-as-public", "tasks.corpora.settings", "CorpusSettings.validate",
        'self.source != "files" or self.files is None', "False",
        ("tests/unit/test_config.py",),
    ),
    Break(
        "one-interval-is-enough", "tasks.bench.repeat", "agreement",
        "_holds(one, two) and _holds(two, one)", "_holds(one, two) or _holds(two, one)",
        ("tests/unit/bench/test_repeat.py",),
    ),
    Break(
        "fastest-peer-forgotten", "tasks.bench.peers.command", "ratios_of",
        "if name not in OURS}", "if name not in (*OURS, 'llama.cpp')}",
        ("tests/unit/bench/test_peers.py::test_ratios_are_to_the_fastest_peer",),
    ),
    Break(
        "drafter-of-other-work-not-measured", "tasks.bench.alignment.work", "stored_row",
        "known.measured == _measured(comparison, run, CHOSEN_ON, costs)", "known.measured",
        ("tests/unit/bench/test_alignment_command.py",),
    ),
    Break(
        "ineligible-points-compared", "tasks.bench.alignment.criterion", "fastest_kept",
        "if keeps_quality(point.lower_bound, MARGIN) and", "if",
        ("tests/unit/bench/test_alignment.py",),
    ),
    Break(
        "recipes-bounded-point-by-point", "tasks.bench.alignment.measuring", "PairEvaluation._results",
        "max_t_bounds(differences, level_of_drafter(margins), self.sweep.seed)",
        "normal_bounds(differences, 1 - margins.confidence)",
        ("tests/unit/bench/test_alignment.py",),
    ),
    Break(
        "recipe-better-within-seeds", "tasks.bench.alignment.criterion", "Difference.is_beyond_seeds",
        "self.interval is not None and self.interval[0] > 0", "self.mean > 0",
        ("tests/unit/bench/test_alignment.py",),
    ),
    Break(
        "control-learns-outputs", "tasks.bench.alignment.drafters", "Comparison.job",
        "paths.control_set if references else paths.calibration_set", "paths.calibration_set",
        ("tests/unit/bench/test_alignment_command.py",),
    ),
    Break(
        "generated-code-runs-unasked", "tasks.consistency", "_problems",
        " and not task.run_generated_code", " and task.run_generated_code",
        ("tests/unit/test_consistency.py",),
    ),
    Break(
        "failed-row-is-a-point", "tasks.evaluation.frontier", "tradeoff_of",
        "math.isfinite(row.value) and ", "",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "perplexity-shifted", "tasks.evaluation.perplexity", "chunks",
        "piece[1:] for piece", "piece[:-1] for piece",
        ("tests/unit/evaluation/test_perplexity.py",),
    ),
    Break(
        "other-version-read", "tasks.evaluation.results.codec", "parse",
        "if version != VERSION:", "if False:",
        (f"{_UNIT}/results/test_rows.py",),
    ),
    Break(
        "tests-go-on-after-a-failure", "tasks.evaluation.risk_control", "fixed_sequence",
        "next((index for index, p_value in enumerate(p_values) if p_value > level), len(p_values))",
        "sum(p_value <= level for p_value in p_values)",
        (f"{_UNIT}/test_risk_control.py",),
    ),
    Break(
        "mean-under-the-tolerance-is-enough", "tasks.evaluation.risk_control", "hoeffding_bentkus",
        "-examples * _bernoulli_divergence(min(risk, tolerance), tolerance)", "-examples * (risk <= tolerance)",
        (f"{_UNIT}/test_risk_control.py",),
    ),
    Break(
        "bentkus-without-its-factor", "tasks.evaluation.risk_control", "hoeffding_bentkus",
        "math.e * binomial_cdf", "binomial_cdf",
        (f"{_UNIT}/test_risk_control.py",),
    ),
    Break(
        "sequences-each-at-the-whole-level", "tasks.evaluation.risk_control", "controlled",
        "risk.level / len(found)", "risk.level",
        (f"{_UNIT}/test_risk_control.py",),
    ),
)  # fmt: skip
