"""Breaks of sweeps: plans, replay, timing, rows, several processes."""

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
        "rounds-of-a-killed-sweep-lost", "tasks.evaluation.sweeping.point_evaluator", "PointEvaluator.time",
        "[] if earlier is None else earlier.rounds or []", "[]",
        (f"{_UNIT}/sweeping/test_point_evaluator.py",),
    ),
    Break(
        "changed-test-set-keeps-its-rows", "tasks.sweep", "measure_tests",
        "[paths.split(split.name)]", "[]",
        ("tests/unit/sweep/test_beyond_the_grid.py::test_further_test_sets_are_measured_beside_the_main_one",),
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
        "examples-of-other-processes-lost", "tasks.evaluation.sweeping.replaying", "ReplayedGrid.extend",
        "self.outputs[index].extend(following.outputs[index])", "pass",
        (f"{_UNIT}/sweeping/test_fan_out.py",),
    ),
    Break(
        "failures-of-other-processes-lost", "tasks.evaluation.sweeping.replaying", "ReplayedGrid.extend",
        "self.errors[index] = following.errors[index]", "pass",
        (f"{_UNIT}/sweeping/test_fan_out.py",),
    ),
    Break(
        "cost-ratios-kept-from-other-processes", "tasks.evaluation.sweeping.fan_out", "_open",
        "pair.cost_ratios.update(cost_ratios)", "pass",
        (f"{_UNIT}/sweeping/test_fan_out.py",),
    ),
    Break(
        "decoded-elsewhere-and-lost", "tasks.evaluation.sweeping.decoding_ahead", "decode_points",
        "decoder.keep(point, text)", "pass",
        (f"{_UNIT}/sweeping/test_fan_out.py",),
    ),
    Break(
        "worker-with-other-files", "tasks.sweep_work", "load_pair_elsewhere",
        "if files_fingerprint(loaded) != files:", "if not files:",
        ("tests/unit/test_sweep_work.py",),
    ),
    Break(
        "decoded-while-timing", "tasks.evaluation.sweeping.runner", "SweepRunner._decode_ahead",
        "if self._fan_out.size > 1 and waiting:", "if not waiting:",
        (f"{_UNIT}/sweeping/test_fan_out.py",),
    ),
    Break(
        "twins-across-methods", "tasks.evaluation.sweeping.replaying", "duplicates",
        "(points[index].method, outputs[index].behaviour)", '("", outputs[index].behaviour)',
        (f"{_UNIT}/sweeping/test_replaying.py::test_points_of_two_methods_are_no_duplicates",),
    ),
    Break(
        "behaviour-of-the-last-example", "tasks.evaluation.sweeping.outputs", "Outputs.add",
        "self.behaviour += hash", "self.behaviour = hash",
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
        "timed-tokens-not-compared", "tasks.evaluation.sweeping.point_evaluator", "PointEvaluator._mismatches",
        "found = count_mismatches(point, generations, outputs, split, self.pair)", "found = 0",
        (f"{_UNIT}/sweeping/test_token_check.py::test_a_native_loop_that_drifts_from_the_replay_fails_its_point",),
    ),
    Break(
        "drift-tolerated", "tasks.evaluation.sweeping.token_check", "_tolerated",
        "return guarantee is TokenGuarantee.NONE", "return True",
        (f"{_UNIT}/sweeping/test_token_check.py::test_a_difference_names_point_example_position_and_both_tokens",),
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
        "gains-make-up-for-losses", "tasks.evaluation.sweeping.hypotheses", "_losses",
        " if after > before", "",
        (f"{_UNIT}/sweeping/test_hypotheses.py",),
    ),
    Break(
        "valid-threshold-never-tested", "tasks.evaluation.sweeping.runner", "_chosen",
        "*(row for row in valid if row is not None)", "",
        ("tests/unit/sweep/test_beyond_the_grid.py::test_the_valid_threshold_of_calm_is_measured_on_test_although_no_choice_names_it",),
    ),
    Break(
        "further-temperature-decoded-at-the-sweep-s-own", "tasks.sweep", "sweep",
        "asked = request.at(temperature)", "asked = request",
        ("tests/unit/sweep/test_beyond_the_grid.py::test_further_temperatures_are_swept_beside_vanilla_at_the_same_one",),
    ),
    Break(
        "temperatures-share-their-rows", "tasks.evaluation.sweeping.temperatures", "measure_temperatures",
        "rows-{split.name}.jsonl", "rows-validation.T.jsonl",
        ("tests/unit/sweep/test_beyond_the_grid.py::test_further_temperatures_are_swept_beside_vanilla_at_the_same_one",),
    ),
)  # fmt: skip
