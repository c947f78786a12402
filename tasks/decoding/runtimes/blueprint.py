"""The weights of a transformer as the fast runtimes use them: one plain structure for all architectures.

Projections of the same input are parts of one matrix; relative-position biases and rotary angles are tables. `blueprint_of`
fills this structure from a `transformers` model, by one reader for each architecture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.models.layers import head_scale
from tasks.models.pruned_head import PrunedHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.bart.modeling_bart import BartDecoder, BartDecoderLayer, BartEncoder, BartEncoderLayer
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RMSNorm
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
    from transformers.models.marian.modeling_marian import MarianDecoder, MarianDecoderLayer, MarianEncoder, MarianEncoderLayer
    from transformers.models.t5.modeling_t5 import T5Block, T5LayerNorm, T5Stack
    from transformers.pytorch_utils import Conv1D

Table = Callable[[int], Tensor]
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")
"""Those of the fast runtimes, in the order of the kernel's `Activation`."""
_OTHER_NAMES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}
"""Activations that `transformers` has under two names."""
_LONGEST_WINDOW = 1 << 31
_GEMMA_NORMS = ("Gemma2RMSNorm", "Gemma3RMSNorm")


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b."""

    weight: Tensor
    """(outputs, inputs): W, or its first rows."""
    bias: Tensor | None = None
    """(outputs,)."""
    further: tuple[Tensor, ...] = ()
    """The rows of W after those: other projections of the same input, which are joined where W is copied anyway."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All rows of W, in blocks (outputs of the block, inputs)."""
        return (self.weight, *self.further)

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return sum(part.shape[0] for part in self.parts), self.weight.shape[1]


@dataclass(frozen=True)
class Norm:
    """Root mean square norm, or layer norm where there is a bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class CrossAttention:
    """Attention over an encoded source; its keys and values are computed once for each source."""

    norm: Norm
    query: Linear
    key_value: Linear
    out: Linear


@dataclass(frozen=True)
class Layer:
    """One layer: self-attention, cross-attention in an encoder-decoder, and feed-forward, each with a norm."""

    norm: Norm
    query_key_value: Linear
    out: Linear
    cross: CrossAttention | None
    feed_norm: Norm
    feed_in: Linear
    """(inner width, width); with a gate, its rows come first."""
    feed_out: Linear
    head_norms: tuple[Norm, Norm] | None = None
    """Norms (head width,) of each query and of each key, before they are rotated."""
    post_norms: tuple[Norm, Norm] | None = None
    """Norms of what self-attention and what feed-forward add to the hidden state."""
    window: int = 0
    """Tokens that self-attention reads, the last ones and the token itself; 0: all."""


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder."""

    heads: int
    key_value_heads: int
    head_width: int
    epsilon: float
    activation: str
    """One of `ACTIVATIONS`."""
    gated: bool
    causal: bool
    score_scale: float
    """Factor of the query-key products."""
    embedding: Tensor
    """(vocabulary, width)."""
    layers: tuple[Layer, ...]
    norm: Norm | None
    """Of the last hidden state, if there is one."""
    norm_last: bool = False
    """Whether the norm of a block comes behind it, once the block is added to the hidden state."""
    head: Linear | None = None
    head_scale: float = 1.0
    """Factor of the last hidden state before the head."""
    head_tokens: Tensor | None = None
    """int64 (outputs of the head,), ascending: the token of each output; none: output i is token i."""
    embedding_scale: float = 1.0
    """Factor of the embedding."""
    score_cap: float = 0.0
    """Attention scores x become c tanh(x / c); 0: they stay."""
    logit_cap: float = 0.0
    """Logits likewise."""
    learned_positions: Tensor | None = None
    """(positions, width), added to the embedding."""
    embedding_norm: Norm | None = None
    """Of the sum of both."""
    position_bias: Table | None = field(default=None, compare=False)
    """Maps the longest distance d to biases (heads, 2 d + 1), indexed by key position - query position + d."""
    rotary: Table | None = field(default=None, compare=False)
    """Maps a number of positions to the cosines and sines that rotate queries and keys: (2, positions, head width)."""
    window_rotary: Table | None = field(default=None, compare=False)
    """Those of the layers with a window; none: `rotary`."""

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return int(self.embedding.shape[1])


