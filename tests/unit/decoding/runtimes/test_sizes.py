"""The native runtime equals the reference for texts and batches of every size in one decoder."""

from __future__ import annotations

import random

import pytest
import torch

from tests.unit.decoding.runtimes.odd import FEW, POSITIONS, assert_close, begin, model_of, native, random_rows, reference

few = pytest.mark.parametrize("kind", FEW)


def both_go_on(kind: str, batches: list[list[int]], new: list[list[int]]) -> None:
    """Compare both decoders on sources of these lengths, then on up to so many new tokens a row."""
    rng = random.Random(1)
    ours, theirs = native(model_of(kind)), reference(model_of(kind))
    for lengths, counts in zip(batches, new, strict=True):
        sources = random_rows(rng, lengths)
        starts = begin(ours, sources)
        assert starts == begin(theirs, sources)
        assert_close(ours.forward(starts), theirs.forward(starts))
        for count in counts:
            rows = random_rows(rng, [rng.randint(0, count) for _ in lengths[1:]] + [count])
            assert_close(ours.forward(rows), theirs.forward(rows))
        assert ours.lengths == theirs.lengths


@few
def test_a_decoder_is_used_again_for_batches_of_other_sizes(kind: str) -> None:
    both_go_on(
        kind,
        [[3], [5, 1, 150, 9, 2, 70, 1], [2, 8], [1], [6] * 12, [200, 1, 200]],
        [[1, 3, 90], [2, 66], [130], [1, 1], [3, 3], [1, 70, 1, 1]],
    )


@few
def test_more_tokens_than_one_block_of_the_layers(kind: str) -> None:
    both_go_on(kind, [[90, 60, 7] * 5], [[30, 1, 30]])


@few
def test_long_sources(kind: str) -> None:
    both_go_on(kind, [[300, 1, 299, 17]], [[1, 5, 64]])


def test_batches_grow_while_texts_are_long_and_shrink_when_rows_double() -> None:
    """Duplicated rows leave room for fewer positions; the next batch needs more again."""
    ours, theirs = native(model_of("t5 relu")), reference(model_of("t5 relu"))
    rng = random.Random(4)
    for rows in (6, 9):
        sources = random_rows(rng, [rng.randint(1, 80) for _ in range(rows)])
        for decoder in (ours, theirs):
            decoder.forward(begin(decoder, sources))
            decoder.reorder([4, 4, 1])
        rest = random_rows(rng, [70, 0, 2])
        assert_close(ours.forward(rest), theirs.forward(rest))


def test_learned_positions_may_be_used_up_but_not_exceeded() -> None:
    ours, theirs = native(model_of("gpt2")), reference(model_of("gpt2"))
    [row] = random_rows(random.Random(0), [POSITIONS])
    for decoder in (ours, theirs):
        begin(decoder, [row[:5]])
    assert_close(ours.forward([row]), theirs.forward([row]))
    for new in (1, 30):
        with pytest.raises(ValueError, match=f"a text of {POSITIONS + new} tokens, but the model has {POSITIONS} positions"):
            ours.forward([row[:new]])
    assert ours.lengths == [POSITIONS]
    ours.rewind([POSITIONS - 1])
    theirs.rewind([POSITIONS - 1])
    assert_close(ours.forward([row[-1:]]), theirs.forward([row[-1:]]))


@few
def test_the_default_dtype_does_not_matter(kind: str) -> None:
    expected, decoder = native(model_of(kind)), native(model_of(kind))
    sources = random_rows(random.Random(0), [4, 9])
    starts = begin(expected, sources)
    step = expected.forward(starts)
    torch.set_default_dtype(torch.float64)
    try:
        assert begin(decoder, sources) == starts
        assert torch.equal(decoder.forward(starts).logits, step.logits)
    finally:
        torch.set_default_dtype(torch.float32)
