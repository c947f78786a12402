"""The outputs of a split as texts with their statistics, each distinct output once: points of a sweep share most of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.corpora.example import Example
from tasks.evaluation.chrf import chrf_of, chrf_signature
from tasks.evaluation.metrics import metric_of, texts_to_match
from tasks.evaluation.quality import quality_difference, sentence_scores, value_of
from tasks.evaluation.repetition import is_looping
from tasks.evaluation.results.rows import LengthBand, OutputDetails, OutputStatistics, WorstOutput
from tasks.evaluation.sweeping.outputs import Split

_BANDS = 3
_WORST = 5
"""Outputs that a timed row shows for losing most."""


class Hypothesis(NamedTuple):
    """One output."""

    text: str
    tokens: int
    """End token included."""
    words: int
    looping: bool
    cut_off: bool


class Hypotheses:
    """Makes outputs texts, and remembers each distinct one."""

    def __init__(self, detokenise: Callable[[Sequence[int]], str], ends: Collection[int]) -> None:
        """Take what makes a text of tokens, and the tokens that end an output."""
        self._detokenise, self._ends = detokenise, frozenset(ends)
        self._known: dict[tuple[int, ...], Hypothesis] = {}

    def of(self, outputs: Sequence[Sequence[int]]) -> list[Hypothesis]:
        """Return the hypotheses of outputs, token by token."""
        known, found = self._known, []
        for tokens in map(tuple, outputs):
            one = known.get(tokens)
            if one is None:
                one = known[tokens] = self._make(tokens)
            found.append(one)
        return found

    def _make(self, tokens: tuple[int, ...]) -> Hypothesis:
        text = self._detokenise(tokens)
        ended = bool(tokens) and tokens[-1] in self._ends
        return Hypothesis(text, len(tokens), len(text.split()), is_looping(tokens), not ended)


def statistics_of(
    found: Sequence[Hypothesis], vanilla: Sequence[Hypothesis], examples: Sequence[Example], metric: str
) -> OutputStatistics:
    """Count outputs beside vanilla large's and the references, all by example; the metric says what a reference is."""
    tokens, words = sum(one.tokens for one in vanilla), 0
    exact = differs = 0
    for own, other, example in zip(found, vanilla, examples, strict=True):
        references = texts_to_match(example.references, metric)
        words += _nearest_length(own.words, references)
        exact += own.text in references
        differs += own.text != other.text
    return OutputStatistics(
        looping=sum(one.looping for one in found),
        cut_off=sum(one.cut_off for one in found),
        empty=sum(not one.words for one in found),
        exact=exact,
        differs=differs,
        length_ratio=sum(one.words for one in found) / words if words else None,
        vanilla_length_ratio=sum(one.tokens for one in found) / tokens if tokens else None,
    )


def details_of(
    found: Sequence[Hypothesis],
    vanilla: Sequence[Hypothesis],
    split: Split,
    metric: str,
    samples: int,
    seed: int,
) -> OutputDetails:
    """Return chrF, quality by the length of the source, and what outputs lose against vanilla large's, the worst in full.

    Args:
        found: The point's outputs by example.
        vanilla: The large model's.
        split: The examples.
        metric: The task's.
        samples: Bootstrap resamples of the intervals.
        seed: Of the resamples.
    """
    references = [example.references for example in split.examples]
    texts, others = [one.text for one in found], [one.text for one in vanilla]
    chrf = metric_of(metric).name == "bleu"
    losses = _losses(texts, others, references, metric)
    return OutputDetails(
        chrf=chrf_of(texts, references) if chrf else None,
        chrf_signature=chrf_signature(max(map(len, references))) if chrf else None,
        by_length=_by_length(texts, others, split, metric, samples, seed),
        loss_share=_share(losses, len(texts)),
        worst=_worst(losses, texts, others, split),
    )


def _nearest_length(words: int, references: Sequence[str]) -> int:
    """Words of the reference that is nearest in length; of equally near ones the shorter, as in BLEU."""
    if len(references) == 1:
        return len(references[0].split())
    return min((len(text.split()) for text in references), key=lambda length: (abs(length - words), length))


def _by_length(
    texts: Sequence[str], others: Sequence[str], split: Split, metric: str, samples: int, seed: int
) -> list[LengthBand]:
    lengths = [len(source) for source in split.sources]
    bands = []
    for band in np.array_split(np.argsort(lengths, kind="stable"), _BANDS):
        if not len(band):
            continue
        own, other = [texts[index] for index in band], [others[index] for index in band]
        references = [split.examples[index].references for index in band]
        difference, interval = quality_difference(own, other, references, metric, samples, seed)
        bands.append(
            LengthBand(
                shortest=lengths[band[0]],
                longest=lengths[band[-1]],
                examples=len(band),
                quality=value_of(own, references, metric),
                difference=difference,
                difference_interval=interval,
            )
        )
    return bands


def _losses(
    texts: Sequence[str], others: Sequence[str], references: Sequence[tuple[str, ...]], metric: str
) -> dict[int, float]:
    """Points that outputs lose against vanilla's, by example; without those that lose none."""
    different = [index for index, (own, other) in enumerate(zip(texts, others, strict=True)) if own != other]
    wanted = [references[index] for index in different]
    own = sentence_scores([texts[index] for index in different], wanted, metric)
    other = sentence_scores([others[index] for index in different], wanted, metric)
    return {index: after - before for before, after, index in zip(own, other, different, strict=True) if after > before}


def _share(losses: Mapping[int, float], examples: int) -> float:
    """The mean loss over all examples, in [0, 1]."""
    # A perfect sentence BLEU may be slightly more than 100 in floating point.
    return sum(min(loss / 100, 1.0) for loss in losses.values()) / examples


def _worst(losses: Mapping[int, float], texts: Sequence[str], others: Sequence[str], split: Split) -> list[WorstOutput]:
    return [
        WorstOutput(
            example=index,
            source=split.examples[index].source,
            references=list(split.examples[index].references),
            vanilla=others[index],
            output=texts[index],
            loss=round(loss, 3),
        )
        for index, loss in sorted(losses.items(), key=lambda item: (-item[1], item[0]))[:_WORST]
    ]