@dataclass(frozen=True)
class Blueprint:
    """A model: a decoder, and an encoder if it has one."""

    decoder: Stack
    encoder: Stack | None = None


def blueprint_of(model: PreTrainedModel) -> Blueprint | None:
    """Return the blueprint of a model in evaluation mode; none if its architecture or configuration is not supported.

    All matrices are the model's own weights, not copies, except the rows of a pruned head.
    """
    read = _READERS.get(model.config.model_type)
    try:
        return None if read is None else read(model)
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A module is not the one that its architecture normally has."""


def _activation(name: str) -> str:
    """Return our name of an activation of `transformers`."""
    ours = _OTHER_NAMES.get(name, name)
    if ours not in ACTIVATIONS:
        raise _UnknownError
    return ours


def _t5(model: PreTrainedModel) -> Blueprint | None:
    head, tokens = _head(model.lm_head)
    decoder = _t5_stack(model.decoder, head, head_scale(model))
    return Blueprint(replace(decoder, head_tokens=tokens), encoder=_t5_stack(model.encoder, None, 1.0))


def _t5_stack(stack: T5Stack, head: Linear | None, scale: float) -> Stack:
    attention = stack.block[0].layer[0].SelfAttention
    return Stack(
        heads=attention.n_heads,
        key_value_heads=attention.n_heads,
        head_width=attention.key_value_proj_dim,
        epsilon=_epsilon(stack.final_layer_norm),
        activation=_activation(stack.config.dense_act_fn),
        gated=stack.config.is_gated_act,
        causal=stack.config.is_decoder,
        score_scale=attention.scaling,
        embedding=stack.embed_tokens.weight,
        layers=tuple(_t5_layer(block) for block in stack.block),
        norm=Norm(stack.final_layer_norm.weight),
        head=head,
        head_scale=scale,
        # All layers use the first one's.
        position_bias=_DistanceBias(
            attention.relative_attention_bias.weight, attention.relative_attention_max_distance, stack.config.is_decoder
        ),
    )


def _t5_layer(block: T5Block) -> Layer:
    # An encoder's block has self-attention and feed-forward; a decoder's has cross-attention between them.
    own, feed = block.layer[0], block.layer[-1]
    cross = None
    if len(block.layer) == 3:
        other = block.layer[1]
        attention = other.EncDecAttention
        cross = CrossAttention(
            Norm(other.layer_norm.weight), _linear(attention.q), _fused(attention.k, attention.v), _linear(attention.o)
        )
    dense = feed.DenseReluDense
    gated = hasattr(dense, "wi_0")
    return Layer(
        norm=Norm(own.layer_norm.weight),
        # q, k and v read the same hidden state: one product with their rows one below the other.
        query_key_value=_fused(own.SelfAttention.q, own.SelfAttention.k, own.SelfAttention.v),
        out=_linear(own.SelfAttention.o),
        cross=cross,
        feed_norm=Norm(feed.layer_norm.weight),
        # wi_0 is the gate: its rows come first.
        feed_in=_fused(dense.wi_0, dense.wi_1) if gated else _linear(dense.wi),
        feed_out=_linear(dense.wo),
    )


@dataclass(frozen=True)
class _DistanceBias:
    """T5's biases by the distance of two tokens, in buckets that grow with the distance."""

    weight: Tensor
    """(buckets, heads)."""
    furthest: int
    """Distance from which on all are in the last bucket."""
    causal: bool
    """Whether keys lie before the query alone, and have all buckets."""

    @torch.inference_mode()
    def __call__(self, longest: int) -> Tensor:
        ahead = torch.arange(-longest, longest + 1, device=self.weight.device)
        distance, buckets, first = (-ahead).clamp(min=0), len(self.weight), torch.zeros_like(ahead)
        if not self.causal:
            # The second half of the buckets is that of the keys behind the query.
            distance, buckets = ahead.abs(), buckets // 2
            first = (ahead > 0) * buckets
        exact = buckets // 2
        growth = torch.log(distance.float() / exact) / math.log(self.furthest / exact) * (buckets - exact)
        further = (exact + growth.clamp(min=0).long()).clamp(max=buckets - 1)
        chosen = first + torch.where(distance < exact, distance, further)
        return self.weight[chosen].T.contiguous()


