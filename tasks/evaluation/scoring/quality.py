"""Quality of outputs by any of the metrics, in points from 0 to 100, or of given text, with a bootstrap interval.

BLEU and the perplexity of given texts are determined by values that are summed over examples. Every other metric is the mean of
one number for each example, by which examples are also compared in pairs. The last part compares a model's outputs with outputs
that need no model.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.corpora.example import Example
from tasks.errors import InputError
from tasks.evaluation.scoring import metrics
from tasks.evaluation.scoring.metrics import Floats, MetricSettings, References, Texts, metric_of
from tasks.evaluation.scoring.statistics import Interval, percentile_interval, resampled_sums


@dataclass(frozen=True)
class Quality:
    """The quality of a list of hypotheses."""

    metric: str
    """The full name of the task's metric (`tasks.evaluation.scoring.metrics`)."""
    value: float
    """The metric over all examples, in points, of which more is better (`metrics.points_of`)."""
    interval: Interval
    """95 % percentile bootstrap interval of `value`."""
    scores: dict[str, float]
    """Every metric that was computed, the task's among them, in points by name; a perplexity as it is, less being better."""
    signature: str
    """How the metric was computed: sacrebleu's signature of BLEU, the like of a ROUGE or a perplexity; empty for others."""
    resampled: Floats = field(compare=False, repr=False)
    """`value` on each bootstrap resample of the examples, `[samples]`, for paired differences."""
    statistics: NDArray[np.generic] = field(compare=False, repr=False)
    """`example_statistics` of the metric, `[examples, values]`."""

    def minus(self, other: Quality) -> Interval:
        """The 95 % interval of `value` minus that of `other`, in points; both on the same examples, samples and seed.

        The interval is far narrower than that of either quality, because hard examples are hard for both.
        """
        return percentile_interval(self.resampled - other.resampled)


