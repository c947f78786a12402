"""bfloat16 and int8 equal the reference in float32 with equally rounded weights."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.native import NativeDecoder
from tasks.decoding.settings import SpeculativeSettings
from tasks.models.extras import add_heads
from tests.methods import SETTINGS
from tests.toys import toy_sources, toy_t5
from tests.unit.decoding.runtimes.odd import KINDS, VOCABULARY, assert_close, begin, model_of, native, random_rows, reference


def rounded_to_int8(weight: Tensor) -> Tensor:
    """Round each output row to 255 levels; its largest weight is level 127."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


@torch.no_grad()
def dequantised(model: Any) -> Any:
    """The model with matrices rounded to int8; embeddings, norms and biases are unchanged."""
    from transformers.pytorch_utils import Conv1D

    rounded = copy.deepcopy(model)
    head = rounded.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())  # its own, where it is also the embedding
    for module in rounded.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.copy_(rounded_to_int8(module.weight))
        elif isinstance(module, Conv1D):
            module.weight.copy_(rounded_to_int8(module.weight.T).T)
    return rounded


def go_on(ours: NativeDecoder, theirs: Decoder) -> None:
    rng = random.Random(6)
    sources = random_rows(rng, [4, 11, 70])
    starts = begin(ours, sources)
    assert starts == begin(theirs, sources)
    assert_close(ours.forward(starts), theirs.forward(starts))
    for counts in ([1, 1, 1], [6, 0, 13], [3, 2, 70]):
        rows = random_rows(rng, counts)
        assert_close(ours.forward(rows), theirs.forward(rows))
        kept = [length - length // 3 for length in ours.lengths]
        ours.rewind(kept)
        theirs.rewind(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_int8_is_the_reference_with_rounded_matrices(kind: str) -> None:
    go_on(native(model_of(kind), int8=True), reference(dequantised(model_of(kind))))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_the_reference_in_float32_with_rounded_weights(kind: str) -> None:
    halved = copy.deepcopy(model_of(kind)).bfloat16()
    ours, theirs = native(halved), reference(copy.deepcopy(halved).float())
    rng = random.Random(6)
    sources = random_rows(rng, [4, 11, 70])
    starts = begin(ours, sources)
    begin(theirs, sources)
    for rows in (starts, random_rows(rng, [6, 0, 13]), random_rows(rng, [3, 2, 70])):
        step, expected = ours.forward(rows), theirs.forward(rows)
        assert step.hidden is not None
        assert step.hidden.dtype == torch.bfloat16
        for row, count in enumerate(step.lengths):
            torch.testing.assert_close(step.logits[row, :count], expected.logits[row, :count], atol=1e-4, rtol=0)


def test_a_row_of_zeros_stays_zero_in_int8() -> None:
    model = copy.deepcopy(model_of("t5 relu"))
    with torch.no_grad():
        model.lm_head.weight[7] = 0
    ours = native(model, int8=True)
    step = ours.forward(begin(ours, [[4, 5]]))
    assert step.logits.shape[-1] == VOCABULARY
    assert step.logits[0, 0, 7] == 0


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    "method", ["vanilla_large", "bild", "speculative", "token_cascade", "sequence_cascade", "speculative_beam"]
)
def test_methods_run_in_fewer_bits(method: str, form: str) -> None:
    """A batch equals single rows: a row's logits do not depend on the other rows."""
    small, large = toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    if form == "bfloat16":
        small, large = small.bfloat16(), large.bfloat16()
    pair = Pair(native(small, int8=form == "int8"), native(large, int8=form == "int8"))
    sources, request = toy_sources(6), Request(10)
    for settings in SETTINGS[method]:
        together = decode(method, settings, pair, sources, request)
        alone = [decode(method, settings, pair, [source], request, [example])[0] for example, source in enumerate(sources)]
        assert [one.tokens for one in together] == [one.tokens for one in alone]


@pytest.mark.parametrize("drafter", ["heads", "early_layer"])
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_drafters_that_read_the_large_model_run_in_fewer_bits(drafter: str, form: str) -> None:
    large = toy_t5(2, 1, 3, "gated-gelu")
    add_heads(large, 3, seed=0)
    large = large.bfloat16() if form == "bfloat16" else large
    decoder = native(large, int8=form == "int8")
    pair, sources = Pair(decoder, decoder), toy_sources(6)
    drafted = decode("speculative", SpeculativeSettings(drafter=drafter, draft_length=3), pair, sources, Request(10))
    vanilla = decode("vanilla_large", SETTINGS["vanilla_large"][0], pair, sources, Request(10))
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]