def _llama(model: PreTrainedModel) -> Blueprint | None:
    rotary, norm = model.model.rotary_emb, model.model.norm
    decoder = _llama_stack(model, _epsilon(norm), model.config.hidden_act, _llama_layer, Norm(norm.weight))
    return Blueprint(replace(decoder, rotary=_rotary(rotary, rotary.rope_type, decoder.head_width)))


def _llama_stack(
    model: PreTrainedModel, epsilon: float, activation: str, layer_of: Callable[[Any], Layer], norm: Norm
) -> Stack:
    """The decoder of a model whose modules have Llama's names, without its angles."""
    config, inner = model.config, model.model
    attention = inner.layers[0].self_attn
    head, tokens = _head(model.lm_head)
    return Stack(
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_width=attention.head_dim,
        epsilon=epsilon,
        activation=_activation(activation),
        gated=True,
        causal=True,
        score_scale=attention.scaling,
        embedding=inner.embed_tokens.weight,
        layers=tuple(layer_of(layer) for layer in inner.layers),
        norm=norm,
        head=head,
        head_tokens=tokens,
    )


def _llama_layer(layer: LlamaDecoderLayer | Gemma2DecoderLayer) -> Layer:
    attention, feed = layer.self_attn, layer.mlp
    return Layer(
        norm=Norm(layer.input_layernorm.weight),
        query_key_value=_fused(attention.q_proj, attention.k_proj, attention.v_proj),
        out=_linear(attention.o_proj),
        cross=None,
        feed_norm=Norm(layer.post_attention_layernorm.weight),
        feed_in=_fused(feed.gate_proj, feed.up_proj),
        feed_out=_linear(feed.down_proj),
        # Qwen3 alone has them.
        head_norms=(Norm(attention.q_norm.weight), Norm(attention.k_norm.weight)) if hasattr(attention, "q_norm") else None,
        window=_window(attention),
    )


def _window(attention: torch.nn.Module) -> int:
    """Return the window of a layer's attention, which Llama has never, and 0 for none."""
    window = getattr(attention, "sliding_window", None)
    if window is None:
        return 0
    # A token reads itself at least, and compiled code counts in 64 bits.
    if window < 1:
        raise _UnknownError
    return min(int(window), _LONGEST_WINDOW)


@dataclass(frozen=True)
class _Angles:
    """Cosines and sines by position, so that the runtimes need no angle of their own."""

    frequencies: Tensor
    """(head width / 2,): θ_i."""
    scale: float
    """Factor of cosines and sines."""

    @torch.inference_mode()
    def __call__(self, positions: int) -> Tensor:
        indices = torch.arange(positions, device=self.frequencies.device).float()
        angles = torch.outer(indices, self.frequencies.float()).repeat(1, 2)  # (positions, head width)
        return torch.stack([angles.cos(), angles.sin()]) * self.scale


def _rotary(rotary: torch.nn.Module, rope_type: str, head_width: int, prefix: str = "") -> Table:
    """Return the table of a model's module; its angles are named with a prefix where there are several kinds of layers."""
    frequencies: Tensor = getattr(rotary, f"{prefix}inv_freq")
    # Other kinds of scaling make the angles depend on the length of the text, or rotate only a part of each head.
    if rope_type not in ("default", "linear", "llama3") or 2 * len(frequencies) != head_width:
        raise _UnknownError
    return _Angles(frequencies, getattr(rotary, f"{prefix}attention_scaling"))


def _gemma2(model: PreTrainedModel) -> Blueprint | None:
    attention, rotary = model.model.layers[0].self_attn, model.model.rotary_emb
    decoder = replace(
        _gemma_stack(model),
        score_cap=attention.attn_logit_softcapping or 0.0,
        rotary=_rotary(rotary, rotary.rope_type, attention.head_dim),
    )
    return Blueprint(decoder)


