"""Breaks of evaluation: statistics, frontiers, choices, timing, costs, sweeps, reports."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break(
        "batches-over-vanilla-at-batch-1", "tasks.evaluation.sweeping.batches", "_timing",
        "laps[VANILLA, size]", "laps[VANILLA, 1]",
        (f"{_UNIT}/sweeping/test_batches.py",),
    ),
    Break(
        "batch-speedup-not-of-its-rounds", "tasks.evaluation.sweeping.batches", "_timing",
        "statistics.median(rounds)", "_seconds(vanilla) / _seconds(own)",
        (f"{_UNIT}/sweeping/test_batches.py",),
    ),
    Break(
        "batches-unchecked", "tasks.evaluation.sweeping.batches", "BatchTimer._time",
        "self._check(point, batch, generations)", "self._check(point, [], [])",
        (f"{_UNIT}/sweeping/test_batches.py",),
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
        "acceptance-is-the-union", "tasks.evaluation.acceptance", "_agreements",
        "torch.minimum(p, q)", "torch.maximum(p, q)",
        (f"{_UNIT}/test_acceptance.py",),
    ),
    Break(
        "acceptance-not-conditional", "tasks.evaluation.accepted_drafts", "acceptance_by_position",
        " and kept >= position - 1", "",
        (f"{_UNIT}/test_acceptance.py::test_drafts_by_hand",),
    ),
    Break(
        "speedup-inverted", "tasks.evaluation.timing", "Latencies.speedup",
        "sum(self.vanilla) / sum(self.method)", "sum(self.method) / sum(self.vanilla)",
        (f"{_UNIT}/test_timing.py",),
    ),
    Break(
        "latency-per-call-forgotten", "tasks.evaluation.sweeping.overheads", "Overheads.of",
        "one.call * work.calls * (work.mixed > 0)", "one.call",
        (f"{_UNIT}/sweeping/test_costs.py",),
    ),
    Break(
        "resumed-row-measured-again", "tasks.evaluation.sweeping.row_writer", "RowWriter.write_timed",
        "if self.finished(earlier):", "if not self.finished(earlier):",
        (f"{_UNIT}/sweeping/test_row_writer.py::test_a_row_in_the_file_is_not_measured_again",),
    ),
    Break(
        "intervals-ignore-rounds", "tasks.evaluation.rounds", "speedup_interval",
        "reach = rounds_reach(rounds)", "reach = 0.0",
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
        "rounds-of-a-killed-sweep-lost", "tasks.evaluation.sweeping.point_evaluator", "PointEvaluator.time",
        "[] if earlier is None else earlier.rounds or []", "[]",
        (f"{_UNIT}/sweeping/test_point_evaluator.py",),
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
        "test-set-reported-as-the-main-one", "tasks.evaluation.report.test_sets", "_further",
        "_in_place_of_test(arms[key][0], further[key][0])", "arms[key][0]",
        ("tests/unit/test_report.py::test_every_test_set_stands_in_the_report_by_its_name",),
    ),
    Break(
        "changed-test-set-keeps-its-rows", "tasks.sweep", "measure_tests",
        "[paths.split(split.name)]", "[]",
        ("tests/unit/test_sweep.py::test_further_test_sets_are_measured_beside_the_main_one",),
    ),
    Break(
        "generated-corpus-passed-off-as-public", "tasks.corpora.settings", "CorpusSettings.validate",
        'self.source != "files" or self.files is None', "False",
        ("tests/unit/test_config.py",),
    ),
    Break(
        "theory-with-the-wrong-check", "tasks.evaluation.report.tables", "_speculative",
        "pair.costs.check_cost(length + 1)", "pair.costs.check_cost(length)",
        (f"{_UNIT}/report/test_tables.py",),
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
        "resume-loses-the-last-row", "tasks.evaluation.results.row_file", "_intact",
        'split("\\n")', 'split("\\n")[:-2]',
        (f"{_UNIT}/results/test_rows.py",),
    ),
    Break(
        "untimed-row-written-again", "tasks.evaluation.sweeping.row_writer", "RowWriter.write_untimed",
        "if found is not None and _agrees", "if found is None and _agrees",
        (f"{_UNIT}/sweeping/test_row_writer.py",),
    ),
    Break(
        "near-points-left-out", "tasks.evaluation.sweeping.planning", "Plan._near_frontier",
        "* (1 + self._near)", "/ (1 + self._near)",
        (f"{_UNIT}/sweeping/test_planning.py::test_points_near_the_frontier_are_timed",),
    ),
    Break(
        "methods-teach-nothing", "tasks.evaluation.sweeping.overheads", "Overheads.of",
        "self.by_method.get(method, self.common)", "self.by_method.get(method, MethodOverhead(text=0.0, call=0.0))",
        (f"{_UNIT}/sweeping/test_costs.py",),
    ),
    Break(
        "anchors-hidden-from-errors", "tasks.evaluation.sweeping.planning", "prediction_error",
        "if index in plan.predicted", 'if index in plan.predicted and plan.why[index] != "anchor"',
        (f"{_UNIT}/sweeping/test_planning.py::test_prediction_errors_are_relative_to_measured_speedups",),
    ),
    Break(
        "twins-across-methods", "tasks.evaluation.sweeping.replaying", "duplicates",
        "(points[index].method, outputs[index].behaviour)", '("", outputs[index].behaviour)',
        (f"{_UNIT}/sweeping/test_replaying.py::test_points_of_two_methods_are_no_duplicates",),
    ),
    Break(
        "behaviour-of-the-last-example", "tasks.evaluation.sweeping.outputs", "Outputs.add",
        "hash((self.behaviour, tokens,", "hash((tokens,",
        (f"{_UNIT}/sweeping/test_outputs.py",),
    ),
    Break(
        "every-split-timed-alike", "tasks.evaluation.sweeping.outputs", "Split.__init__",
        '"{sweep.seed} {name}"', '"{sweep.seed}"',
        (f"{_UNIT}/sweeping/test_outputs.py::test_the_timed_examples_are_drawn_by_seed_and_split",),
    ),
    Break(
        "method-always-timed-first", "tasks.evaluation.timing", "measure",
        "        rng.shuffle(contenders)\n", "",
        (f"{_UNIT}/test_timing.py",),
    ),
    Break(
        "unanswerable-beside-an-answer", "tasks.evaluation.scoring.answers", "_golds",
        "map(normalised, references) if gold] or", "map(normalised, references)] or",
        (f"{_UNIT}/scoring/test_answers.py",),
    ),
    Break(
        "sentences-end-at-titles", "tasks.evaluation.scoring.sentences", "_ends",
        "plain in _NEVER_LAST or", "",
        (f"{_UNIT}/scoring/test_sentences.py",),
    ),
    Break(
        "sentences-end-at-abbreviations", "tasks.evaluation.scoring.sentences", "_ends",
        "return following in _STARTERS and", "return",
        (f"{_UNIT}/scoring/test_sentences.py",),
    ),
    Break(
        "words-of-other-scripts-dropped", "tasks.evaluation.scoring.scripts", "_kind",
        'category[0] in "LN"', 'category[0] in "LN" and character.isascii()',
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "chinese-is-one-word", "tasks.evaluation.scoring.scripts", "_kind",
        '"single" if script_without_spaces(character) else "word"', '"word"',
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "tokenizer-of-bleu-forgotten", "tasks.evaluation.scoring.bleu", "_sentence_bleu",
        ", tokenize=tokenizer", "",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "published-beside-another-tokenizer", "tasks.evaluation.metrics", "compared_as",
        "{key: metric.tokenizer} if metric.tokenizer else {}", "{}",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "misfit-unsaid", "tasks.evaluation.scoring.references", "check_references",
        "[unread] if unread else []", "[]",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "signs-are-lost", "tasks.evaluation.scoring.answers", "last_number",
        'value.copy_negate() if sign in ("-", "−") else value', "value",
        (f"{_UNIT}/scoring/test_answers.py",),
    ),
    Break(
        "a-program-passes-by-leaving", "tasks.evaluation.scoring.programs", "passes",
        "passed = 3 + secrets.randbelow(250)", "passed = 0",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "programs-write-anywhere", "tasks.evaluation.scoring.isolation", "_restrict_files",
        "version < 1", "version > 0",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "programs-start-processes", "tasks.evaluation.scoring.isolation", "_restrict_calls",
        "(0x06, 0, 0, _REFUSE)", "(0x06, 0, 0, _ALLOW)",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "generated-code-runs-unasked", "tasks.consistency", "_problems",
        " and not task.run_generated_code", " and task.run_generated_code",
        ("tests/unit/test_consistency.py",),
    ),
    Break(
        "brevity-penalty-forgotten", "tasks.evaluation.scoring.bleu", "bleus_of",
        " + brevity", "",
        (f"{_UNIT}/test_quality.py::test_many_bleus_are_each_sacrebleus",),
    ),
    Break(
        "failed-row-is-a-point", "tasks.evaluation.frontier", "tradeoff_of",
        "math.isfinite(row.value) and ", "",
        (f"{_UNIT}/test_frontier.py",),
    ),
    Break(
        "unknown-examples-paired", "tasks.evaluation.comparing.provenance", "same_examples",
        "sampled is not None and ", "",
        (f"{_UNIT}/comparing/test_provenance.py",),
    ),
    Break(
        "noise-beats-vanilla", "tasks.evaluation.report.selection", "is_faster",
        "interval[0] if interval", "interval[1] if interval",
        (f"{_UNIT}/report/test_recommendation.py",),
    ),
    Break(
        "slow-on-test-deployed", "tasks.evaluation.report.candidates", "_objection",
        'status.speed == "open"', 'status.speed == "never"',
        (f"{_UNIT}/report/test_recommendation.py",),
    ),
    Break(
        "contradicted-not-marked", "tasks.evaluation.report.marks", "mark_of",
        'return Mark("contradicted", f"contradicted: loses', 'return Mark("open", f"contradicted: loses',
        (f"{_UNIT}/report/test_page.py",),
    ),
    Break(
        "contradicted-without-a-word", "tasks.evaluation.report.figures.lettered", "_record",
        'name = f"{one.letter} contradicted" if one.contradicted else one.letter', "name = one.letter",
        (f"{_UNIT}/report/test_pareto_figure.py",),
    ),
    Break(
        "name-over-a-mark", "tasks.evaluation.report.figures.labels", "sides",
        "side = next(free, first)", "side = first",
        (f"{_UNIT}/report/test_labels.py",),
    ),
    Break(
        "seeds-of-one-arm", "tasks.evaluation.report.arms_text", "_points",
        "result.drafter == drafter", "True",
        (f"{_UNIT}/report/test_basis.py",),
    ),
    Break(
        "outputs-beside-those-of-another-split", "tasks.evaluation.report.basis", "outputs_sentence",
        "if split == summary.split else", "if split != summary.split else",
        (f"{_UNIT}/report/test_basis.py",),
    ),
    Break(
        "headline-from-validation", "tasks.evaluation.report.selection", "reported",
        "if point.test else", "if not point.test else",
        (f"{_UNIT}/report/test_headline.py",),
    ),
    Break(
        "gain-called-a-cost", "tasks.evaluation.report.headline", "cost_text",
        "'gains' if difference > 0", "'gains' if difference < 0",
        (f"{_UNIT}/report/test_headline.py",),
    ),
    Break(
        "test-numbers-from-validation", "tasks.evaluation.report.points", "SweepPoints.add",
        "if row.split == REPORTED_ON}", "if row.split == CHOSEN_ON}",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "first-row-of-a-point-counts", "tasks.evaluation.report.points", "latest",
        "for row in rows}", "for row in reversed(list(rows))}",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "perplexity-shifted", "tasks.evaluation.perplexity", "chunks",
        "piece[1:] for piece", "piece[:-1] for piece",
        ("tests/unit/evaluation/test_perplexity.py",),
    ),
    Break(
        "timed-tokens-not-compared", "tasks.evaluation.sweeping.point_evaluator", "PointEvaluator.time",
        "mismatches = count_mismatches(point, generations, outputs, split, self.pair)", "mismatches = 0",
        (f"{_UNIT}/sweeping/test_token_check.py::test_a_native_loop_that_drifts_from_the_replay_fails_its_point",),
    ),
    Break(
        "drift-tolerated", "tasks.evaluation.sweeping.token_check", "_tolerated",
        "return guarantee is TokenGuarantee.NONE", "return True",
        (f"{_UNIT}/sweeping/test_token_check.py::test_a_difference_names_point_example_position_and_both_tokens",),
    ),
    Break(
        "other-version-read", "tasks.evaluation.results.codec", "parse",
        "if version != VERSION:", "if False:",
        (f"{_UNIT}/results/test_rows.py",),
    ),
    Break(
        "rows-of-other-work-kept", "tasks.evaluation.results.row_file", "RowFile.__init__",
        " if row.fingerprint == fingerprint", "",
        (f"{_UNIT}/results/test_rows.py",),
    ),
    Break(
        "unfinished-line-read", "tasks.evaluation.results.rows", "read_rows",
        "if not is_json(lines[-1]):", "if False:",
        (f"{_UNIT}/results/test_rows.py",),
    ),
    Break(
        "points-chosen-on-test", "tasks.evaluation.report.points", "SweepPoints.add",
        "rows if row.split == CHOSEN_ON]", "rows if row.split == REPORTED_ON]",
        (f"{_UNIT}/report/test_summary.py",),
    ),
)  # fmt: skip
