"""The native runtime refuses broken logits, unknown tokens and encoder outputs of other models."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import BrokenLogitsError, EncoderOutput, StopRule
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tests.toys import END, toy_sources, toy_t5
from tests.unit.decoding.runtimes.odd import FEW, VOCABULARY, assert_close, begin, model_of, native, reference

few = pytest.mark.parametrize("kind", FEW)


def with_logits(values: dict[int, float]) -> Any:
    """A Llama whose head adds these numbers to these tokens' logits."""
    model = copy.deepcopy(model_of("llama"))
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())
    head.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
    with torch.no_grad():
        for token, value in values.items():
            head.bias[token] = value
    return model


@pytest.mark.parametrize("masked", [[0], [7, 36], [*range(16)], [*range(32, 37)], [*range(36)]])
def test_a_mask_is_legal(masked: list[int]) -> None:
    model = with_logits(dict.fromkeys(masked, -math.inf))
    ours, theirs = native(model), reference(model)
    for decoder in (ours, theirs):
        begin(decoder, [[4, 5], [6]])
    step, expected = (decoder.forward([[4, 5], [6]]) for decoder in (ours, theirs))
    assert_close(step, expected)
    assert torch.isneginf(step.logits[0, 0, masked]).all()
    assert step.argmax is not None
    assert not {token for row in step.argmax for token in row} & set(masked)
    assert step.argmax[0][0] == int(expected.logits[0, 0].argmax())


@pytest.mark.parametrize("position", [0, 15, 16, 31, 32, 36])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_broken_logit_is_enough(position: int, value: float) -> None:
    decoder = native(with_logits({position: value, 3: -math.inf}))
    begin(decoder, [[4, 5], [6]])
    for step in (1, 2):
        with pytest.raises(
            BrokenLogitsError, match=f"^the native model gave NaN, .infinity or no finite logit at step {step}$"
        ):
            decoder.forward([[4, 5], [6]])


def test_no_finite_logit_at_all() -> None:
    decoder = native(with_logits(dict.fromkeys(range(VOCABULARY), -math.inf)))
    begin(decoder, [[4]])
    with pytest.raises(BrokenLogitsError, match=r"at step 1$"):
        decoder.forward([[4]])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_padding_of_the_vocabulary_is_not_read(value: float) -> None:
    """The padded part of the head may hold any value."""
    plain, padded = (open_decoder(with_logits(values), "toy", 30) for values in ({}, {30: value, 36: value}))
    steps = []
    for decoder in (plain, padded):
        begin(decoder, [[4, 5], [6, 2, 9]])
        steps.append(decoder.forward([[4, 5], [6, 2, 9]]))
    assert steps[0].logits.shape == (2, 2, 30)
    assert torch.equal(steps[0].logits, steps[1].logits)
    assert steps[0].argmax == steps[1].argmax


@pytest.mark.parametrize("part", ["layers", "embedding", "norm"])
@pytest.mark.parametrize("kind", FEW)
def test_broken_weights_are_noticed_anywhere(kind: str, part: str) -> None:
    model = copy.deepcopy(model_of(kind))
    inner = model.get_decoder()
    block = (inner.block if "t5" in kind else inner.h if kind == "gpt2" else inner.layers)[0]
    weight = {
        "layers": next(weight for weight in block.parameters() if weight.dim() == 2),
        "embedding": inner.get_input_embeddings().weight,
        "norm": [weight for weight in inner.parameters() if weight.dim() == 1][-1],
    }[part]
    with torch.no_grad():
        weight[5 if part == "embedding" else 0] = math.nan
    decoder = native(model)
    begin(decoder, [[5, 4, END]])
    with pytest.raises(BrokenLogitsError, match=r"^the native model gave"):
        decoder.forward([[5, 4, END]])


def test_model_and_step_are_named_in_a_method() -> None:
    broken = toy_t5(3, 1, 1)
    with torch.no_grad():
        broken.lm_head.weight[7] = math.nan
    sound = native(toy_t5(2, 1, 3, "gated-gelu"))
    for sources in (toy_sources(2), toy_sources(1)):  # one text alone is drafted for in one call
        with pytest.raises(BrokenLogitsError, match=r"^the native model .* at step 1$"):
            decode("bild", BildSettings(), Pair(native(broken), sound), sources, Request(5))


@few
@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**31, -(2**40)])
def test_tokens_that_a_model_does_not_have_are_refused(kind: str, token: int) -> None:
    decoder = native(model_of(kind))
    with pytest.raises(IndexError, match=f"^the native model has {VOCABULARY} tokens, and was given"):
        begin(decoder, [[4], [4, token]])
    begin(decoder, [[4], [4, 5]])
    with pytest.raises(IndexError, match=f"^the native model has {VOCABULARY} tokens, and was given"):
        decoder.forward([[4], [token, 4]])
    assert decoder.lengths == [0, 0]
    begin(decoder, [[4, 5]])
    with pytest.raises(IndexError, match=f"^the native model has {VOCABULARY} tokens, and was given"):
        decoder.continue_greedily([token], 3, StopRule())


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match=r"^source 2 is empty; the native model is decoder-only and needs a prompt"):
        native(model_of("llama")).encode([[4], []])


def test_an_empty_source_is_refused() -> None:
    empty: list[int] = []
    for sources, position in (([[4], empty], 2), ([empty], 1)):
        with pytest.raises(
            InputError, match=f"^source {position} is empty; the native model needs at least one token to read$"
        ):
            native(model_of("t5 relu")).encode(sources)


def test_sources_of_another_kind_or_width_are_refused() -> None:
    with pytest.raises(ValueError, match="the native model is decoder-only"):
        native(model_of("gpt2")).start(EncoderOutput(torch.zeros(1, 3, 20), torch.ones(1, 3, dtype=torch.long)))
    decoder = native(model_of("t5 relu"))
    with pytest.raises(ValueError, match="the native model reads sources of width 20, not 19"):
        decoder.start(EncoderOutput(torch.zeros(1, 3, 19), torch.ones(1, 3, dtype=torch.long)))
    with pytest.raises(ValueError, match="the native model reads sources of width 20, not 0"):
        decoder.start(native(model_of("gpt2")).encode([[4, 5]]))