def _gemma3(model: PreTrainedModel) -> Blueprint | None:
    attention, rotary = model.model.layers[0].self_attn, model.model.rotary_emb
    # Layers with a window have angles of their own; a model may have layers of one kind alone.
    tables = {kind: _rotary(rotary, rope_type, attention.head_dim, f"{kind}_") for kind, rope_type in rotary.rope_type.items()}
    # The model has a setting for capped scores, which it does not use.
    decoder = replace(_gemma_stack(model), rotary=tables.get("full_attention"), window_rotary=tables.get("sliding_attention"))
    return Blueprint(decoder)


def _gemma_stack(model: PreTrainedModel) -> Stack:
    config, embedding = model.config, model.model.embed_tokens
    if config.use_bidirectional_attention:
        raise _UnknownError
    norm = _gemma_norm(model.model.norm)
    return replace(
        _llama_stack(model, config.rms_norm_eps, config.hidden_activation, _gemma_layer, norm),
        # In the number format of the embedding, to which the model rounds it.
        embedding_scale=float(embedding.embed_scale.to(embedding.weight.dtype)),
        logit_cap=config.final_logit_softcapping or 0.0,
    )


def _gemma_layer(layer: Gemma2DecoderLayer) -> Layer:
    attention = layer.self_attn
    return replace(
        _llama_layer(layer),
        norm=_gemma_norm(layer.input_layernorm),
        # The norms that Llama's layers name alike come before feed-forward.
        feed_norm=_gemma_norm(layer.pre_feedforward_layernorm),
        # Gemma 3 alone has them.
        head_norms=(_gemma_norm(attention.q_norm), _gemma_norm(attention.k_norm)) if hasattr(attention, "q_norm") else None,
        post_norms=(_gemma_norm(layer.post_attention_layernorm), _gemma_norm(layer.post_feedforward_layernorm)),
    )


@torch.no_grad()
def _gemma_norm(module: Gemma2RMSNorm) -> Norm:
    # Another norm would not add 1 to its weight.
    if type(module).__name__ not in _GEMMA_NORMS:
        raise _UnknownError
    return Norm(1 + module.weight.float())


def _gpt2(model: PreTrainedModel) -> Blueprint | None:
    config, inner = model.config, model.transformer
    if config.scale_attn_by_inverse_layer_idx or config.reorder_and_upcast_attn or config.add_cross_attention:
        return None
    attention = inner.h[0].attn
    head, tokens = _head(model.lm_head)
    decoder = Stack(
        heads=attention.num_heads,
        key_value_heads=attention.num_heads,
        head_width=attention.head_dim,
        epsilon=config.layer_norm_epsilon,
        activation=_activation(config.activation_function),
        gated=False,
        causal=True,
        score_scale=attention.scaling,
        embedding=inner.wte.weight,
        layers=tuple(_gpt2_layer(block) for block in inner.h),
        norm=Norm(inner.ln_f.weight, inner.ln_f.bias),
        head=head,
        head_tokens=tokens,
        # GPT-2 adds a row of this matrix to each embedding; there are no others.
        learned_positions=inner.wpe.weight,
    )
    return Blueprint(decoder)


def _gpt2_layer(block: GPT2Block) -> Layer:
    return Layer(
        norm=Norm(block.ln_1.weight, block.ln_1.bias),
        # c_attn is q, k and v in one matrix already.
        query_key_value=_transposed(block.attn.c_attn),
        out=_transposed(block.attn.c_proj),
        cross=None,
        feed_norm=Norm(block.ln_2.weight, block.ln_2.bias),
        feed_in=_transposed(block.mlp.c_fc),
        feed_out=_transposed(block.mlp.c_proj),
    )


def _bart(model: PreTrainedModel) -> Blueprint | None:
    if not model.config.is_encoder_decoder:
        return None
    sides = model.model.encoder, model.model.decoder
    # Sources are held to the decoder's tokens and positions.
    if len({(len(side.embed_tokens.weight), len(side.embed_positions.weight)) for side in sides}) > 1:
        return None
    encoder, decoder = map(_bart_stack, sides)
    head, tokens = _head(model.lm_head)
    bias = model.final_logits_bias[0]
    # A head without a bias can be shared, and mostly it is none.
    if bias.any():
        chosen = bias if tokens is None else bias[tokens]
        head = replace(head, bias=chosen if head.bias is None else head.bias + chosen)
    return Blueprint(replace(decoder, head=head, head_tokens=tokens), encoder)


