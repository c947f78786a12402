"""Evaluate a point of a sweep: quality on the whole split, latency beside vanilla on a subset, raw counts."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tasks.corpora.example import Example
from tasks.decoding.decoder import TokenGuarantee
from tasks.decoding.generation import Counts, Detokenise, Generation, pieces_by_proposer
from tasks.decoding.method import Pair, Request
from tasks.decoding.registry import METHODS, ORACLES, build_method, decode_all
from tasks.evaluation.metrics import chrf_of, chrf_signature, metric_of, texts_to_match
from tasks.evaluation.mismatches import count_mismatches, guarantee_of
from tasks.evaluation.quality import OutputCheck, Quality, check_outputs, quality_difference, score, sentence_scores, value_of
from tasks.evaluation.results.rows import (
    DecodingCounts,
    DifferenceBounds,
    LengthBand,
    Outcome,
    OutputDetails,
    OutputStatistics,
    RowHeader,
    ShownExample,
    TimedRound,
    Timing,
    WorstOutput,
)
from tasks.evaluation.rounds import combined, speedup_interval
from tasks.evaluation.selection import grid_bounds, point_bounds
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import Costs
from tasks.evaluation.sweep.replay import Outputs, Split, collect_outputs
from tasks.evaluation.timing import measure, on_threads, synchronised_clock

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_EXAMPLES_SHOWN = 6
"""Examples whose texts a timed row holds."""


class PointEvaluator:
    """Evaluates points of one sweep with one pair of models."""

    def __init__(
        self, pair: Pair, tokenizer: PreTrainedTokenizerBase, metric: str, request: Request, sweep: SweepSettings, device: str
    ) -> None:
        self.pair = pair
        self.metric = metric
        self.request = request
        self.sweep = sweep
        self.clock = synchronised_clock(device)
        self._tokenizer = tokenizer
        # Points of a grid generate the same output for most examples.
        self._hypothesis = functools.cache(self._make_hypothesis)
        self._details: dict[tuple[str, int], OutputDetails] = {}
        self._qualities: dict[tuple[str, int], Quality] = {}
        self._vanilla: dict[str, tuple[Outputs, Quality]] = {}
        self._compared: dict[str, int] = {}

    def header(self, point: SweepPoint, split: Split, task: str, arm: str) -> RowHeader:
        """The part of a row that is known before anything is measured."""
        return RowHeader(
            task=task,
            arm=arm,
            split=split.name,
            method=point.method,
            settings=point.row_settings,
            lossless=METHODS[point.method].lossless,
            metric=self.metric,
            examples=len(split.examples),
            sampling=self.request.sampling,
        )

    def decoded(self, point: SweepPoint, split: Split) -> Outputs:
        """The point's outputs on the whole split, decoded in batches."""
        batch = self.sweep.quality_batch
        generations = decode_all(point.method, point.settings, self.pair, split.sources, self.request, batch)
        return collect_outputs("decoded", generations, split)

    def vanilla(self, split: Split) -> Outputs:
        """The outputs of the large model alone, decoded once for each split."""
        return self._vanilla_of(split)[0]

    def check_vanilla(self, split: Split) -> OutputCheck | None:
        """How the large model's outputs compare with trivial baselines; None where the model cannot run."""
        try:
            texts = self.texts(self.vanilla(split))
        except RuntimeError:  # the rows of the baselines report it
            return None
        return check_outputs(texts, split.examples, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)

    def compare(self, points: Sequence[SweepPoint], split: Split) -> None:
        """Announce the points among which a split chooses, so that their bounds are corrected for it."""
        self._compared[split.name] = sum(point.method not in ORACLES for point in points)

    def assess(self, outputs: Outputs, split: Split, *, lossless: bool = False) -> Outcome:
        """Quality, its difference from vanilla's, and counts; the lower bound of the difference has a share of the level.

        Args:
            outputs: of one point.
            split: the examples.
            lossless: whether they are vanilla's by construction (`is_vanillas_output`).
        """
        quality, (_, vanilla) = self._quality(outputs, split), self._vanilla_of(split)
        compared = self._compared.get(split.name)
        sampled = not self.request.sampling.greedy
        bounds = point_bounds(quality, vanilla, self.sweep.margins, compared, lossless=lossless, sampled=sampled)
        return self._outcome(outputs, split, quality, bounds)

    def assess_grid(self, points: Sequence[SweepPoint], outputs: Mapping[int, Outputs], split: Split) -> dict[int, Outcome]:
        """What `assess` gives for the replayed points of a grid, with lower bounds that hold for all of them at once."""
        _, vanilla = self._vanilla_of(split)
        qualities = {index: self._quality(one, split) for index, one in outputs.items()}
        compared = {index: one for index, one in qualities.items() if points[index].method not in ORACLES}
        bounds = grid_bounds(
            *(compared, vanilla, self.sweep.margins),
            lossless={index for index in compared if is_vanillas_output(points[index])},
            compared=self._compared.get(split.name, len(compared)),
            seed=self.sweep.seed,
        )
        return {index: self._outcome(outputs[index], split, quality, bounds.get(index)) for index, quality in qualities.items()}

    def _outcome(self, outputs: Outputs, split: Split, quality: Quality, bounds: DifferenceBounds | None) -> Outcome:
        return Outcome(
            how=outputs.how,
            quality=quality.scores,
            quality_interval=quality.interval,
            quality_difference_interval=quality.minus(self._vanilla_of(split)[1]),
            difference_bounds=bounds,
            signature=quality.signature,
            counts=counts_record(outputs.counts),
            outputs=self._statistics(outputs, split),
        )

    def texts(self, outputs: Outputs) -> list[str]:
        """The texts of outputs, by example."""
        return [one.text for one in self._hypotheses(outputs)]

    def details(self, outputs: Outputs, split: Split) -> OutputDetails:
        """What is measured of the outputs of timed points alone, since it takes longer than counting."""
        key = split.name, hash(tuple(outputs.tokens))
        if key not in self._details:
            both = self._with_vanilla(outputs, split)
            self._details[key] = details_of(*both, split, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)
        return self._details[key]

    def time(
        self, point: SweepPoint, outputs: Outputs, split: Split, costs: Costs | None, earlier: Timing | None = None
    ) -> Timing:
        """One round of latencies beside vanilla, combined with the earlier rounds; their breakdown by `costs`, and some texts.

        Raises:
            TimedTokensError: a timed call generated other tokens than the outputs, beyond what the runtimes allow.
        """
        # The methods are composed before the clock starts, so that only decoding is timed.
        method, vanilla = (self._timed_call(one, split) for one in (point, VANILLA))
        rounds = [] if earlier is None else earlier.rounds or []
        with on_threads(self.sweep.latency_threads):
            latencies = measure(
                method,
                vanilla,
                split.timed,
                warmup=self.sweep.warmup_examples,
                rng=random.Random(f"{self.sweep.seed} {point} {len(rounds)}"),  # noqa: S311 (an order, not a secret)
                clock=self.clock,
            )
        self._mismatches(VANILLA, [one for [one] in latencies.vanilla_outputs], self.vanilla(split), split)
        generations = [one for [one] in latencies.method_outputs]
        mismatches = self._mismatches(point, generations, outputs, split)
        if mismatches is not None:
            mismatches = max(mismatches, (earlier and earlier.timed_mismatches) or 0)
        rounds = [*rounds, TimedRound(latency_ms=_rounded(latencies.method), vanilla_latency_ms=_rounded(latencies.vanilla))]
        method_ms, vanilla_ms = combined(rounds)
        breakdown = None
        # Parts are known where every run was one of the two whole models: no layers or heads.
        whole = getattr(point.settings, "drafter", "small") not in ("early_layer", "heads") and not outputs.counts.layers
        if costs is not None and whole:
            breakdown = _time_breakdown(costs, outputs.timed(split), self.vanilla(split).timed(split), method_ms, vanilla_ms)
        return Timing(
            latency_ms=_rounded(method_ms),
            vanilla_latency_ms=_rounded(vanilla_ms),
            speedup=sum(vanilla_ms) / sum(method_ms),
            speedup_interval=speedup_interval(rounds, self.sweep.bootstrap_samples, self.sweep.seed),
            rounds=rounds,
            time_ms=breakdown,
            timed_mismatches=mismatches,
            shown=shown_examples(generations[:_EXAMPLES_SHOWN], self.vanilla(split), split, self._detokenise),
        )

    def _timed_call(self, point: SweepPoint, split: Split) -> Callable[[int], list[Generation]]:
        """What is timed of a point: decoding one example alone, by its number."""
        method, limit = build_method(point.method, point.settings, self.pair, self.request), self.request.max_new_tokens
        return lambda example: method.run([split.sources[example]], [example], limit)

    def _mismatches(self, point: SweepPoint, generations: Sequence[Generation], outputs: Outputs, split: Split) -> int | None:
        """Timed examples whose tokens are not those of the outputs; None where tokens are drawn, or must be equal and are."""
        if not self.request.sampling.greedy:
            return None
        found = count_mismatches(point, generations, outputs, split, self.pair)
        return None if guarantee_of(self.pair) is TokenGuarantee.EQUAL else found

    def _statistics(self, outputs: Outputs, split: Split) -> OutputStatistics | None:
        return statistics_of(*self._with_vanilla(outputs, split), split.examples, self.metric)

    def _vanilla_of(self, split: Split) -> tuple[Outputs, Quality]:
        if split.name not in self._vanilla:
            outputs = self.decoded(VANILLA, split)
            self._vanilla[split.name] = outputs, self._quality(outputs, split)
        return self._vanilla[split.name]

    def _with_vanilla(self, outputs: Outputs, split: Split) -> tuple[list[Hypothesis], list[Hypothesis]]:
        return self._hypotheses(outputs), self._hypotheses(self.vanilla(split))

    def _hypotheses(self, outputs: Outputs) -> list[Hypothesis]:
        return [self._hypothesis(tuple(tokens)) for tokens in outputs.tokens]

    def _make_hypothesis(self, tokens: tuple[int, ...]) -> Hypothesis:
        return hypothesis_of(tokens, self._detokenise, self.pair.large.end_tokens)

    def _quality(self, outputs: Outputs, split: Split) -> Quality:
        texts = tuple(self.texts(outputs))
        key = (split.name, hash(texts))
        if key not in self._qualities:
            references = [example.references for example in split.examples]
            self._qualities[key] = score(texts, references, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)
        return self._qualities[key]

    def _detokenise(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def is_vanillas_output(point: SweepPoint) -> bool:
    """Whether a point gives the output of the vanilla large model; a beam search gives that of another search."""
    return METHODS[point.method].lossless and "beam" not in point.method


def _time_breakdown(
    costs: Costs,
    ours: Sequence[Counts],
    vanilla: Sequence[Counts],
    method_ms: Sequence[float],
    vanilla_ms: Sequence[float],
) -> dict[str, float]:
    """Mean milliseconds of an example by part; `other` is the time that no measured part accounts for.

    The part times are scaled by the neighbouring vanilla runs, so that they reflect the machine's speed during this row.
    """
    pace = statistics.fmean(vanilla_ms) / statistics.fmean(sum(costs.parts(counts).values()) for counts in vanilla)
    parts = [costs.parts(counts) for counts in ours]
    means = {name: pace * statistics.fmean(part[name] for part in parts) for name in parts[0]}
    return {**means, "other": statistics.fmean(method_ms) - sum(means.values())}


def _rounded(milliseconds: Sequence[float]) -> list[float]:
    """To a tenth of a microsecond, which is below the noise of any call."""
    return [round(one, 4) for one in milliseconds]


def counts_record(counts: Counts) -> DecodingCounts:
    """Counts as rows hold them: `kept` by `drafted/kept`."""
    return DecodingCounts(
        **{
            **vars(counts),
            "verified": dict(sorted(counts.verified.items())),
            "kept": {f"{drafted}/{kept}": drafts for (drafted, kept), drafts in sorted(counts.kept.items())},
        }
    )


# Outputs as texts with their statistics, each distinct output once: points of a sweep share most of them.

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


def hypothesis_of(tokens: Sequence[int], detokenise: Detokenise, ends: Collection[int]) -> Hypothesis:
    """One output as a text with what is counted of it; `ends` are the tokens that end an output."""
    text = detokenise(tuple(tokens))
    return Hypothesis(text, len(tokens), len(text.split()), is_looping(tokens), not (tokens and tokens[-1] in ends))


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


# Outputs that run away: those in which a stretch of tokens repeats itself.

LONGEST_PERIOD = 16
"""Tokens of the longest group whose repetition is looked for."""
LEAST_TOKENS = 12
LEAST_REPEATS = 3


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether an output contains a loop.

    A loop is a stretch of at least 12 tokens in which a group of n tokens, 1 ≤ n ≤ 16, occurs at least 3 times in a row: one
    token 12 times, two tokens 6 times, three tokens 4 times, four to sixteen tokens 3 times. Where the stretch lies does not
    matter: a loop that an output leaves again is a loop.

    Args:
        tokens: The output, with or without its end token.
    """
    # A loop of 12 tokens has at most 4 different ones, so any loop has 8 repetitions of tokens; most outputs have fewer.
    if len(tokens) - len(set(tokens)) < LEAST_TOKENS - LEAST_TOKENS // LEAST_REPEATS:
        return False
    longest = min(LONGEST_PERIOD, len(tokens) // LEAST_REPEATS)
    return any(_repeats(tokens, period) for period in range(1, longest + 1))


def _repeats(tokens: Sequence[int], period: int) -> bool:
    """Whether a stretch that is long enough has this period."""
    needed = max(LEAST_TOKENS, LEAST_REPEATS * period) - period
    equal = 0
    for earlier, later in zip(tokens, tokens[period:], strict=False):
        equal = equal + 1 if earlier == later else 0
        if equal >= needed:
            return True
    return False


def shown_examples(generations: Sequence[Generation], vanilla: Outputs, split: Split, text: Detokenise) -> list[ShownExample]:
    """The first timed examples of a split.

    Args:
        generations: The point's, of the first timed examples.
        vanilla: The large model's outputs on the split.
        split: The examples.
        text: Makes a text of tokens.
    """
    return [
        ShownExample(
            source=split.examples[example].source,
            references=list(split.examples[example].references),
            vanilla=text(tuple(vanilla.tokens[example])),
            pieces=pieces_by_proposer(generation.tokens, generation.proposers, text),
            proposers=generation.proposers,
        )
        for example, generation in zip(split.timed, generations, strict=False)
    ]
