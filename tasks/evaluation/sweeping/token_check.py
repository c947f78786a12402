"""Compare the tokens of timed calls with the replayed or decoded tokens whose quality the row reports."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.decoder import TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.registry import Pair
from tasks.evaluation.mismatches import MARGIN_TOLERANCE, first_mismatch, top_two_margin
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split


class TimedTokensError(RuntimeError):
    """A timed call generated other tokens than the replay, or than the decoding that quality was measured on."""


def guarantee_of(pair: Pair) -> TokenGuarantee:
    """The weaker guarantee of the pair's two runtimes."""
    order = list(TokenGuarantee)
    return max((decoder.capabilities.tokens for decoder in (pair.small, pair.large)), key=order.index)


def count_mismatches(point: SweepPoint, timed: Sequence[Generation], expected: Outputs, split: Split, pair: Pair) -> int:
    """The number of timed examples whose tokens differ from the expected ones within the pair's guarantee.

    Args:
        point: The timed point, decoded greedily.
        timed: By timed example, what the timed call generated.
        expected: The point's outputs on the split.
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
            raise TimedTokensError(
                f"{point}: {split.name} example {example}, position {position}: the timed call generated "
                f"{_token(generation.tokens, position)} where {_token(tokens, position)} was {expected.how}"
            )
    return mismatches


def _tolerated(guarantee: TokenGuarantee, pair: Pair, source: list[int], prefix: Sequence[int]) -> bool:
    if guarantee is TokenGuarantee.EQUAL_BEYOND_TOLERANCE:
        return min(top_two_margin(model, source, prefix) for model in (pair.small, pair.large)) < MARGIN_TOLERANCE
    return guarantee is TokenGuarantee.NONE


def _token(tokens: Sequence[int], position: int) -> str:
    return f"token {tokens[position]}" if position < len(tokens) else "no token"
