"""Breaks of the metric perplexity: texts, who scores them, the direction of quality, and what such a task refuses."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_SCORING = (f"{_UNIT}/decoding/test_given_text.py",)
_LIKELIHOOD = (f"{_UNIT}/evaluation/scoring/test_likelihood.py",)
_SWEEP = (f"{_UNIT}/evaluation/sweeping/test_given_text.py",)
_TASK = (f"{_UNIT}/test_consistency.py",)

BREAKS = (
    Break(
        "all-tokens-scored-by-the-large-model", "tasks.decoding.given_text", "score",
        "known.log_q[index] if proposer == SMALL else known.log_p[index]", "known.log_p[index]",
        _SCORING,
    ),
    Break(
        "given-draft-reads-the-next-confidence", "tasks.decoding.given_text", "score",
        "known.confidence[index], known.entropy[index]", "known.confidence[-1], known.entropy[index]",
        _SCORING,
    ),
    Break(
        "given-text-ends-at-its-end-token", "tasks.decoding.given_text", "_endless",
        "other.end_token, other.end_tokens = -1, frozenset()", "pass",
        _SCORING,
    ),
    Break(
        "perplexity-is-better-when-higher", "tasks.evaluation.metrics", "points_of",
        "-value if name == PERPLEXITY else value", "value",
        (*_LIKELIHOOD, *_SWEEP),
    ),
    Break(
        "perplexity-gradient-in-tokens-forgotten", "tasks.evaluation.scoring.likelihood", "quality_gradients",
        "-by_nats * nats / tokens", "0 * by_nats",
        _LIKELIHOOD,
    ),
    Break(
        "impossible-text-averaged", "tasks.evaluation.scoring.likelihood", "likelihood_statistics",
        "not math.isfinite(value) or -value > _MOST_NATS * count", "False",
        (*_LIKELIHOOD, *_SWEEP),
    ),
    Break(
        "end-token-scored", "tasks.evaluation.sweeping.given_text", "given_tokens",
        "row[row[0] == start : -1]", "row[row[0] == start :]",
        _SWEEP,
    ),
    Break(
        "timed-scores-never-compared", "tasks.evaluation.sweeping.given_text", "first_difference",
        "own != other or not math.isclose(value, wanted, rel_tol=0, abs_tol=_TOLERANCE)", "False",
        _SWEEP,
    ),
    Break(
        "rollback-on-given-text", "tasks.perplexity_task", "_point_problem",
        "settings.rollback_threshold < math.inf", "False",
        _TASK,
    ),
    Break(
        "perplexity-of-another-temperature", "tasks.perplexity_task", "perplexity_problems",
        "sweep.sampling != SamplingSettings(temperature=1.0)", "False",
        _TASK,
    ),
    Break(
        "references-generated", "tasks.alignment.calibrating.labelling", "Labeller.label",
        'self._settings.texts == "references"', "False",
        (f"{_UNIT}/test_calibrate.py::test_references_are_labelled_with_predictions_alone",),
    ),
    Break(
        "passages-overlap", "tasks.corpora.passages", "passages",
        "len(words) - size + 1, size)", "len(words) - size + 1, half)",
        (f"{_UNIT}/corpora/test_file_formats.py",),
    ),
)  # fmt: skip
