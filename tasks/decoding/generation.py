"""The result of decoding: tokens, who proposed each, raw integer counts, and a text cut where its proposer changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from tasks.models.prompting import common_prefix

SMALL, LARGE, CORRECTED = "s", "l", "c"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How tokenizers write the first bytes of a character whose others have not come yet."""


@dataclass
class Counts:
    """Integers only; whoever reports ratios makes them from these, once."""

    tokens: int = 0
    small_steps: int = 0
    """Runs of the small model, or of the model that drafts in its place; a look-up in a table or a copy is no run."""
    large_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    fallbacks: int = 0
    """Drafts that ended because the small model was not confident."""
    rollbacks: int = 0
    """Verifications that replaced a drafted token."""
    # A Counter, constructed in Python code, takes three times as long; replaying a whole text takes microseconds.
    verified: dict[int, int] = field(default_factory=partial(defaultdict, int))
    """Calls of the large model by the number of positions verified."""
    kept: dict[tuple[int, int], int] = field(default_factory=partial(defaultdict, int))
    """Verified drafts by (drafted tokens, at least one; accepted tokens)."""
    layers: int = 0
    """Decoder layers that the large model ran over all calls; 0 for methods that never leave a layer out."""

    def add(self, other: Counts) -> None:
        """Add `other` in place."""
        ours = vars(self)
        # Plain counts add up; histograms add up by key.
        for name, value in vars(other).items():
            if isinstance(value, int):
                ours[name] += value
            else:
                for key, count in value.items():
                    ours[name][key] += count

    def __add__(self, other: Counts) -> Counts:
        both = Counts()
        both.add(self)
        both.add(other)
        return both


@dataclass
class Generation:
    """One example's output."""

    tokens: list[int]
    """Generated ids, the end token included if it was reached; the start token is not."""
    proposers: str
    """One letter a token: s (small), l (large), c (large, in place of a small one)."""
    counts: Counts
    log_probabilities: list[float] = field(default_factory=list)
    """The model's own log-probability of each token, in nats, for methods that record it."""


def total(generations: Iterable[Generation]) -> Counts:
    """Return the sum of all counts."""
    counts = Counts()
    for generation in generations:
        counts.add(generation.counts)
    return counts


Detokenise = Callable[[tuple[int, ...]], str]
"""Makes a text of tokens."""


def pieces_by_proposer(tokens: Sequence[int], proposers: str, text: Detokenise) -> list[tuple[str, str]]:
    """Return a text as (piece, proposer) to show what the small model wrote (BiLD, Figure 9); joined, they are the text.

    Args:
        tokens: Generated ids.
        proposers: One letter a token, as in `Generation.proposers`.
        text: Makes a text of tokens.
    """
    whole = text(tuple(tokens))
    pieces, begin, end = [], 0, 0
    for proposer, run in groupby(proposers):
        end += len(list(run))
        # A later token may complete a character, so a piece ends where the prefix stops matching the whole text.
        stop = max(begin, common_prefix(text(tuple(tokens[:end])), whole))
        pieces.append((whole[begin:stop], proposer))
        begin = stop
    return pieces
