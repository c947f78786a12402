"""Quality of generated text: BLEU and ROUGE in points from 0 to 100, with a bootstrap interval.

BLEU is Papineni et al., 2002, by `sacrebleu` (tokenizer 13a, mixed case, exponential smoothing); ROUGE is Lin, 2004,
by `rouge-score` (F-measure, Porter stemmer). With several references for an
example, BLEU clips against all of them and ROUGE takes the best.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.metrics import METRICS
from tasks.evaluation.statistics import Interval, percentile_interval, resampled_sums

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

ROUGES = tuple(name for name in METRICS if name.startswith("rouge"))
_NGRAMS = 4
_BLEU_COUNTS = 2 + 2 * _NGRAMS
_REMEMBERED = 1 << 16
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Quality:
    """The quality of a list of hypotheses."""

    metric: str
    """The task's metric, one of `METRICS`."""
    value: float
    """The metric over all examples, in points."""
    interval: Interval
    """95 % percentile bootstrap interval of `value`."""
    scores: dict[str, float]
    """Every metric that was computed, `metric` among them, in points."""
    signature: str
    """sacrebleu's signature: how BLEU was computed. It is printed beside every BLEU."""
    resampled: NDArray[np.float64] = field(compare=False, repr=False)
    """`value` on each bootstrap resample of the examples, `[samples]`, for paired differences."""
    statistics: NDArray[np.generic] = field(compare=False, repr=False)
    """`example_statistics` of the metric, `[examples, values]`."""

    def minus(self, other: Quality) -> Interval:
        """The 95 % interval of `value` minus that of `other`, in points; both on the same examples, samples and seed.

        The interval is far narrower than that of either quality, because hard examples are hard for both.
        """
        return percentile_interval(self.resampled - other.resampled)


def score(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str, samples: int, seed: int) -> Quality:
    """Scores `hypotheses` by `metric` and by the metrics that are usually reported beside it.

    With BLEU that is ROUGE-L alone; with a ROUGE it is BLEU and all of `ROUGES`.

    Args:
        hypotheses: one text for each example.
        references: one or more reference texts for each example; their number may differ between examples.
        metric: one of `METRICS`; it gets the interval.
        samples: number of bootstrap resamples.
        seed: of the resamples; hypotheses for the same examples are resampled alike.

    Raises:
        ValueError: unknown metric, unequal lengths, no example, or an example without a reference.
    """
    _check(hypotheses, references, metric)
    rouges = _rouges(metric)
    bleu = bleu_of(bleu_statistics(hypotheses, references).sum(axis=0))
    means = _rouge_table(hypotheses, references, rouges).mean(axis=0).tolist()
    scores = {"bleu": bleu, **dict(zip(rouges, means, strict=True))}
    statistics = example_statistics(hypotheses, references, metric)
    resampled = values_of(resampled_sums(statistics, samples, seed), len(hypotheses))
    signature = _signature(tuple(map(len, references)))
    return Quality(metric, scores[metric], percentile_interval(resampled), scores, signature, resampled, statistics)


