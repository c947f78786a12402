"""Compares a model's outputs with outputs that need no model: one constant text, and a copy of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tasks.corpora.example import Example
from tasks.evaluation.quality import quality_difference, value_of
from tasks.evaluation.results.pair import OutputCheck, TrivialBaseline

_CANDIDATES = 8
"""Most frequent references among which the constant output is chosen."""
_TRIED_ON = 100
"""Examples on which the constant output is chosen."""


def check_outputs(
    outputs: Sequence[str], examples: Sequence[Example], metric: str, samples: int = 1000, seed: int = 0
) -> OutputCheck:
    """Compare outputs with the references, with a constant output and with copies of the sources.

    The constant is the best of the most frequent references and the most frequent output. It is chosen on some of the examples
    that it is then measured on, which favours it a little; a model worth learning from is far above either baseline.

    Args:
        outputs: One text for each example.
        examples: Sources with at least one reference each.
        metric: One of `tasks.evaluation.metrics.METRICS`.
        samples: Bootstrap resamples of the intervals.
        seed: Of the resamples.

    Raises:
        ValueError: as `tasks.evaluation.quality.score`.
    """
    references = [example.references for example in examples]
    given, first = Counter(outputs), Counter(texts[0] for texts in references)
    [(most_common, most_common_count)] = given.most_common(1)
    constant = _best_constant([*(text for text, _ in first.most_common(_CANDIDATES)), most_common], references, metric)
    words = sum(len(texts[0].split()) for texts in references)

    def baseline(name: str, texts: Sequence[str], shown: str = "") -> TrivialBaseline:
        difference, interval = quality_difference(outputs, texts, references, metric, samples, seed)
        quality = value_of(texts, references, metric)
        return TrivialBaseline(name=name, text=shown, quality=quality, difference=difference, difference_interval=interval)

    return OutputCheck(
        metric=metric,
        examples=len(examples),
        quality=value_of(outputs, references, metric),
        distinct=len(given),
        distinct_references=len(first),
        most_common=most_common,
        most_common_count=most_common_count,
        most_common_reference_count=max(first.values()),
        length_ratio=sum(len(text.split()) for text in outputs) / words if words else None,
        baselines=[
            baseline("constant", [constant] * len(examples), constant),
            baseline("copy", [example.source for example in examples]),
        ],
    )


def _best_constant(candidates: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> str:
    tried = references[:: max(1, len(references) // _TRIED_ON)]
    return max(dict.fromkeys(candidates), key=lambda text: value_of([text] * len(tried), tried, metric))
