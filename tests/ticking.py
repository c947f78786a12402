"""A toy pair on a simulated clock, so that the cost of each model run is known exactly, and an evaluator for it."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.corpora.example import Example
from tasks.decoding.decoder import EncoderOutput, Rows, Step
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.evaluation.results.pair import Costs
from tasks.evaluation.results.rows import Timing
from tasks.evaluation.settings import MarginSettings, SweepSettings
from tasks.evaluation.sweep.clock import Lap, PointTimer, Start, Visit
from tasks.evaluation.sweep.grid import BASELINES, Drafter, SweepPoint
from tasks.evaluation.sweep.replay import Outputs, Split
from tasks.evaluation.sweep.rows import PointEvaluator
from tasks.evaluation.sweep.run import expected
from tasks.evaluation.timing import Expected
from tasks.models.settings import TextSettings
from tests.toys import END, VOCABULARY, Predict, Prefix, PrefixDecoder, random_table, toy_sources

LIMIT = 12


class Clock:
    """Simulated seconds: model runs advance them by their price times the machine's slowness at that moment."""

    def __init__(self, slowness: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.slowness = slowness

    def __call__(self) -> float:
        return self.now

    def spend(self, milliseconds: float) -> None:
        self.now += milliseconds / 1000 * self.slowness(self.now)


@dataclass(frozen=True)
class Price:
    """Milliseconds of a model's parts."""

    encode: float
    step: float
    position: float = 0.0
    """For each token of a run after its first."""


SMALL, LARGE = Price(2.0, 1.0), Price(5.0, 12.0, 0.5)


def costs_of(encode_small: float, encode_large: float, small_step: float, verify: dict[int, float], **more: Any) -> Costs:
    """The parts of decoding at these milliseconds."""
    return Costs(
        encode_small_ms=encode_small,
        encode_large_ms=encode_large,
        small_step_ms=small_step,
        verify_ms=verify,
        cost_ratio=small_step / verify[1],
        **more,
    )


class TickingDecoder(PrefixDecoder):
    """A decoder whose runs advance a simulated clock by their price; nothing else takes time."""

    def __init__(self, predict: Predict, name: str, clock: Clock, price: Price) -> None:
        super().__init__(predict, name)
        self.clock = clock
        self.price = price
        self.ran = 0
        """Forward runs so far."""

    def encode(self, sources: Rows) -> EncoderOutput:
        self.clock.spend(self.price.encode * len(sources))
        return super().encode(sources)

    def forward(self, tokens: Rows) -> Step:
        self.ran += 1
        self.clock.spend(self.price.step + self.price.position * (max(map(len, tokens)) - 1))
        return super().forward(tokens)


def ticking_pair(clock: Clock, *, shares_encoder: bool = False, agreement: float = 0.85) -> Pair:
    """Two random tables that agree on many tokens, but not on all."""
    likeness = {"agreement": agreement, "sharpness": 4.0, "end": 1.5}
    tables = [random_table(name, vocabulary=VOCABULARY, **likeness) for name in ("small", "large")]
    small = dataclasses.replace(SMALL, encode=LARGE.encode) if shares_encoder else SMALL
    return Pair(
        TickingDecoder(tables[0], "small", clock, small),
        TickingDecoder(tables[1], "large", clock, LARGE),
        shares_encoder=shares_encoder,
    )


class Words:
    """A tokenizer: the text of token 7 is "w7"; special tokens have no text."""

    eos_token_id = END

    def __call__(self, texts: list[str], *, max_length: int, truncation: bool) -> dict[str, Any]:
        words = [text.split()[: max_length - 1] for text in texts]
        return {"input_ids": [[*(int(word[1:]) for word in row), END] for row in words]}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in tokens if token > END)


def examples_of(pair: Pair, count: int, seed: int = 0) -> list[Example]:
    """Random sources; the reference is the large model's text, with one word changed in half of them."""
    words, found = Words(), []
    for number, source in enumerate(toy_sources(count, seed)):
        [text] = decode("vanilla_large", VanillaSettings(), pair, [source], Request(LIMIT))
        right = [2 if number % 2 and index == 1 else token for index, token in enumerate(text.tokens)]
        found.append(
            Example(words.decode(source, skip_special_tokens=True), (words.decode(right, skip_special_tokens=True) or "w2",))
        )
    return found


TOY_MARGINS = MarginSettings(no_loss=20.0, one_point=60.0, confidence=0.6)
"""With which a few examples suffice to choose by."""


def sweep_settings(**changed: Any) -> SweepSettings:
    """Settings of a fast sweep."""
    quick: dict[str, Any] = {
        "latency_examples": 4,
        "warmup_examples": 1,
        "bootstrap_samples": 100,
        "quality_batch": 4,
        "sample": 2,
        "margins": TOY_MARGINS,
        "latency_rounds": 1,
        "batch_sizes": (),
    }
    return SweepSettings(**(quick | changed))


def split_of(pair: Pair, sweep: SweepSettings, name: str = "validation", count: int = 8) -> Split:
    """A split of examples for the pair; two splits differ."""
    return Split(name, examples_of(pair, count, seed=len(name)), Words(), TextSettings(max_source_tokens=32), sweep)


ALIGNED = Drafter("aligned", 1)


def here(timer: PointTimer) -> Start:
    """Times in this process, where its starts are not compared."""
    return lambda: nullcontext(timer.lap)


class ToyEvaluator(PointEvaluator):
    """An evaluator of a pair that stays open, with a clock beside it."""

    timer: PointTimer

    def lap(self, point: SweepPoint, outputs: Outputs, split: Split) -> Lap | str:
        visit = Visit(ALIGNED, point, Expected(outputs.how, {example: outputs.tokens[example] for example in split.timed}))
        [lap] = self.timer.lap([visit], expected(self.vanilla(split), split), split, self.request, "")
        return lap

    def time(self, point: SweepPoint, outputs: Outputs, split: Split, earlier: Timing | None = None) -> Timing:
        """Another round of a point."""
        lap = self.lap(point, outputs, split)
        if isinstance(lap, str):
            raise RuntimeError(lap)
        return self.timing(lap, split, earlier)


def evaluator_of(
    pair: Pair, sweep: SweepSettings, request: Request | None = None, clock: Callable[[], float] = time.perf_counter
) -> ToyEvaluator:
    """An evaluator of a pair, timed by this clock."""
    evaluator = ToyEvaluator(lambda: pair, Words(), "bleu", request or Request(LIMIT), sweep)
    evaluator.timer = timer_of({ALIGNED: pair}, sweep, clock)
    return evaluator


def timer_of(pairs: Mapping[Drafter, Pair], sweep: SweepSettings, clock: Callable[[], float]) -> PointTimer:
    """What times points in this process, by this clock."""
    timer = PointTimer(pairs, sweep, "cpu")
    timer.clock = clock
    return timer


def break_after(pair: Pair, side: str, prefix: Prefix) -> None:
    """Let a model of the pair predict NaN after this prefix."""
    model = getattr(pair, side)
    sound = model.predict

    def predict(source: Prefix, text: Prefix) -> Tensor:
        logits: Tensor = sound(source, text)
        return torch.full_like(logits, math.nan) if text == prefix else logits

    model.predict = predict


def broken_pair(side: str, example: int, length: int) -> Pair:
    """A pair whose `side` breaks after some tokens of the small model's own text of one example."""
    pair, sweep = ticking_pair(Clock()), sweep_settings()
    text = evaluator_of(pair, sweep).decoded(BASELINES[1], split_of(pair, sweep)).tokens[example]
    break_after(pair, side, (0, *text[:length]))
    return pair
