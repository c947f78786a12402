"""The weights of a transformer as the fast runtimes use them: one plain structure for T5, Llama and GPT-2.

Projections of the same input are parts of one matrix; relative-position biases and rotary angles are tables.
`blueprint_readers` fills this structure from a `transformers` model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Table = Callable[[int], Tensor]


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
    """One layer: self-attention, cross-attention in an encoder-decoder, and feed-forward, each after a norm."""

    norm: Norm
    query_key_value: Linear
    out: Linear
    cross: CrossAttention | None
    feed_norm: Norm
    feed_in: Linear
    """(inner width, width); with a gate, its rows come first."""
    feed_out: Linear


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder."""

    heads: int
    key_value_heads: int
    head_width: int
    epsilon: float
    activation: str
    """relu, gelu, gelu_new or silu."""
    gated: bool
    causal: bool
    score_scale: float
    """Factor of the query-key products."""
    embedding: Tensor
    """(vocabulary, width)."""
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear | None = None
    head_scale: float = 1.0
    """Factor of the last hidden state before the head."""
    head_tokens: Tensor | None = None
    """int64 (outputs of the head,), ascending: the token of each output; none: output i is token i."""
    learned_positions: Tensor | None = None
    """(positions, width), added to the embedding."""
    position_bias: Table | None = field(default=None, compare=False)
    """Maps the longest distance d to biases (heads, 2 d + 1), indexed by key position - query position + d."""
    rotary: Table | None = field(default=None, compare=False)
    """Maps a number of positions to the cosines and sines that rotate queries and keys: (2, positions, head width)."""

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return int(self.embedding.shape[1])


@dataclass(frozen=True)
class Blueprint:
    """A model: a decoder, and an encoder if it has one."""

    decoder: Stack
    encoder: Stack | None = None
