"""Latency measured in turn, and whether the timed calls gave the tokens that quality was measured on.

Each example is decoded by all that are compared, back to back in random order. Where the tokens of a timed call differ from the
expected ones, the top-2 logit margin of that place says whether the guarantee of the runtimes allows it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from tasks.decoding.decoder import MARGIN_TOLERANCE, TokenGuarantee, first_mismatch, top_two_margin
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair

if TYPE_CHECKING:  # a machine with a GPU may lack what a sweep needs
    from tasks.evaluation.sweep.grid import SweepPoint
    from tasks.evaluation.sweep.replay import Outputs, Split

Output = TypeVar("Output")
"""What decoding one example returns."""
Name = TypeVar("Name", bound=Hashable)


Clock = Callable[[], float]
"""Seconds."""


def synchronised_clock(device: str) -> Clock:
    """A clock in seconds that waits for the device to finish its queued work before each reading."""
    if device == "cpu":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def measure_in_turn(
    contenders: Mapping[Name, Callable[[int], Output]],
    examples: Sequence[int],
    *,
    warmup: int,
    rng: random.Random,
    clock: Clock,
) -> tuple[dict[Name, list[float]], dict[Name, list[Output]]]:
    """Time all contenders once on each example, in a random order.

    They run back to back, so a machine that slows down slows all of them and their ratios stand.

    Args:
        contenders: Each decodes the example of that number, alone.
        examples: Numbers of the timed examples.
        warmup: Examples that all decode untimed first.
        rng: Draws the order.
        clock: Seconds; see `synchronised_clock`.

    Returns:
        Of each contender the milliseconds and the outputs, in the order of the examples.
    """
    for example in examples[:warmup]:
        for decode in contenders.values():
            decode(example)
    times: dict[Name, dict[int, float]] = {name: {} for name in contenders}
    outputs: dict[Name, dict[int, Output]] = {name: {} for name in contenders}
    for example in rng.sample(list(examples), len(examples)):
        for name in rng.sample(list(contenders), len(contenders)):
            begun = clock()
            output = contenders[name](example)
            times[name][example] = 1000 * (clock() - begun)
            outputs[name][example] = output
    return (
        {name: [found[example] for example in examples] for name, found in times.items()},
        {name: [found[example] for example in examples] for name, found in outputs.items()},
    )


# Whether the timed calls gave the expected tokens.


class TimedTokensError(RuntimeError):
    """A timed call generated other tokens than the replay, or than the decoding that quality was measured on."""


def guarantee_of(pair: Pair) -> TokenGuarantee:
    """The weaker guarantee of the pair's two runtimes."""
    order = list(TokenGuarantee)
    return max((decoder.capabilities.tokens for decoder in (pair.small, pair.large)), key=order.index)


class Expected(NamedTuple):
    """The tokens that timed calls have to generate."""

    how: str
    """How they were made: `replayed`, `decoded` or `scored`."""
    tokens: Mapping[int, Sequence[int]]
    """By example."""


def count_mismatches(
    point: SweepPoint, timed: Sequence[Generation], expected: Outputs | Expected, split: Split, pair: Pair
) -> int:
    """The number of timed examples whose tokens differ from the expected ones within the pair's guarantee.

    Args:
        point: The timed point, decoded greedily.
        timed: By timed example, what the timed call generated.
        expected: The point's outputs on the split, at least on its timed examples.
        split: The examples.
        pair: The models.

    Raises:
        TimedTokensError: a text differs beyond the guarantee; the message names point, example, position and both tokens.
    """
    guarantee, mismatches = guarantee_of(pair), 0
    for example, generation in zip(split.timed, timed, strict=True):
        tokens = expected.tokens[example]
        position = first_mismatch(generation.tokens, tokens)
        if position is None:
            continue
        mismatches += 1
        if not _tolerated(guarantee, pair, split.sources[example], tokens[:position]):
            place = f"{point}: {split.name} example {example}, position {position}"
            found, wanted = _token(generation.tokens, position), _token(tokens, position)
            raise TimedTokensError(f"{place}: the timed call generated {found} where {wanted} was {expected.how}")
    return mismatches


def _tolerated(guarantee: TokenGuarantee, pair: Pair, source: list[int], prefix: Sequence[int]) -> bool:
    if guarantee is TokenGuarantee.EQUAL_BEYOND_TOLERANCE:
        return min(top_two_margin(model, source, prefix) for model in (pair.small, pair.large)) < MARGIN_TOLERANCE
    return guarantee is TokenGuarantee.NONE


def _token(tokens: Sequence[int], position: int) -> str:
    return f"token {tokens[position]}" if position < len(tokens) else "no token"
