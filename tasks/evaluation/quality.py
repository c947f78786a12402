"""Quality of generated text by any of the metrics, in points from 0 to 100, or of given text, with a bootstrap interval.

BLEU is determined by counts that are summed over examples (`scoring/bleu.py`), and so is the perplexity of given texts
(`scoring/likelihood.py`). Every other metric is the mean of one number for each example, by which examples are also compared in
pairs: ROUGE, exact match, F1, numeric answers, programs that pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.errors import InputError
from tasks.evaluation.metrics import PERPLEXITY, PROGRAMS, ROUGES, MetricSettings, metric_of, points_of, reported_with
from tasks.evaluation.scoring import answers, bleu, likelihood, programs, rouge
from tasks.evaluation.statistics import Interval, percentile_interval, resampled_sums


@dataclass(frozen=True)
class Quality:
    """The quality of a list of hypotheses."""

    metric: str
    """The full name of the task's metric (`tasks.evaluation.metrics`)."""
    value: float
    """The metric over all examples, in points, of which more is better (`metrics.points_of`)."""
    interval: Interval
    """95 % percentile bootstrap interval of `value`."""
    scores: dict[str, float]
    """Every metric that was computed, the task's among them, in points by name; a perplexity as it is, less being better."""
    signature: str
    """How the metric was computed: sacrebleu's signature of BLEU, the like of a ROUGE or a perplexity; empty for others."""
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
    """Scores `hypotheses` by `metric` and by the metrics that are usually reported with it (`metrics.reported_with`).

    Args:
        hypotheses: one text for each example.
        references: one or more reference texts for each example; their number may differ between examples. For `pass_at_1`,
            a program and then its tests.
        metric: a full name; its metric gets the interval. `pass_at_1` runs the hypotheses (see `scoring/programs.py`).
        samples: number of bootstrap resamples.
        seed: of the resamples; hypotheses for the same examples are resampled alike.

    Raises:
        ValueError: unknown metric, unequal lengths, no example, or an example without a reference or a test.
    """
    _check(hypotheses, references, metric)
    settings = metric_of(metric)
    names = reported_with(settings.name)
    means = tuple(name for name in names if name != "bleu")
    table = dict(zip(means, _table(hypotheses, references, means, settings).mean(axis=0).tolist(), strict=True))
    if "bleu" in names:
        counts = bleu.bleu_statistics(hypotheses, references, settings.bleu_tokenizer)
        table = {"bleu": bleu.bleu_of(counts.sum(axis=0)), **table}
    statistics = example_statistics(hypotheses, references, metric)
    resampled = values_of(resampled_sums(statistics, samples, seed), len(hypotheses))
    value, interval = table[settings.name], percentile_interval(resampled)
    return Quality(metric, value, interval, table, _signature(references, settings), resampled, statistics)


def score_likelihoods(log_likelihoods: Sequence[float], tokens: Sequence[int], samples: int, seed: int) -> Quality:
    """Quality of given texts: minus their perplexity, in points of perplexity, so that more is better as for every metric.

    Args:
        log_likelihoods: of each text, in nats.
        tokens: how many tokens each text has, at least one.
        samples: number of bootstrap resamples.
        seed: of the resamples; the same texts are resampled alike.

    Raises:
        ValueError: unequal lengths or no text.
        InfinitePerplexityError: a text is impossible, or nearly so.
    """
    statistics = likelihood.likelihood_statistics(log_likelihoods, tokens)
    resampled = values_of(resampled_sums(statistics, samples, seed), len(tokens))
    [value] = values_of(statistics.sum(axis=0, keepdims=True), len(tokens)).tolist()
    table = {PERPLEXITY: points_of(PERPLEXITY, value)}
    signature = likelihood.signature(sum(tokens))
    return Quality(PERPLEXITY, value, percentile_interval(resampled), table, signature, resampled, statistics)


def value_of(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> float:
    """`metric` alone, in points, without an interval; arguments and errors are those of `score`."""
    _check(hypotheses, references, metric)
    settings = metric_of(metric)
    if settings.name == "bleu":
        return bleu.bleu_of(bleu.bleu_statistics(hypotheses, references, settings.bleu_tokenizer).sum(axis=0))
    return float(_table(hypotheses, references, (settings.name,), settings).mean())


def sentence_scores(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> list[float]:
    """`metric` of each example by itself, in points; BLEU is smoothed exponentially, over the orders that a text has."""
    settings = metric_of(metric)
    if settings.name == "bleu":
        return bleu.sentence_bleus(hypotheses, references, settings.bleu_tokenizer)
    return [float(row[0]) for row in _table(hypotheses, references, (settings.name,), settings)]


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


def example_statistics(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str
) -> NDArray[np.int32] | NDArray[np.float64]:
    """What determines `metric` on any set of these examples, `[examples, values]`: summed over them, it gives `values_of`.

    For BLEU these are the ten counts of `bleu_statistics`, int32; for any other metric of outputs the example's own points,
    float64.
    """
    settings = metric_of(metric)
    if settings.name == "bleu":
        return bleu.bleu_statistics(hypotheses, references, settings.bleu_tokenizer).astype(np.int32)
    means = tuple(name for name in reported_with(settings.name) if name != "bleu")  # as in `score`, whose caches are read
    return _table(hypotheses, references, means, settings)[:, [means.index(settings.name)]]


def values_of(sums: NDArray[np.float64], examples: int) -> NDArray[np.float64]:
    """The metric for many rows of summed `example_statistics`, `[rows, values]`, each over so many examples: `[rows]`."""
    if sums.shape[1] == likelihood.SUMS:
        return likelihood.qualities_of(sums)
    return bleu.bleus_of(sums) if sums.shape[1] == bleu.COUNTS else sums[:, 0] / examples


def gradients_of(sums: NDArray[np.float64], examples: int) -> NDArray[np.float64]:
    """Derivatives of `values_of` in the sums, `[rows, values]`; an order of n-grams without a match counts as constant."""
    if sums.shape[1] == likelihood.SUMS:
        return likelihood.quality_gradients(sums)
    return bleu.bleu_gradients(sums) if sums.shape[1] == bleu.COUNTS else np.full(sums.shape, 1.0 / examples)


def forget() -> None:
    """Clears the caches of scored examples, for benchmarks of the scoring."""
    for module in (bleu, rouge, programs):
        module.forget()


def _signature(references: Sequence[tuple[str, ...]], settings: MetricSettings) -> str:
    if settings.name == "bleu":
        return bleu.signature(tuple(map(len, references)), settings.bleu_tokenizer)
    return rouge.signature(settings.rouge_tokenizer) if settings.name in ROUGES else ""


def _table(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], names: tuple[str, ...], settings: MetricSettings
) -> NDArray[np.float64]:
    """Metrics that are means over examples, `[examples, names]`, in points."""
    if names[0] in ROUGES:
        return rouge.rouge_table(hypotheses, references, names, settings.rouge_tokenizer)
    if names[0] == PROGRAMS:
        return programs.pass_table(hypotheses, references)
    return answers.answer_table(hypotheses, references, names)


def _check(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], metric: str) -> None:
    if metric_of(metric).name == PERPLEXITY:
        raise InputError("the metric perplexity is of given texts, and these are outputs; choose another metric for them")
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} examples; one for each, and at least one")
    for index, texts in enumerate(references):
        if not texts:
            raise ValueError(f"example {index} has no reference; it needs at least one")
