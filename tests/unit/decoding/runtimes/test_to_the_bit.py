"""The native runtime gives a token the same logits to the bit in any batch, block and number of threads."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.runtimes.native import NativeDecoder
from tests.unit.decoding.runtimes.odd import BUILDERS, KINDS, begin, model_of, native, random_rows, randomized

SOURCE = [5, 9, 30, 2, 17, 1]
LENGTH = 100
"""Positions of each text, more than are allocated initially."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def wide_t5() -> Any:
    """Matrices large enough for several threads; some widths fill SIMD vectors, others do not."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 72, "d_kv": 24, "d_ff": 300, "num_heads": 3, "num_layers": 1, "num_decoder_layers": 2}
    tokens = {"vocab_size": 203, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return randomized(T5ForConditionalGeneration(T5Config(**shape, **tokens, feed_forward_proj="gated-gelu")))


def wide_llama() -> Any:
    return randomized(BUILDERS["llama"](hidden_size=64, intermediate_size=300, head_dim=16, vocab_size=300))


BUILT: dict[str, Callable[[], Any]] = {
    # mT5 is read as T5, and scaled rotary angles are other numbers in the same table.
    **{kind: functools.partial(model_of, kind) for kind in KINDS if kind not in ("mt5", "llama, linear", "llama, llama3")},
    "wide t5": wide_t5,
    "wide llama": wide_llama,
}
FORMATS = ("float32", "bfloat16", "int8")
CASES = [*((kind, "float32") for kind in BUILT), *((kind, form) for kind in ("t5 relu", "wide llama") for form in FORMATS[1:])]


def opened(kind: str, form: str) -> NativeDecoder:
    model = BUILT[kind]()
    if form == "bfloat16":
        model = type(model)(model.config).eval().bfloat16()
        randomized(model)
    return native(model, int8=form == "int8")


def random_text(decoder: NativeDecoder, seed: int = 0, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    [start] = begin(decoder, [SOURCE])
    return [*start, *(rng.randrange(2, decoder.vocabulary) for _ in range(length - len(start)))]


def one_at_a_time(decoder: NativeDecoder, text: list[int]) -> tuple[Tensor, Tensor]:
    """Logits and hidden states at all positions, inside the prompt as well, since its tokens are fed one by one."""
    begin(decoder, [SOURCE])
    steps = [decoder.forward([[token]]) for token in text]
    return torch.cat([step.logits[0] for step in steps]), torch.cat([step.hidden[0] for step in steps])


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_blocks_rows_threads_and_rewinds_change_no_bit(kind: str, form: str) -> None:
    decoder = opened(kind, form)
    text = random_text(decoder)
    logits, hidden = one_at_a_time(decoder, text)
    others = random_rows(random.Random(1), [3, 41, 8])

    def same(fed: list[int], at: int, row: int = 0, other_rows: list[list[int]] | None = None) -> None:
        rows = [*(other_rows or [])]
        rows.insert(row, fed)
        step = decoder.forward(rows)
        count = step.lengths[row]  # those inside a prompt are left out
        end = at + len(fed)
        assert count
        assert torch.equal(step.logits[row, :count], logits[end - count : end])
        assert torch.equal(step.hidden[row, :count], hidden[end - count : end])

    for used in (1, 2):
        with threads(used):
            # Blocks of several sizes, each rewound by half and fed again, while the caches grow.
            decoder = opened(kind, form)
            begin(decoder, [SOURCE])
            at = 0
            for size in (*range(2, 14), 9):
                same(text[at : at + size], at)
                decoder.rewind([at + size // 2])
                at += size // 2
            same(text[at:], at)
            # The whole text at once.
            begin(decoder, [SOURCE])
            same(text, 0)
            # In a batch, in another row, and after the other rows are dropped.
            begin(decoder, [[4, 1], SOURCE, [8] * 30, [3]])
            same(text[:20], 0, 1, others)
            same(text[20:27], 20, 1, [[], [5], []])
            decoder.reorder([2, 1])
            same(text[27:60], 27, 1, [[7, 7]])
            decoder.reorder([1, 1])
            same(text[60:73], 60, 0, [[6]])
            decoder.reorder([0])
            same(text[73:], 73)


@pytest.mark.parametrize("kind", ["t5 relu", "wide t5"])
def test_a_source_has_the_same_encoding_in_a_batch(kind: str) -> None:
    decoder = opened(kind, "float32")
    sources = random_rows(random.Random(2), [1, 30, 7, 90, 2])
    alone = [decoder.encode([source]).hidden[0] for source in sources]
    for used in (1, 2):
        with threads(used):
            together = decoder.encode(sources)
        assert together.mask.sum(1).tolist() == [1, 30, 7, 90, 2]
        for row, expected in enumerate(alone):
            assert torch.equal(together.hidden[row, : len(expected)], expected)
            assert not together.hidden[row, len(expected) :].any()
