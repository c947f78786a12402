"""Records how a model's outputs compare with outputs that need no model, and names what that says against the model.

A large model that gives one output for everything is fast to imitate, and every speed-up over it is worthless. Neither counts
of kept outputs nor speed-ups show it; the comparison here does.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.statistics import Interval

COLLAPSED_SHARE = 0.5
"""A model has collapsed where one output has at least this share of the inputs and twice the share of any reference."""
DISTINCT_SHARE = 0.1
"""A model has also collapsed where it has fewer distinct outputs than this share of the distinct references."""
_LENGTHS = (0.5, 2.0)
"""Words of the outputs over words of the references, beyond which a length is worth a warning."""
_SHOWN = 40
"""Characters of an output in a sentence."""
BASELINE_NAMES = {"constant": "giving one constant output", "copy": "copying the source"}


@dataclass(frozen=True, kw_only=True)
class TrivialBaseline:
    """Outputs that need no model, on the same examples."""

    name: str
    """`constant`: one text for every input; `copy`: the source itself."""
    text: str = ""
    """The constant output."""
    quality: float
    """By the task's metric, in points."""
    difference: float
    """Quality of the model minus that of the baseline, in points."""
    difference_interval: Interval
    """95 %, paired."""


@dataclass(frozen=True, kw_only=True)
class OutputCheck:
    """A model's outputs for some held-out inputs, beside references and trivial baselines."""

    metric: str
    examples: int
    quality: float
    """By the task's metric, in points."""
    distinct: int
    """Different outputs."""
    distinct_references: int
    """Different first references."""
    most_common: str
    """The most frequent output."""
    most_common_count: int
    most_common_reference_count: int
    """Examples with the most frequent first reference."""
    length_ratio: float | None
    """Words of all outputs over words of all first references; None where those have no word."""
    baselines: list[TrivialBaseline]

    @property
    def distinct_share(self) -> float:
        """Distinct outputs over examples."""
        return self.distinct / self.examples


def against_teacher(check: OutputCheck, model: str = "the large model") -> list[str]:
    """Return what speaks against learning from a model, or measuring a speed-up over it; empty where nothing does.

    Each entry is a clause without a full stop, for a warning or a verdict.
    """
    found = []
    if _has_collapsed(check):
        text = check.most_common if len(check.most_common) <= _SHOWN else f"{check.most_common[: _SHOWN - 3]}..."
        share = check.most_common_count / check.examples
        found.append(
            f"{model} gives {check.distinct} distinct output{'s' if check.distinct > 1 else ''} for {check.examples} inputs, "
            f"{text!r} for {share:.0%} of them, where the references have {check.distinct_references}"
        )
    for baseline in check.baselines:
        if baseline.difference_interval[0] <= 0:
            low, high = baseline.difference_interval
            found.append(
                f"{model} is not better than {BASELINE_NAMES[baseline.name]}, beyond the 95 % interval: {check.quality:.2f} "
                f"against {baseline.quality:.2f} points, difference {baseline.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            )
    return found


def length_warning(check: OutputCheck, model: str = "the large model") -> list[str]:
    """Return a clause where outputs are far shorter or longer than the references; otherwise nothing."""
    ratio = check.length_ratio
    if ratio is None or _LENGTHS[0] <= ratio <= _LENGTHS[1]:
        return []
    return [f"the outputs of {model} have {ratio:.2f} times as many words as the references"]


def described(check: OutputCheck) -> str:
    """Return the check as one line: quality beside the baselines', distinct outputs, length."""
    beside = ", ".join(f"{one.name} {one.quality:.2f}" for one in check.baselines)
    length = "" if check.length_ratio is None else f", {check.length_ratio:.2f} times the references' words"
    return (
        f"{check.metric} {check.quality:.2f} on {check.examples} held-out inputs ({beside}), "
        f"{check.distinct_share:.0%} of the outputs distinct{length}"
    )


def _has_collapsed(check: OutputCheck) -> bool:
    same = check.most_common_count >= COLLAPSED_SHARE * check.examples
    unlike = check.most_common_count >= 2 * check.most_common_reference_count
    few = check.distinct < DISTINCT_SHARE * check.distinct_references
    return (same and unlike) or few
