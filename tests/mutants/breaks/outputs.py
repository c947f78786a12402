"""Breaks of what is said about outputs: teachers that are none, loops, differences, what is kept."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_TEACHER = (f"{_UNIT}/test_teacher.py",)
_BASELINES = (f"{_UNIT}/evaluation/test_trivial_baselines.py",)
_HYPOTHESES = (f"{_UNIT}/evaluation/sweeping/test_hypotheses.py",)

BREAKS = (
    Break(
        "swapped-columns-unseen", "tasks.corpora.checks.columns", "Columns.swapped",
        "< -self._least", "< -4 * self._least",
        ("tests/unit/corpora/checks/test_columns.py",),
    ),
    Break(
        "cut-off-without-the-end-token", "tasks.corpora.checks.measures", "_lengths",
        "length > limit", "length - 1 > limit",
        ("tests/unit/corpora/checks/test_report.py",),
    ),
    Break(
        "overlap-by-source-alone", "tasks.corpora.checks.measures", "_in_train",
        "(key, _key(text)) in pairs", "key in {one for one, _ in pairs}",
        ("tests/unit/corpora/checks/test_report.py",),
    ),
    Break(
        "a-senseless-corpus-is-trained-on", "tasks.prepare", "report_corpus",
        "for error in errors(report):", "for error in errors(report)[:0]:",
        ("tests/unit/test_prepare.py",),
    ),
    Break(
        "checkpoints-not-opened-before-training", "tasks.prepare", "main",
        "check_starts(task.models.large, task.models.small)", "pass",
        ("tests/unit/test_prepare.py",),
    ),
    Break(
        "layers-of-a-published-model-not-checked", "tasks.starts", "check_starts",
        'check_layers(_without_weights(found["large"]), small.from_large)', "pass",
        ("tests/unit/test_starts.py",),
    ),
    Break(
        "files-of-an-earlier-tokenizer-stay", "tasks.prepare", "write_tokenizer",
        "with atomic_folder(folder) as partial:", "for partial in [folder]:",
        ("tests/unit/test_prepare.py",),
    ),
    Break(
        "damaged-rows-of-a-data-set-read", "tasks.corpora.hub.reading", "_ExampleMaker.example",
        'if any("\\0" in text', 'if False and any("\\0" in text',
        ("tests/unit/corpora/test_hub.py",),
    ),
    Break(
        "collapsed-teacher-not-noticed", "tasks.evaluation.results.output_check", "_has_collapsed",
        "return (same and unlike) or few", "return False",
        _BASELINES,
    ),
    Break(
        "trivial-baseline-by-the-difference-alone", "tasks.evaluation.results.output_check", "against_teacher",
        "baseline.difference_interval[0] <= 0", "baseline.difference <= 0",
        _BASELINES,
    ),
    Break(
        "collapsed-teacher-recommended", "tasks.evaluation.report.recommendation", "recommend",
        "if reasons := reasons_against(summary):", "if (reasons := reasons_against(summary)) and False:",
        _TEACHER,
    ),
    Break(
        "small-model-not-compared", "tasks.evaluation.report.unsupported", "_small_is_as_good",
        "interval[1] >= 0", "interval[0] > 0",
        _TEACHER,
    ),
    Break(
        "loops-not-counted", "tasks.evaluation.sweeping.hypotheses", "Hypotheses._make",
        "is_looping(tokens)", "False",
        _HYPOTHESES,
    ),
    Break(
        "shorter-loops-counted", "tasks.evaluation.repetition", "_repeats",
        "max(LEAST_TOKENS, LEAST_REPEATS * period)", "LEAST_REPEATS * period",
        (f"{_UNIT}/evaluation/test_repetition.py",),
    ),
    Break(
        "cut-off-mistaken-for-looping", "tasks.evaluation.sweeping.hypotheses", "statistics_of",
        "sum(one.cut_off for one in found)", "sum(one.looping for one in found)",
        _HYPOTHESES,
    ),
    Break(
        "differing-share-against-the-reference", "tasks.evaluation.sweeping.hypotheses", "statistics_of",
        "own.text != other.text", "own.text not in example.references",
        _HYPOTHESES,
    ),
    Break(
        "worst-outputs-are-the-best", "tasks.evaluation.sweeping.hypotheses", "_worst",
        "(-item[1], item[0])", "(item[1], item[0])",
        _HYPOTHESES,
    ),
    Break(
        "hypotheses-of-other-work-kept", "tasks.evaluation.results.hypothesis_file", "_read",
        ".get(_WORK) == fingerprint.encode()", ".get(_WORK)",
        (f"{_UNIT}/evaluation/results/test_hypothesis_file.py",),
    ),
    Break(
        "worst-outputs-mix-splits", "tasks.evaluation.report.outputs", "worst_by_split",
        "for one in summary.worst if one.split == split", "for one in summary.worst",
        (f"{_UNIT}/evaluation/report/test_outputs.py",),
    ),
    Break(
        "tuned-to-the-slowest", "tasks.generate.choosing", "_tuned",
        "best = min(fitting", "best = max(fitting",
        (f"{_UNIT}/generate/test_choosing.py",),
    ),
    Break(
        "half-a-character-is-written", "tasks.generate.printing", "TextWriter._write",
        "not whole and written.endswith(_UNFINISHED)", "False",
        (f"{_UNIT}/generate/test_printing.py",),
    ),
    Break(
        "watched-text-is-written-twice", "tasks.generate.printing", "TextWriter._write",
        "self._shown = max(self._shown, len(written))", "self._shown = 0",
        (f"{_UNIT}/generate/test_printing.py",),
    ),
    Break(
        "nobody-watches-the-fast-executors", "tasks.decoding.execution", "executor_for",
        " and parts.watch is None", "",
        (f"{_UNIT}/decoding/test_native_loop.py::test_one_model_alone_is_watched_token_by_token",),
    ),
    Break(
        "a-copy-counts-as-alignment", "tasks.evaluation.report.arms", "effect_of",
        " and _drafts_by_model(point)", "",
        (f"{_UNIT}/evaluation/report/test_arms.py",),
    ),
)  # fmt: skip
