"""Examples as the page shows them: source, references, vanilla's text, and a point's text in pieces by proposer."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.generation import Generation
from tasks.decoding.pieces import Detokenise, pieces_by_proposer
from tasks.evaluation.results.rows import ShownExample
from tasks.evaluation.sweeping.outputs import Outputs, Split


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
