"""The native runtime equals the reference under random sequences of operations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.decoding.runtimes.odd import KINDS, assert_close, begin, model_of, native, random_rows, reference

MOST = 200
"""Tokens of a row; the caches grow three times."""


class Twins:
    """Two decoders that receive the same operations."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.rng = rng
        self.ours, self.theirs = native(model_of(kind)), reference(model_of(kind))
        sources = random_rows(rng, [rng.choice([1, 2, 5, 70]) for _ in range(rng.randint(1, 4))])
        starts = begin(self.ours, sources)
        assert starts == begin(self.theirs, sources)
        self.forward(starts)

    def forward(self, tokens: list[list[int]]) -> None:
        assert_close(self.ours.forward(tokens), self.theirs.forward(tokens))

    def forward_anything(self) -> None:
        """Ragged rows, some of them empty, and sometimes more tokens than are allocated."""
        most = self.rng.choice([1, 1, 4, 13, 70])
        counts = [min(self.rng.randint(0, most), MOST - cached) for cached in self.ours.lengths]
        if any(counts):
            self.forward(random_rows(self.rng, counts))

    def rewind(self) -> None:
        back = self.rng.choice([1, 5, MOST])
        lengths = [self.rng.randint(max(1, length - back), length) for length in self.ours.lengths]
        self.ours.rewind(lengths)
        self.theirs.rewind(lengths)

    def reorder(self) -> None:
        """Drop, permute and duplicate rows."""
        rows = len(self.ours.lengths)
        chosen = [self.rng.randrange(rows) for _ in range(self.rng.randint(1, 5))]
        if self.rng.random() < 0.5:
            chosen = self.rng.sample(range(rows), self.rng.randint(1, rows))
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
def test_a_cache_rewound_to_nothing_starts_over(kind: str) -> None:
    rng = random.Random(3)
    twins = Twins(kind, rng)
    rows = len(twins.ours.lengths)
    for decoder in (twins.ours, twins.theirs):
        decoder.rewind([0] * rows)
    # Whole prompts again, so that both omit the same predictions.
    twins.forward(random_rows(rng, [80] * rows))


@pytest.mark.parametrize("kind", ["t5 relu", "llama", "gpt2"])
def test_duplicated_rows_are_independent(kind: str) -> None:
    """Copies of a row, and copies of copies, with other rows dropped: no row writes into another's cache."""
    rng = random.Random(5)
    twins = Twins(kind, rng)
    for chosen in ([0, 0, 0], [2, 1, 1, 0], [3], [0, 0], [1, 0], [1]):
        for decoder in (twins.ours, twins.theirs):
            decoder.reorder(chosen)
        twins.forward(random_rows(rng, [rng.randint(1, 9) for _ in chosen]))