def _bart_stack(stack: BartDecoder | BartEncoder | MarianDecoder | MarianEncoder) -> Stack:
    config, attention, positions = stack.config, stack.layers[0].self_attn, stack.embed_positions
    normed = hasattr(stack, "layernorm_embedding")
    return Stack(
        heads=attention.num_heads,
        key_value_heads=attention.num_heads,
        head_width=attention.head_dim,
        epsilon=stack.layers[0].final_layer_norm.eps,
        activation=_activation(config.activation_function),
        gated=False,
        causal=attention.is_causal,
        score_scale=attention.scaling,
        embedding=stack.embed_tokens.weight,
        layers=tuple(_bart_layer(layer) for layer in stack.layers),
        norm=None,
        norm_last=True,
        embedding_scale=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
        # BART's first rows are no positions.
        learned_positions=positions.weight[getattr(positions, "offset", 0) :],
        embedding_norm=_layer_norm(stack.layernorm_embedding) if normed else None,
    )


def _bart_layer(layer: BartDecoderLayer | BartEncoderLayer | MarianDecoderLayer | MarianEncoderLayer) -> Layer:
    own, cross = layer.self_attn, None
    if hasattr(layer, "encoder_attn"):
        other = layer.encoder_attn
        norm, key_value = _layer_norm(layer.encoder_attn_layer_norm), _fused(other.k_proj, other.v_proj)
        cross = CrossAttention(norm, _linear(other.q_proj), key_value, _linear(other.out_proj))
    return Layer(
        norm=_layer_norm(layer.self_attn_layer_norm),
        query_key_value=_fused(own.q_proj, own.k_proj, own.v_proj),
        out=_linear(own.out_proj),
        cross=cross,
        feed_norm=_layer_norm(layer.final_layer_norm),
        feed_in=_linear(layer.fc1),
        feed_out=_linear(layer.fc2),
    )


def _layer_norm(module: torch.nn.Module) -> Norm:
    if type(module) is not torch.nn.LayerNorm:
        raise _UnknownError
    return Norm(module.weight, module.bias)


@torch.no_grad()
def _head(module: torch.nn.Module) -> tuple[Linear, Tensor | None]:
    """Return an output head, and the token of each of its outputs if it has those of a draft vocabulary alone."""
    if not isinstance(module, PrunedHead):
        return _linear(module), None
    # A draft vocabulary: the rows of its tokens alone, (N, width), and their ids.
    return Linear(*module.selected()), module.tokens


def _linear(module: torch.nn.Module) -> Linear:
    # Adapters and quantisers substitute modules that compute with more than their `weight`.
    if type(module) is not torch.nn.Linear:
        raise _UnknownError
    return Linear(module.weight, module.bias)


def _epsilon(norm: T5LayerNorm | LlamaRMSNorm) -> float:
    """Return the epsilon of T5's and Llama's norms; refuse a norm that another library has substituted."""
    epsilon: float | None = getattr(norm, "variance_epsilon", None)
    if epsilon is None:
        raise _UnknownError
    return epsilon


def _transposed(module: Conv1D) -> Linear:
    """Read a GPT-2 projection, whose matrix is (inputs, outputs)."""
    from transformers.pytorch_utils import Conv1D

    if type(module) is not Conv1D:
        raise _UnknownError
    return Linear(module.weight.T, module.bias)


def _fused(*modules: torch.nn.Module) -> Linear:
    first, *others = [_linear(module) for module in modules]
    # Either all parts have a bias or none has.
    biases = [part.bias.detach() for part in (first, *others) if part.bias is not None]
    return Linear(first.weight, torch.cat(biases) if biases else None, tuple(part.weight for part in others))


_READERS: dict[str, Callable[[PreTrainedModel], Blueprint | None]] = {
    "t5": _t5,
    "mt5": _t5,
    "llama": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "bart": _bart,
    "marian": _bart,
}
