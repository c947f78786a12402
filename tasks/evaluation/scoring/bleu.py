"""BLEU in points from 0 to 100, as counts that are additive over examples (Papineni et al., 2002), by `sacrebleu`.

A tokenizer of sacrebleu, mixed case, exponential smoothing; with several references for an example, BLEU clips against all of
them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.scoring.tokenizers import require_bleu_tokenizer

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

_NGRAMS = 4
COUNTS = 2 + 2 * _NGRAMS
"""Counts of an example, see `bleu_statistics`."""
_REMEMBERED = 1 << 16


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], tokenizer: str = "13a"
) -> NDArray[np.int64]:
    """The counts that determine corpus BLEU, `[examples, 10]`, int64: system length, closest reference length, matched 1- to
    4-grams, all 1- to 4-grams. They are additive over examples."""
    rows = [_bleu_example(text, tuple(right), tokenizer) for text, right in zip(hypotheses, references, strict=True)]
    return np.array(rows, dtype=np.int64)


def bleu_of(sums: Sequence[float] | NDArray[np.float64]) -> float:
    """Corpus BLEU in points from summed `bleu_statistics`, shape `[10]`."""
    from sacrebleu.metrics.bleu import BLEU

    counts = [int(value) for value in sums]
    matched, total = counts[2 : 2 + _NGRAMS], counts[2 + _NGRAMS :]
    return BLEU.compute_bleu(matched, total, counts[0], counts[1], smooth_method="exp").score


def bleus_of(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corpus BLEU for many rows of sums, `[samples, 10]`: a sweep has a thousand resamples for every point.

    Where every order has a match nothing is smoothed, and BLEU follows its definition (Papineni et al., 2002); sacrebleu
    computes the other rows.
    """
    matched, total = sums[:, 2 : 2 + _NGRAMS], sums[:, 2 + _NGRAMS :]
    plain = np.asarray((matched > 0).all(axis=1))
    scores = np.array([0.0 if simple else bleu_of(row) for simple, row in zip(plain, sums, strict=True)])
    brevity = np.minimum(0.0, 1.0 - sums[plain, 1] / sums[plain, 0])
    scores[plain] = 100.0 * np.exp(np.log(matched[plain] / total[plain]).mean(axis=1) + brevity)
    return scores


def bleu_gradients(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Derivatives of `bleus_of` in the sums, `[rows, 10]`; an order of n-grams without a match counts as constant."""
    gradients = np.zeros(sums.shape)
    counts = sums[:, 2:]
    plain = np.tile(sums[:, 2 : 2 + _NGRAMS] > 0, 2)
    signs = np.repeat([1.0, -1.0], _NGRAMS)
    np.divide(signs / _NGRAMS, counts, out=gradients[:, 2:], where=plain)
    short = (sums[:, 0] < sums[:, 1]) & (sums[:, 0] > 0)
    length, reference = sums[short, 0], sums[short, 1]
    gradients[short, 0], gradients[short, 1] = reference / length**2, -1.0 / length
    return gradients * bleus_of(sums)[:, None]


def sentence_bleus(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], tokenizer: str = "13a") -> list[float]:
    """BLEU of each example by itself, in points, smoothed exponentially, over the orders that a text has."""
    from sacrebleu.metrics.bleu import BLEU

    found = []
    for counts in bleu_statistics(hypotheses, references, tokenizer).tolist():
        matched, total = counts[2 : 2 + _NGRAMS], counts[2 + _NGRAMS :]
        score = BLEU.compute_bleu(matched, total, counts[0], counts[1], smooth_method="exp", effective_order=True)
        found.append(float(score.score))
    return found


@functools.lru_cache(maxsize=4)
def signature(references: tuple[int, ...], tokenizer: str = "13a") -> str:
    """sacrebleu's signature of a corpus BLEU over examples with these numbers of references."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenizer)
    # sacrebleu marks missing references by `None`, but only while scoring.
    streams: list[Any] = [[None if stream >= count else "" for count in references] for stream in range(max(references))]
    metric.corpus_score([""] * len(references), streams)
    return str(metric.get_signature())


@functools.cache
def _sentence_bleu(tokenizer: str) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    require_bleu_tokenizer(tokenizer)  # sacrebleu would download what is missing

    # Only the counts are read, which this flag does not change; without it sacrebleu warns at every sentence.
    return BLEU(effective_order=True, tokenize=tokenizer)


# Points of a sweep give the same text for most examples, so a cache of examples makes all but the first point cheap.
@functools.lru_cache(maxsize=_REMEMBERED)
def _bleu_example(hypothesis: str, references: tuple[str, ...], tokenizer: str) -> tuple[int, ...]:
    found = _sentence_bleu(tokenizer).sentence_score(hypothesis, list(references))
    return (found.sys_len, found.ref_len, *found.counts, *found.totals)


def forget() -> None:
    """Clear the cache of scored examples, for benchmarks of the scoring."""
    _bleu_example.cache_clear()
