"""chrF (Popović, 2015): the F2-score of character 1- to 6-grams, in points, equal to sacrebleu's with its default settings.

Statistics are cached by text and references, so that points of a sweep, which share most texts, share the work.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ORDER = 6
_BETA = 2.0
_REMEMBERED = 1 << 15

_Statistics = tuple[int, ...]
"""For each order: n-grams of the text, of the reference, and of both."""


def chrf_of(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]]) -> float:
    """Corpus chrF in points.

    Args:
        hypotheses: one text for each example, at least one.
        references: one or more texts for each example; the one that the hypothesis is nearest to counts.
    """
    pairs = zip(hypotheses, references, strict=True)
    sums = np.sum([_example(text, tuple(right)) for text, right in pairs], axis=0)
    return _f_score([int(value) for value in sums])


@functools.cache
def chrf_signature(references: int) -> str:
    """sacrebleu's signature of this chrF, for examples with at most so many references."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    metric.corpus_score(["a"], [["a"]] * references)
    return str(metric.get_signature())


@functools.lru_cache(maxsize=_REMEMBERED)
def _example(hypothesis: str, references: tuple[str, ...]) -> _Statistics:
    own = _ngrams(hypothesis)
    return max((_matches(own, _reference_ngrams(text)) for text in references), key=_f_score)


@functools.lru_cache(maxsize=_REMEMBERED)
def _reference_ngrams(text: str) -> list[Counter[str]]:
    return _ngrams(text)


def _ngrams(text: str) -> list[Counter[str]]:
    """The character n-grams of a text without its white space, by order."""
    joined = "".join(text.split())
    return [Counter([joined[at : at + n] for at in range(len(joined) - n + 1)]) for n in range(1, _ORDER + 1)]


def _matches(own: list[Counter[str]], reference: list[Counter[str]]) -> _Statistics:
    found: list[int] = []
    for ours, theirs in zip(own, reference, strict=True):
        # An order that the reference is too short for does not count, whatever the hypothesis has.
        total = ours.total() if theirs else 0
        found += (total, theirs.total(), sum(min(count, theirs[ngram]) for ngram, count in ours.items() if ngram in theirs))
    return tuple(found)


def _f_score(statistics: Sequence[int]) -> float:
    """F2 of mean precision and mean recall, over the orders that both texts have."""
    orders = [statistics[at : at + 3] for at in range(0, len(statistics), 3)]
    known = [(matched / own, matched / theirs) for own, theirs, matched in orders if own and theirs]
    if not known:
        return 0.0
    precision, recall = (sum(values) / len(known) for values in zip(*known, strict=True))
    weighted = _BETA**2 * precision + recall
    return 100 * (1 + _BETA**2) * precision * recall / weighted if weighted else 0.0
