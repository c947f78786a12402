"""Random models of widths that fill no SIMD vector, the fast runtimes on them, and their comparison with the reference."""

import functools
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, Decoder, Rows, Runtime, Step
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, FusedDecoder, SyncPolicy
from tasks.decoding.runtimes.native import NativeDecoder
from tests.architectures import bart, gemma2, gemma3, gpt2, llama, marian, qwen2, qwen3
from tests.tape import TapeRecorder

Fast = TypeVar("Fast", bound=Decoder)
NATIVE = Runtime("native")
VOCABULARY = 37
POSITIONS = 450
"""Learned positions of the GPT-2, BART and Marian models."""
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1}


def t5(model_type: str, activation: str, tied: bool = False, layers: int = 2) -> Any:
    import transformers

    shape = {"d_model": 20, "d_kv": 5, "d_ff": 17, "num_heads": 3, "num_layers": 1, "num_decoder_layers": layers}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    tokens = _TOKENS | {"decoder_start_token_id": 0}
    kind = {"t5": "T5", "mt5": "MT5"}[model_type]
    config = getattr(transformers, f"{kind}Config")(
        **tokens, **shape, **buckets, feed_forward_proj=activation, tie_word_embeddings=tied
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


_SIZES = {"hidden_size": 20, "intermediate_size": 17, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
_llama = functools.partial(llama, 2, VOCABULARY, **_SIZES)
_gpt2 = functools.partial(gpt2, 2, VOCABULARY, n_embd=20, n_inner=17, n_head=4, n_positions=POSITIONS, tie_word_embeddings=True)
_ROPE = {"rope_theta": 100.0, "factor": 4.0}
_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
_CAPS = {"sliding_window": 11, "query_pre_attn_scalar": 2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_TWO_ROPES = {
    "full_attention": {"rope_type": "linear", **_ROPE},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
}
_POST = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("ffn_dim", 17), ("attention_heads", 4))}
_POST |= {"d_model": 20, "max_position_embeddings": POSITIONS}
BUILDERS: dict[str, Callable[..., Any]] = {
    "t5 relu": functools.partial(t5, "t5", "relu"),
    "t5 gated-gelu": functools.partial(t5, "t5", "gated-gelu"),
    "t5 gated-silu, tied": functools.partial(t5, "t5", "gated-silu", tied=True),
    "mt5": functools.partial(t5, "mt5", "gated-gelu"),
    "llama": _llama,
    "llama without groups": functools.partial(_llama, num_key_value_heads=4, head_dim=10),
    "llama with biases": functools.partial(_llama, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, linear": functools.partial(_llama, rope_parameters={"rope_type": "linear", **_ROPE}),
    "llama, llama3": functools.partial(_llama, rope_parameters={"rope_type": "llama3", **_ROPE, **_BANDS}),
    "qwen2": functools.partial(qwen2, 2, VOCABULARY, **_SIZES),
    "qwen3, tied": functools.partial(qwen3, 2, VOCABULARY, **_SIZES, attention_bias=True, tie_word_embeddings=True),
    "qwen3, windows": functools.partial(qwen3, 3, VOCABULARY, **_SIZES, **_WINDOWS, hidden_act="gelu"),
    "gemma2": functools.partial(gemma2, 3, VOCABULARY, **_SIZES, **_CAPS),
    "gemma2, tied, without caps": functools.partial(
        gemma2, 2, VOCABULARY, **_SIZES, tie_word_embeddings=True, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": functools.partial(gemma3, 3, VOCABULARY, **_SIZES, rope_parameters=_TWO_ROPES, **_CAPS),
    "gemma3, windows alone": functools.partial(
        gemma3, 2, VOCABULARY, **_SIZES, layer_types=["sliding_attention"] * 2, tie_word_embeddings=True
    ),
    "bart": functools.partial(bart, 2, VOCABULARY, **_POST, scale_embedding=True),
    "marian": functools.partial(marian, 2, VOCABULARY, **_POST, tie_word_embeddings=True),
    "gpt2": _gpt2,
    "gpt2 gelu, unscaled": functools.partial(
        _gpt2, activation_function="gelu", scale_attn_weights=False, tie_word_embeddings=False
    ),
}
KINDS = tuple(BUILDERS)
FEW = ("t5 relu", "t5 gated-gelu", "llama", "qwen3, tied", "gemma2", "gemma3", "bart", "gpt2")
"""One model of each kind of computation."""


def randomized(model: Any, seed: int = 0) -> Any:
    """The model in evaluation mode with random weights, including norms, biases and position biases."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += 0.2 * torch.randn_like(weight)
            else:
                torch.nn.init.normal_(weight, std=0.3)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                torch.nn.init.normal_(buffer)
    return model.eval()


@functools.cache
def model_of(kind: str) -> Any:
    return randomized(BUILDERS[kind]())


def reference(model: Any) -> Decoder:
    return open_decoder(model, "reference", runtime=REFERENCE)


def native(model: Any, *, int8: bool = False) -> NativeDecoder:
    decoder = open_decoder(model, "native", runtime=Runtime("native", int8))
    assert isinstance(decoder, NativeDecoder)
    return decoder


def fused(
    model: Any,
    *,
    recorder: TapeRecorder | None = None,
    sync_policy: SyncPolicy = EACH_STEP,
    vocabulary: int | None = None,
    name: str = "fused",
) -> FusedDecoder:
    blueprint = blueprint_of(model)
    assert blueprint is not None
    return FusedDecoder(model, blueprint, name, vocabulary, recorder=recorder, sync_policy=sync_policy)


RUNTIMES = ("native", "fused", "recorded")
every_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


def fast(model: Any, runtime: str) -> NativeDecoder | FusedDecoder:
    """A model in a fast runtime; `recorded` is the fused one as on a GPU, its recorded graphs imitated on a CPU."""
    if runtime == "native":
        return native(model)
    if runtime == "fused":
        return fused(model)
    return fused(model, recorder=TapeRecorder(), sync_policy=ONE_AHEAD)


def random_rows(rng: random.Random, lengths: list[int]) -> Rows:
    return [[rng.randrange(2, VOCABULARY) for _ in range(length)] for length in lengths]


def begin(decoder: Decoder, sources: Rows) -> Rows:
    return decoder.start(decoder.encode(sources))


def begun(decoder: Fast, sources: Rows) -> Fast:
    """The decoder, started with these sources."""
    begin(decoder, sources)
    return decoder


def assert_close(ours: Step, theirs: Step, tolerance: float = 1e-4) -> None:
    """Compare all real positions; `best` is our argmax, and equals theirs unless the top two logits are too close."""
    assert ours.lengths == theirs.lengths
    assert ours.logits.shape == theirs.logits.shape
    for row, count in enumerate(ours.lengths):
        one, other = ours.logits[row, :count], theirs.logits[row, :count]
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)
        torch.testing.assert_close(ours.hidden[row, :count], theirs.hidden[row, :count], atol=tolerance, rtol=0)
        assert ours.argmax[row] == one.argmax(-1).tolist()
        top = other.topk(2, -1).values
        clear = top[:, 0] - top[:, 1] > 2 * tolerance
        assert torch.equal(torch.tensor(ours.argmax[row], dtype=torch.long)[clear], other.argmax(-1)[clear])
