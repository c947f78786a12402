"""The native runtime beside the reference, through whatever may be done to a decoder."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.decoding.runtimes.odd import KINDS, assert_close, begin, model_of, native, random_rows, reference

MOST = 200
"""Tokens of a row: three times the caches grow."""


class Twins:
    """Two decoders to which the same is done."""

    def __init__(self, kind: str, chance: random.Random) -> None:
        self.chance = chance
        self.ours, self.theirs = native(model_of(kind)), reference(model_of(kind))
        sources = random_rows(chance, [chance.choice([1, 2, 5, 70]) for _ in range(chance.randint(1, 4))])
        starts = begin(self.ours, sources)
        assert starts == begin(self.theirs, sources)
        self.forward(starts)

    def forward(self, tokens: list[list[int]]) -> None:
        assert_close(self.ours.forward(tokens), self.theirs.forward(tokens))

    def forward_anything(self) -> None:
        """Ragged, and nothing for some rows; now and then more than fits into what was allocated."""
        most = self.chance.choice([1, 1, 4, 13, 70])
        counts = [min(self.chance.randint(0, most), MOST - cached) for cached in self.ours.lengths]
        if any(counts):
            self.forward(random_rows(self.chance, counts))

    def rewind(self) -> None:
        back = self.chance.choice([1, 5, MOST])
        lengths = [self.chance.randint(max(1, length - back), length) for length in self.ours.lengths]
        self.ours.rewind(lengths)
        self.theirs.rewind(lengths)

    def reorder(self) -> None:
        """Drops, permutes, and takes rows twice."""
        rows = len(self.ours.lengths)
        chosen = [self.chance.randrange(rows) for _ in range(self.chance.randint(1, 5))]
        if self.chance.random() < 0.5:
            chosen = self.chance.sample(range(rows), self.chance.randint(1, rows))
        self.ours.reorder(chosen)
        self.theirs.reorder(chosen)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), moves=st.lists(st.sampled_from(["forward", "forward", "rewind", "reorder"]), max_size=16))
def test_forced_rollbacks(kind: str, seed: int, moves: list[str]) -> None:
    twins = Twins(kind, random.Random(seed))
    for move in moves:
        {"forward": twins.forward_anything, "rewind": twins.rewind, "reorder": twins.reorder}[move]()
        assert twins.ours.lengths == twins.theirs.lengths
    twins.forward_anything()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_wound_back_to_nothing_starts_over(kind: str) -> None:
    chance = random.Random(3)
    twins = Twins(kind, chance)
    rows = len(twins.ours.lengths)
    for decoder in (twins.ours, twins.theirs):
        decoder.rewind([0] * rows)
    # Whole prompts again, so that what is left out of the predictions is left out of both.
    twins.forward(random_rows(chance, [80] * rows))


@pytest.mark.parametrize("kind", ["t5 relu", "llama", "gpt2"])
def test_rows_taken_twice_go_their_own_ways(kind: str) -> None:
    """Twins of one row, then of one of them, with others dropped: none writes into what another reads."""
    chance = random.Random(5)
    twins = Twins(kind, chance)
    for chosen in ([0, 0, 0], [2, 1, 1, 0], [3], [0, 0], [1, 0], [1]):
        for decoder in (twins.ours, twins.theirs):
            decoder.reorder(chosen)
        twins.forward(random_rows(chance, [chance.randint(1, 9) for _ in chosen]))