def value_of(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> float:
    """`metric` alone, in points, without an interval; arguments and errors are those of `score`."""
    _check(hypotheses, references, metric)
    if metric == "bleu":
        return bleu_of(bleu_statistics(hypotheses, references).sum(axis=0))
    return float(_rouge_table(hypotheses, references, (metric,)).mean())


def sentence_scores(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> list[float]:
    """`metric` of each example by itself, in points; BLEU is smoothed exponentially, over the orders that a text has."""
    from sacrebleu.metrics.bleu import BLEU

    if metric != "bleu":
        return [float(row[0]) for row in _rouge_table(hypotheses, references, (metric,))]
    found = []
    for counts in (_bleu_example(text, tuple(right)) for text, right in zip(hypotheses, references, strict=True)):
        matched, total = list(counts[2 : 2 + _NGRAMS]), list(counts[2 + _NGRAMS :])
        score = BLEU.compute_bleu(matched, total, counts[0], counts[1], smooth_method="exp", effective_order=True)
        found.append(float(score.score))
    return found


def quality_difference(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[tuple[str, ...]],
    metric: str,
    samples: int,
    seed: int,
) -> tuple[float, Interval]:
    """`metric` of `hypotheses` minus that of `others`, in points, with its 95 % paired bootstrap interval.

    Arguments and errors are those of `score`.
    """
    statistics = [example_statistics(texts, references, metric) for texts in (hypotheses, others)]
    both = [values_of(resampled_sums(one, samples, seed), len(references)) for one in statistics]
    difference = value_of(hypotheses, references, metric) - value_of(others, references, metric)
    return difference, percentile_interval(both[0] - both[1])


def _rouges(metric: str) -> tuple[str, ...]:
    return ("rougeL",) if metric == "bleu" else ROUGES


def example_statistics(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str
) -> NDArray[np.int32] | NDArray[np.float64]:
    """What determines `metric` on any set of these examples, `[examples, values]`: summed over them, it gives `values_of`.

    For BLEU these are the ten counts of `bleu_statistics`, int32; for a ROUGE its F-measure in points, float64.
    """
    if metric == "bleu":
        return bleu_statistics(hypotheses, references).astype(np.int32)
    rouges = _rouges(metric)
    return _rouge_table(hypotheses, references, rouges)[:, [rouges.index(metric)]]


def values_of(sums: NDArray[np.float64], examples: int) -> NDArray[np.float64]:
    """The metric for many rows of summed `example_statistics`, `[rows, values]`, each over so many examples: `[rows]`."""
    return bleus_of(sums) if sums.shape[1] == _BLEU_COUNTS else sums[:, 0] / examples


def gradients_of(sums: NDArray[np.float64], examples: int) -> NDArray[np.float64]:
    """Derivatives of `values_of` in the sums, `[rows, values]`; an order of n-grams without a match counts as constant."""
    if sums.shape[1] != _BLEU_COUNTS:
        return np.full(sums.shape, 1.0 / examples)
    gradients = np.zeros(sums.shape)
    counts = sums[:, 2:]
    plain = np.tile(sums[:, 2 : 2 + _NGRAMS] > 0, 2)
    signs = np.repeat([1.0, -1.0], _NGRAMS)
    np.divide(signs / _NGRAMS, counts, out=gradients[:, 2:], where=plain)
    short = (sums[:, 0] < sums[:, 1]) & (sums[:, 0] > 0)
    length, reference = sums[short, 0], sums[short, 1]
    gradients[short, 0], gradients[short, 1] = reference / length**2, -1.0 / length
    return gradients * bleus_of(sums)[:, None]


def _rouge_table(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], names: tuple[str, ...]
) -> NDArray[np.float64]:
    """F-measures, `[examples, names]`, in points."""
    pairs = zip(hypotheses, references, strict=True)
    return np.array([_rouge_example(text, tuple(right), names) for text, right in pairs], dtype=np.float64)


def _check(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> None:
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; it must be one of {', '.join(METRICS)}")
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} examples; one for each, and at least one")
    for index, texts in enumerate(references):
        if not texts:
            raise ValueError(f"example {index} has no reference; it needs at least one")


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """The counts that determine corpus BLEU, `[examples, 10]`, int64: system length, closest reference length, matched 1- to
    4-grams, all 1- to 4-grams. They are additive over examples."""
    rows = [_bleu_example(text, tuple(right)) for text, right in zip(hypotheses, references, strict=True)]
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


@functools.lru_cache(maxsize=4)
def _signature(references: tuple[int, ...]) -> str:
    """sacrebleu's signature of a corpus BLEU over examples with these numbers of references."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    # sacrebleu marks missing references by `None`, but only while scoring.
    streams: list[Any] = [[None if stream >= count else "" for count in references] for stream in range(max(references))]
    metric.corpus_score([""] * len(references), streams)
    return str(metric.get_signature())


@functools.cache
def _sentence_bleu() -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    # Only the counts are read, which this flag does not change; without it sacrebleu warns at every sentence.
    return BLEU(effective_order=True)


# Points of a sweep give the same text for most examples, so a cache of examples makes all but the first point cheap.
@functools.lru_cache(maxsize=_REMEMBERED)
def _bleu_example(hypothesis: str, references: tuple[str, ...]) -> tuple[int, ...]:
    found = _sentence_bleu().sentence_score(hypothesis, list(references))
    return (found.sys_len, found.ref_len, *found.counts, *found.totals)


@functools.lru_cache(maxsize=_REMEMBERED)
def _rouge_example(hypothesis: str, references: tuple[str, ...], names: tuple[str, ...]) -> tuple[float, ...]:
    """The F-measures of one example in points, the best reference for each metric."""
    best = _rouge_scorer(names).score_multi([split_sentences(text) for text in references], split_sentences(hypothesis))
    return tuple(100.0 * best[name].fmeasure for name in names)


def forget() -> None:
    """Clears the caches of scored examples, for benchmarks of the scoring."""
    _bleu_example.cache_clear()
    _rouge_example.cache_clear()


def split_sentences(text: str) -> str:
    """`text` with one sentence a line, as ROUGE-Lsum expects; the other metrics read a line break as a space."""
    return _SENTENCE_END.sub("\n", text.strip())


@functools.cache
def _rouge_scorer(names: tuple[str, ...]) -> Any:
    # Importing rouge-score takes more than a second because it imports nltk.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(names), tokenizer=_StemmingTokenizer())


class _StemmingTokenizer:
    """rouge-score's tokenizer with a cached stemmer: stemming took two thirds of the time."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer
        from rouge_score import tokenize

        self._tokenize = tokenize.tokenize
        self.stem = functools.lru_cache(maxsize=_REMEMBERED)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The stemmed words of `text`, in lower case."""
        stems: list[str] = self._tokenize(text, self)
        return stems
