"""Which runtime a model gets, and the reasons for refusing a requested one."""

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, Runtime
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.runtimes.native import NativeDecoder
from tasks.decoding.runtimes.reference import CausalDecoder, PerRowDecoder, TransformersDecoder
from tasks.errors import InputError
from tests.architectures import models
from tests.unit.decoding.runtimes.odd import BUILDERS, FEW, KINDS, NATIVE, begin, model_of, randomized, reference, t5


def plain_kind(kind: str) -> type:
    if kind in ("bart", "marian"):
        return PerRowDecoder
    return TransformersDecoder if "t5" in kind else CausalDecoder


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_cpu_supported_models_get_the_native_runtime(kind: str) -> None:
    assert type(open_decoder(model_of(kind), "large")) is NativeDecoder
    assert type(open_decoder(model_of(kind), "large", runtime=NATIVE)) is NativeDecoder
    assert type(open_decoder(model_of(kind), "large", runtime=REFERENCE)) is plain_kind(kind)


@pytest.mark.parametrize("kind", FEW)
def test_without_a_compiler_they_get_the_fused_runtime(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert type(open_decoder(model_of(kind), "large")) is FusedDecoder
    assert type(open_decoder(copy.deepcopy(model_of(kind)).half(), "large")) is plain_kind(kind)
    with pytest.raises(InputError, match=r"^the native runtime needs a C\+\+ compiler, .*; set machine.runtime to auto$"):
        open_decoder(model_of(kind), "large", runtime=NATIVE)
    with pytest.raises(InputError, match=r"^int8 takes the native runtime, which does not take the large model here; set mach"):
        open_decoder(model_of(kind), "large", runtime=Runtime("auto", int8=True))


def replaced(kind: str, position: str, module: Callable[[Any], Any]) -> Any:
    """The model with the submodule at `path` replaced."""
    model = copy.deepcopy(model_of(kind))
    owner, _, name = position.rpartition(".")
    parent = model.get_submodule(owner)
    setattr(parent, name, module(getattr(parent, name)))
    return model


class Adapted(torch.nn.Module):
    """An adapter: its `weight` is only a part of what it computes with."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.more = torch.nn.Linear(base.in_features, base.out_features, bias=False)

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + self.more(x)
        return result


def other_norm(norm: Any) -> torch.nn.Module:
    return torch.nn.RMSNorm(norm.weight.shape[0])


def umt5() -> Any:
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    return UMT5ForConditionalGeneration(UMT5Config.from_dict(BUILDERS["mt5"]().config.to_dict() | {"model_type": "umt5"}))


def built(kind: str, **options: Any) -> Callable[[], Any]:
    return functools.partial(BUILDERS[kind], **options)


def rope(rope_type: str, **options: Any) -> dict[str, Any]:
    scaling = {"rope_type": rope_type, "rope_theta": 100.0, "factor": 2.0, "original_max_position_embeddings": 32} | options
    return {"rope_parameters": scaling, "max_position_embeddings": 64}


_LONG = {"short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
REFUSED: dict[str, Callable[[], Any]] = {
    "gpt2 by layer": built("gpt2", scale_attn_by_inverse_layer_idx=True),
    "gpt2 upcast": built("gpt2", reorder_and_upcast_attn=True),
    "gpt2 of another activation": built("gpt2", activation_function="gelu_fast"),
    "llama of another activation": built("llama", hidden_act="gelu_fast"),
    "t5 of another activation": functools.partial(t5, "t5", "gated-tanh"),
    "dynamic": built("llama", **rope("dynamic")),
    "yarn": built("llama", **rope("yarn")),
    "longrope": built("llama", **rope("longrope", **_LONG)),
    "umt5": umt5,
    "gemma3 that rotates by length": built("gemma3", rope_parameters={"full_attention": rope("dynamic")["rope_parameters"]}),
    "gemma2 both ways": built("gemma2", use_bidirectional_attention=True),
    "gemma2 with another norm": lambda: replaced("gemma2", "model.layers.1.input_layernorm", other_norm),
    "fsmt": lambda: copy.deepcopy(models("fsmt")[0]),  # randomized below, and others share it
    "marian of two vocabularies": built("marian", decoder_vocab_size=41, share_encoder_decoder_embeddings=False),
    "bart with another norm": lambda: replaced("bart", "model.decoder.layers.1.final_layer_norm", other_norm),
    "t5 with another norm": lambda: replaced("t5 relu", "decoder.final_layer_norm", other_norm),
    "llama with another norm": lambda: replaced("llama", "model.norm", other_norm),
    "llama with an adapter": lambda: replaced("llama", "model.layers.1.self_attn.v_proj", Adapted),
    "t5 with an adapter": lambda: replaced("t5 gated-gelu", "decoder.block.1.layer.1.EncDecAttention.q", Adapted),
    "t5 with an adapted head": lambda: replaced("t5 gated-gelu", "lm_head", Adapted),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_computations_run_in_the_reference(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = randomized(REFUSED[name]())
    assert blueprint_of(model) is None
    kind = model.config.model_type
    with pytest.raises(InputError, match=f"^the native runtime does not know models of type {kind} configured like the"):
        open_decoder(model, "large", runtime=NATIVE)
    with caplog.at_level(logging.INFO, "draftline"):
        decoder = open_decoder(model, "large")
    said = f"the fused runtime does not know models of type {kind} configured like the large one; the large model runs in the"
    assert [record.message for record in caplog.records if record.name == "draftline"] == [f"{said} reference runtime"]
    assert not isinstance(decoder, NativeDecoder)
    sources = [[4, 5, 6], [7]]
    step, expected = (one.forward(begin(one, sources)) for one in (decoder, reference(model)))
    assert torch.equal(step.logits, expected.logits)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_no_token_is_not_read(window: int) -> None:
    assert blueprint_of(BUILDERS["qwen3, windows"](sliding_window=window)) is None
    assert blueprint_of(BUILDERS["qwen3, windows"](sliding_window=1 << 70)) is not None


def test_unsupported_number_formats_and_devices_are_refused() -> None:
    model = copy.deepcopy(model_of("llama")).half()
    assert type(open_decoder(model, "large")) is CausalDecoder
    with pytest.raises(InputError, match=r"^the native runtime takes float32, bfloat16 and int8, not float16; set machine"):
        open_decoder(model, "large", runtime=NATIVE)
    with pytest.raises(InputError, match=r"^the native runtime runs on a CPU; set machine.runtime to auto$"):
        open_decoder(copy.deepcopy(model_of("llama")).to("meta"), "large", runtime=NATIVE)


def test_a_pair_may_be_of_two_runtimes() -> None:
    """A model that the native runtime does not support runs in the reference, the other one natively."""
    pair = open_decoders(model_of("llama"), randomized(REFUSED["yarn"]()))
    assert isinstance(pair.small, NativeDecoder)
    assert isinstance(pair.large, CausalDecoder)


def test_more_tokens_than_a_model_predicts_are_refused() -> None:
    for vocabulary in (38, 64, 1000):
        with pytest.raises(ValueError, match=f"the large model predicts over 37 tokens, not {vocabulary}"):
            open_decoder(model_of("llama"), "large", vocabulary, NATIVE)
