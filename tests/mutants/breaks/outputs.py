"""Breaks of what is said about outputs: teachers that are none, loops, differences, what is kept."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_TEACHER = (f"{_UNIT}/test_teacher.py",)
_BASELINES = (f"{_UNIT}/evaluation/test_trivial_baselines.py",)

BREAKS = (
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
)  # fmt: skip