def score(hypotheses: Texts, references: References, metric: str, samples: int, seed: int) -> Quality:
    """Score `hypotheses` by `metric` and by the metrics that are usually reported with it (`metrics.METRICS`).

    Args:
        hypotheses: one text for each example, or several: a text of each example, then the next one of each.
        references: one or more reference texts for each example. For `pass_at_1`, a program and then its tests.
        metric: a full name; its metric gets the interval. `pass_at_1` runs the hypotheses.
        samples: number of bootstrap resamples.
        seed: of the resamples; hypotheses for the same examples are resampled alike.

    Raises:
        ValueError: unknown metric, unequal lengths, no example, or an example without a reference or a test.
    """
    examples, texts = len(references), max(1, len(hypotheses) // max(1, len(references)))
    references = [*references] * texts
    _check(hypotheses, references, metric)
    settings = metric_of(metric)
    means = _means(settings)
    table = dict(zip(means, _table(hypotheses, references, means, settings).mean(axis=0).tolist(), strict=True))
    if "bleu" in metrics.METRICS[settings.name]:
        counts = metrics.bleu_statistics(hypotheses, references, settings.bleu_tokenizer)
        table = {"bleu": metrics.bleu_of(counts.sum(axis=0)), **table}
    signature = ""
    if settings.name == "bleu":
        signature = metrics.bleu_signature(tuple(map(len, references[:examples])), settings.bleu_tokenizer)
    elif settings.name in metrics.ROUGES:
        signature = metrics.rouge_signature(settings.rouge_tokenizer)
    statistics = example_statistics(hypotheses, references, metric)
    if texts > 1:  # those of an example are resampled together
        statistics = statistics.reshape(texts, examples, -1).mean(axis=0)
    return _quality(metric, table[settings.name], table, signature, statistics, samples, seed)


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
    statistics = metrics.likelihood_statistics(log_likelihoods, tokens)
    [value] = values_of(statistics.sum(axis=0, keepdims=True), len(tokens)).tolist()
    table = {metrics.PERPLEXITY: metrics.points_of(metrics.PERPLEXITY, value)}
    # How it was computed, like sacrebleu's signature of a BLEU.
    signature = f"tokens:{sum(tokens)}|given:the second part of each text|distribution:temperature 1"
    return _quality(metrics.PERPLEXITY, value, table, signature, statistics, samples, seed)


def _quality(
    metric: str, value: float, table: dict[str, float], signature: str, statistics: NDArray[np.generic], samples: int, seed: int
) -> Quality:
    resampled = values_of(resampled_sums(statistics, samples, seed), len(statistics))
    return Quality(metric, value, percentile_interval(resampled), table, signature, resampled, statistics)


def value_of(hypotheses: Texts, references: References, metric: str) -> float:
    """`metric` alone, in points, without an interval; arguments and errors are those of `score`."""
    _check(hypotheses, references, metric)
    settings = metric_of(metric)
    if settings.name == "bleu":
        return metrics.bleu_of(metrics.bleu_statistics(hypotheses, references, settings.bleu_tokenizer).sum(axis=0))
    return float(_table(hypotheses, references, (settings.name,), settings).mean())


def example_statistics(hypotheses: Texts, references: References, metric: str) -> NDArray[np.int32] | Floats:
    """What determines `metric` on any set of these examples, `[examples, values]`: summed over them, it gives `values_of`.

    For BLEU these are the ten counts of `bleu_statistics`, int32; for any other metric of outputs the example's own points,
    float64.
    """
    settings = metric_of(metric)
    if settings.name == "bleu":
        return metrics.bleu_statistics(hypotheses, references, settings.bleu_tokenizer)
    means = _means(settings)
    return _table(hypotheses, references, means, settings)[:, [means.index(settings.name)]]


def values_of(sums: Floats, examples: int) -> Floats:
    """The metric for many rows of summed `example_statistics`, `[rows, values]`, each over so many examples: `[rows]`."""
    if sums.shape[1] == metrics.LIKELIHOOD_SUMS:
        return metrics.likelihood_qualities(sums)
    return metrics.bleus_of(sums) if sums.shape[1] == metrics.BLEU_COUNTS else sums[:, 0] / examples


def gradients_of(sums: Floats, examples: int) -> Floats:
    """Derivatives of `values_of` in the sums, `[rows, values]`; an order of n-grams without a match counts as constant."""
    if sums.shape[1] == metrics.LIKELIHOOD_SUMS:
        return metrics.likelihood_gradients(sums)
    return metrics.bleu_gradients(sums) if sums.shape[1] == metrics.BLEU_COUNTS else np.full(sums.shape, 1.0 / examples)


def worthless(statistics: NDArray[np.generic]) -> Floats | None:
    """`example_statistics` `[examples, values]` of outputs of the same length with nothing right; None for given texts."""
    if statistics.shape[1] == metrics.LIKELIHOOD_SUMS:
        return None
    found = np.zeros(statistics.shape)
    if statistics.shape[1] == metrics.BLEU_COUNTS:
        unmatched = [0, 1, *range(metrics.BLEU_COUNTS - metrics.NGRAMS, metrics.BLEU_COUNTS)]  # lengths, and n-grams in all
        found[:, unmatched] = statistics[:, unmatched]
    return found


def _means(settings: MetricSettings) -> tuple[str, ...]:
    """The metrics that are computed together with one, as means over the examples; its own is among them unless it is BLEU."""
    return tuple(name for name in metrics.METRICS[settings.name] if name != "bleu")


def _table(hypotheses: Texts, references: References, names: tuple[str, ...], settings: MetricSettings) -> Floats:
    """Metrics that are means over examples, `[examples, names]`, in points."""
    if not hypotheses:
        return np.empty((0, len(names)))
    if names[0] in metrics.ROUGES:
        return metrics.rouge_table(hypotheses, references, names, settings.rouge_tokenizer)
    if names[0] == metrics.PROGRAMS:
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # each waits for a process
            return np.array([[100.0 * one] for one in threads.map(metrics.SCORES[metrics.PROGRAMS], hypotheses, references)])
    pairs = zip(hypotheses, references, strict=True)
    return np.array([[100.0 * metrics.SCORES[name](text, right) for name in names] for text, right in pairs], dtype=np.float64)


def _check(hypotheses: Texts, references: References, metric: str) -> None:
    name = metric_of(metric).name
    if name == metrics.PERPLEXITY:
        raise InputError("the metric perplexity is of given texts, and these are outputs; choose another metric for them")
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} examples; one for each, and at least one")
    for index, texts in enumerate(references):
        if len(texts) < (2 if name == metrics.PROGRAMS else 1):
            what = "test; give a program and then its tests as references" if texts else "reference; it needs at least one"
            raise ValueError(f"example {index} has no {what}")


# Outputs that need no model: one constant text, and a copy of the source.

COLLAPSED_SHARE = 0.5
"""A model has collapsed where one output has at least this share of the inputs and twice the share of any reference."""
DISTINCT_SHARE = 0.1
"""A model has also collapsed where it has fewer distinct outputs than this share of the distinct references."""
_LENGTHS = (0.5, 2.0)
"""Words of the outputs over words of the references, beyond which a length is worth a warning."""
_SHOWN = 40
"""Characters of an output in a sentence."""
BASELINE_NAMES = {"constant": "giving one constant output", "copy": "copying the source"}
_CANDIDATES = 8
"""Most frequent references among which the constant output is chosen."""
_TRIED_ON = 100
"""Examples on which the constant output is chosen."""


@dataclass(frozen=True, kw_only=True)
class TrivialBaseline:
    """Outputs that need no model, on the same examples."""

    name: str
    """`constant`: one text for every input; `copy`: the source itself."""
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


