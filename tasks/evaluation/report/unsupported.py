"""Reasons against recommending anything: a large model that is no teacher makes every speed-up over it worthless."""

from __future__ import annotations

from tasks.evaluation.report.formatting import interval_text, metric_name
from tasks.evaluation.results.pair import against_teacher
from tasks.evaluation.results.summary import Recommendation, Summary
from tasks.paths import ARMS


def reasons_against(summary: Summary) -> list[str]:
    """Return what speaks against any recommendation for this pair, a clause each; empty where nothing does.

    Args:
        summary: with vanilla and pairs; all comparisons are of the validation split.
    """
    checks = [check for arm in ARMS if (check := summary.pairs.of(arm).outputs) is not None]
    clauses = [clause for check in checks for clause in against_teacher(check)]
    return [*dict.fromkeys(clauses), *_small_is_as_good(summary)]


def unsupported(reasons: list[str]) -> Recommendation:
    """Return the recommendation to deploy nothing, with the reasons."""
    text = (
        "On validation, "
        + "; ".join(reasons)
        + ". A speed-up over such a large model says nothing about a useful one, so no point of the sweeps is recommended."
    )
    changes = [
        "Look at the large model's outputs (the examples below, and its card), train it further or on other data, or take "
        "another one; then run the pipeline again."
    ]
    headline = (
        "These models support no recommendation: the large model is not better than something cheaper, so a speed-up over it "
        "is worth nothing."
    )
    return Recommendation(headline=headline, text=text, changes=changes, against=reasons)


def _small_is_as_good(summary: Summary) -> list[str]:
    """A clause for each small model alone that is not worse than the large one beyond its interval, where that is known."""
    found = []
    for arm, small in summary.vanilla.small_models():
        interval = small.quality_difference_interval
        if interval is not None and interval[1] >= 0:
            difference = f"{small.quality - summary.vanilla.large.quality:+.2f}{interval_text(interval, '+')}"
            found.append(
                f"the large model is not better than the {arm} small model alone, which differs from it by {difference} "
                f"{metric_name(summary.metric)} points"
            )
    return found
