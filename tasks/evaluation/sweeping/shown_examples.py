"""Examples as the page shows them: source, references, vanilla's text, and a point's text in pieces by proposer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from tasks.decoding.generation import Generation
from tasks.evaluation.results.rows import ShownExample
from tasks.evaluation.sweeping.outputs import Outputs, Split

_Detokenise = Callable[[tuple[int, ...]], str]


def shown_examples(generations: Sequence[Generation], vanilla: Outputs, split: Split, text: _Detokenise) -> list[ShownExample]:
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
            pieces=_pieces(generation, text),
        )
        for example, generation in zip(split.timed, generations, strict=False)
    ]


def _pieces(generation: Generation, text: _Detokenise) -> list[tuple[str, str]]:
    """The text cut where its proposer changes, as (text, proposer); joined, the pieces are the text."""
    whole = text(tuple(generation.tokens))
    pieces, begin, end = [], 0, 0
    for proposer, run in groupby(generation.proposers):
        end += len(list(run))
        # A later token may complete a character, so a piece ends where the prefix stops matching the whole text.
        stop = max(begin, _common_prefix_length(text(tuple(generation.tokens[:end])), whole))
        pieces.append((whole[begin:stop], proposer))
        begin = stop
    return pieces


def _common_prefix_length(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return next((position for position in range(shorter) if one[position] != other[position]), shorter)
