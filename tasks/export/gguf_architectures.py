"""Architectures of llama.cpp: what a GGUF file says of a model's shape, and how it lays out the weights.

Keys and tensor names are those of the `gguf` package, which is a part of llama.cpp. Some settings have no key because the code
of llama.cpp holds their value. A model that has another value would write nonsense there, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Weights = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class GGUFArchitecture:
    """An architecture, as llama.cpp runs it."""

    name: str
    """In GGUF; the `gguf` package has it as a member of `MODEL_ARCH`, in capitals."""
    assumed: dict[str, tuple[Any, ...]]
    """Settings of `config.json` that no key holds, a dot before a part of one, and the values at which llama.cpp is right."""
    describe: Callable[[Any, Any], None]
    """Adds the shape in a configuration, the first argument, to a `gguf.GGUFWriter`."""
    weights: Callable[[PreTrainedModel], Weights]
    """Weights by their names in `transformers`, with the values and the layout of GGUF."""

    def deviations(self, config: Any) -> list[str]:
        """Return the settings of a configuration at which llama.cpp would compute something else."""
        found = ((name, _setting(config, name)) for name in self.assumed)
        return [f"{name} {value!r}" for name, value in found if value not in self.assumed[name]]


def _setting(config: Any, name: str) -> Any:
    name, _, part = name.partition(".")
    value = getattr(config, name)
    return value[part] if part else value


def _describe_llama(config: Any, writer: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _llama_weights(model: PreTrainedModel) -> Weights:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        count = heads.get(name.split(".")[-2])
        yield name, weight if count is None else _interleaved(weight, count)
    if config.rope_parameters["rope_type"] != "default":
        yield "rope_freqs.weight", _frequency_divisors(model)


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection: rotary pairs are neighbours in GGUF.

    Args:
        weight: (heads * width, inputs), or a bias, (heads * width); in transformers, a pair is half a head apart.
        heads: Heads of the projection.
    """
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _frequency_divisors(model: PreTrainedModel) -> Tensor:
    """Return what llama.cpp divides each rotary frequency by, (width / 2): the unscaled frequency over the model's own."""
    config = model.config
    own: Tensor = model.get_decoder().rotary_emb.inv_freq
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    unscaled: Tensor = config.rope_parameters["rope_theta"] ** -exponents
    return unscaled / own


def _describe_gpt2(config: Any, writer: Any) -> None:
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd if config.n_inner is None else config.n_inner)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _gpt2_weights(model: PreTrainedModel) -> Weights:
    """The layers of GPT-2 in transformers hold their matrices as (inputs, outputs)."""
    for name, weight in model.state_dict().items():
        yield name, weight.T if ".h." in name and weight.dim() == 2 else weight


_UNBOUNDED_CONTEXT = 512
"""llama.cpp's converter writes this for a T5 whose configuration has no length; relative positions set no limit."""


def _describe_t5(config: Any, writer: Any) -> None:
    writer.add_context_length(getattr(config, "n_positions", _UNBOUNDED_CONTEXT))
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers + _idle_layers(config))
    writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_decoder_start_token_id(config.decoder_start_token_id)


def _idle_layers(config: Any) -> int:
    """Return how many layers the encoder of a T5 is given that leave what they read as it is.

    llama.cpp keeps the decoder's past in as many layers as the encoder has, and does not open a model with more in its decoder
    (tried with xllamacpp 2026.10).
    """
    deeper: int = config.num_decoder_layers - config.num_layers
    return max(deeper, 0)


def _t5_weights(model: PreTrainedModel) -> Weights:
    """T5 1.0 scales what the output matrix reads by d_model^-0.5, which llama.cpp does not do: the matrix is scaled here."""
    scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
    for name, weight in model.state_dict().items():
        if name not in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):  # both are `shared.weight`
            yield name, weight * scale if name == "lm_head.weight" else weight
    first = model.get_encoder().block[0].state_dict()
    for layer in range(model.config.num_layers, model.config.num_layers + _idle_layers(model.config)):
        for name, weight in first.items():
            if "relative_attention_bias" not in name:  # a part of the first layer alone
                yield f"encoder.block.{layer}.{name}", torch.zeros_like(weight)  # a layer adds nothing to its input


ARCHITECTURES = {
    "llama": GGUFArchitecture(
        "llama",
        {"hidden_act": ("silu",), "rope_parameters.rope_type": ("default", "linear", "llama3")},
        _describe_llama,
        _llama_weights,
    ),
    "gpt2": GGUFArchitecture(
        "gpt2",
        {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
        _describe_gpt2,
        _gpt2_weights,
    ),
    "t5": GGUFArchitecture(
        "t5",
        {"feed_forward_proj": ("relu", "gated-gelu"), "relative_attention_max_distance": (128,)},
        _describe_t5,
        _t5_weights,
    ),
}
"""By `model_type` of `config.json`."""