def against_teacher(check: OutputCheck, model: str = "the large model") -> list[str]:
    """Return what speaks against learning from a model, or measuring a speed-up over it; empty where nothing does.

    Each entry is a clause without a full stop, for a warning or a verdict.
    """
    found = []
    same = check.most_common_count >= COLLAPSED_SHARE * check.examples
    unlike = check.most_common_count >= 2 * check.most_common_reference_count
    if (same and unlike) or check.distinct < DISTINCT_SHARE * check.distinct_references:
        text = check.most_common if len(check.most_common) <= _SHOWN else f"{check.most_common[: _SHOWN - 3]}..."
        share = check.most_common_count / check.examples
        outputs = f"{check.distinct} distinct output{'s' if check.distinct > 1 else ''} for {check.examples} inputs"
        frequent = f"{text!r} for {share:.0%} of them"
        found.append(f"{model} gives {outputs}, {frequent}, where the references have {check.distinct_references}")
    for baseline in check.baselines:
        if baseline.difference_interval[0] <= 0:
            low, high = baseline.difference_interval
            points = f"{check.quality:.2f} against {baseline.quality:.2f} points on {check.examples} inputs"
            difference = f"difference {baseline.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            found.append(f"{model} is not shown to be better than {BASELINE_NAMES[baseline.name]}: {points}, {difference}")
    return found


def length_warning(check: OutputCheck, model: str = "the large model") -> list[str]:
    """Return a clause where outputs are far shorter or longer than the references; otherwise nothing."""
    ratio = check.length_ratio
    if ratio is None or _LENGTHS[0] <= ratio <= _LENGTHS[1]:
        return []
    return [f"the outputs of {model} have {ratio:.2f} times as many words as the references"]


_LOOP = 12
"""Words of the shortest loop."""


def loops(text: str) -> bool:
    """Whether a text repeats itself: a group of 1 to 16 words three times or more in a row, 12 words at least."""
    words = text.split()
    return any(
        longest_echo(words, period) >= max(_LOOP, 3 * period) - period for period in range(1, min(16, len(words) // 3) + 1)
    )


def longest_echo(words: Sequence[object], distance: int) -> int:
    """How many words in a row, at most, equal those `distance` places before them."""
    runs = itertools.groupby(map(operator.eq, words[distance:], words))
    return max((len(list(run)) for equal, run in runs if equal), default=0)


def described(check: OutputCheck) -> str:
    """Return the check as one line: quality beside the baselines', distinct outputs, length."""
    baselines = ", ".join(f"{one.name} {one.quality:.2f}" for one in check.baselines)
    length = "" if check.length_ratio is None else f", {check.length_ratio:.2f} times the references' words"
    distinct = f"{check.distinct / check.examples:.0%} of the outputs distinct"
    return f"{check.metric} {check.quality:.2f} on {check.examples} held-out inputs ({baselines}), {distinct}{length}"


def check_outputs(
    outputs: Sequence[str], examples: Sequence[Example], metric: str, samples: int = 1000, seed: int = 0
) -> OutputCheck:
    """Compare outputs with the references, with a constant output and with copies of the sources.

    The constant is the best of the most frequent references and the most frequent output. It is chosen on some of the examples
    that it is then measured on, which favours it a little; a model worth learning from is far above either baseline.

    Args:
        outputs: One text for each example.
        examples: Sources with at least one reference each.
        metric: One of `tasks.evaluation.scoring.metrics.METRICS`.
        samples: Bootstrap resamples of the intervals.
        seed: Of the resamples.

    Raises:
        ValueError: as `tasks.evaluation.scoring.quality.score`.
    """
    references = [example.references for example in examples]
    given, first = Counter(outputs), Counter(texts[0] for texts in references)
    [(most_common, most_common_count)] = given.most_common(1)
    tried = references[:: max(1, len(references) // _TRIED_ON)]
    candidates = dict.fromkeys([*(text for text, _ in first.most_common(_CANDIDATES)), most_common])
    constant = max(candidates, key=lambda text: value_of([text] * len(tried), tried, metric))
    reference_words = sum(len(texts[0].split()) for texts in references)
    own, baselines = score(outputs, references, metric, samples, seed), list[TrivialBaseline]()
    for name, texts in (("constant", [constant] * len(examples)), ("copy", [one.source for one in examples])):
        its = score(texts, references, metric, samples, seed)
        difference, interval = own.value - its.value, own.minus(its)
        baselines.append(TrivialBaseline(name=name, quality=its.value, difference=difference, difference_interval=interval))
    return OutputCheck(
        metric=metric,
        examples=len(examples),
        quality=own.value,
        distinct=len(given),
        distinct_references=len(first),
        most_common=most_common,
        most_common_count=most_common_count,
        most_common_reference_count=max(first.values()),
        length_ratio=sum(len(text.split()) for text in outputs) / reference_words if reference_words else None,
        baselines=baselines,
    )
