"""An encoder or decoder in few PyTorch operations that never wait for the device, so that they can be recorded.

From top to bottom: weights in one number format, the stack that runs them, and the static caches of a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasks.decoding.runtimes.blueprint import CrossAttention, Layer, Linear, Norm, Stack
from tasks.decoding.runtimes.cuda_graphs import rounded_positions
from tasks.models.pruned_head import spread

FORMATS = ("float32", "bfloat16")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def layer_in(layer: Layer, dtype: torch.dtype) -> Layer:
    """Convert a layer. The source's key-value projection is left out, because all layers share one matrix: see `joined`."""
    cross = layer.cross
    return Layer(
        norm=norm_in(layer.norm, dtype),
        query_key_value=linear_in(layer.query_key_value, dtype),
        out=linear_in(layer.out, dtype),
        cross=None
        if cross is None
        else CrossAttention(
            norm_in(cross.norm, dtype), linear_in(cross.query, dtype), Linear(torch.empty(0)), linear_in(cross.out, dtype)
        ),
        feed_norm=norm_in(layer.feed_norm, dtype),
        feed_in=linear_in(layer.feed_in, dtype),
        feed_out=linear_in(layer.feed_out, dtype),
        head_norms=norms_in(layer.head_norms, dtype),
        post_norms=norms_in(layer.post_norms, dtype),
        window=layer.window,
    )


def joined(linears: list[Linear]) -> Linear:
    """Join several projections of the same input into one matrix."""
    biases = [one.bias for one in linears if one.bias is not None]
    return Linear(torch.cat([part for one in linears for part in one.parts]), torch.cat(biases) if biases else None)


def norm_in(norm: Norm, dtype: torch.dtype) -> Norm:
    """Convert a norm."""
    return Norm(norm.weight.detach().to(dtype), None if norm.bias is None else norm.bias.detach().to(dtype))


def norms_in(norms: tuple[Norm, Norm] | None, dtype: torch.dtype) -> tuple[Norm, Norm] | None:
    """Convert two norms, if there are any."""
    return None if norms is None else (norm_in(norms[0], dtype), norm_in(norms[1], dtype))


def linear_in(linear: Linear, dtype: torch.dtype, outputs: int | None = None) -> Linear:
    """Convert the first `outputs` rows of a projection, and join its parts."""
    bias = None if linear.bias is None else linear.bias.detach()[:outputs].to(dtype)
    weight = torch.cat([part.detach() for part in linear.parts]) if linear.further else linear.weight.detach()
    return Linear(weight[:outputs].to(dtype), bias)


@dataclass(frozen=True)
class CacheView:
    """The caches that a run of a decoder writes to, and the parts of them that it reads."""

    own: Tensor
    """(layers, slots, capacity, 2 key-value heads · head width): keys, then values."""
    slot_mapping: Tensor
    """(rows · new tokens,), int64: the index of each new token in slots · capacity."""
    kv_length: int
    """Positions that attention reads of each text."""
    cross: Tensor
    """(layers, rows, source positions, 2 heads · head width)."""
    source_mask: Tensor
    """(rows, 1, 1, source positions), added to scores."""

    def of(self, layer: int) -> CacheView:
        """Return the view of one layer, without the `layers` dimension."""
        return replace(self, own=self.own[layer], cross=self.cross[layer])


class FusedStack:
    """The weights of a `Stack` in one number format, with position tables that grow with the texts."""

    def __init__(self, stack: Stack, dtype: torch.dtype, vocabulary: int) -> None:
        """Take a stack; its head, if any, predicts the ids below `vocabulary`."""
        learned = stack.learned_positions
        self.shape = replace(
            stack,
            layers=(),
            embedding=stack.embedding.detach().to(dtype),
            learned_positions=None if learned is None else learned.detach().to(dtype),
            norm=None if stack.norm is None else norm_in(stack.norm, dtype),
            embedding_norm=None if stack.embedding_norm is None else norm_in(stack.embedding_norm, dtype),
            head=None if stack.head is None else linear_in(stack.head, dtype, vocabulary),
        )
        self._vocabulary = vocabulary
        self._dtype = dtype
        self._device = stack.embedding.device
        self.layers = [layer_in(layer, dtype) for layer in stack.layers]
        self._windows = {layer.window for layer in self.layers}
        self._activation = ACTIVATIONS[stack.activation]
        self._groups = stack.heads // stack.key_value_heads
        crosses = [layer.cross.key_value for layer in stack.layers if layer.cross is not None]
        self._source = linear_in(joined(crosses), dtype) if crosses else None
        self.longest = 0
        self._bias = torch.empty(0)
        self._angles: dict[int, Tensor] = {}
        """By the window of a layer."""
        self.columns = torch.empty(0, dtype=torch.long)

    def fit(self, longest: int) -> bool:
        """Makes tables for texts of that length; true where they are new."""
        if longest <= self.longest:
            return False
        self.longest = longest
        shape = self.shape
        self.columns = torch.arange(longest, device=self._device)
        bias = torch.zeros(1, 2 * longest + 1, device=self._device)
        if shape.position_bias is not None:
            bias = shape.position_bias(longest).detach().clone()
        if shape.causal:
            # Keys behind the query lie beyond the distance 0, at the index `longest`: a causal mask and a bias in one.
            bias[:, longest + 1 :] = -torch.inf
        self._bias = bias.to(self._dtype)
        for window in self._windows:
            rotary = shape.window_rotary if window and shape.window_rotary is not None else shape.rotary
            if rotary is not None:
                angles = rotary(longest).detach().clone()
                # So that turning is x cos + roll(x) sin.
                angles[1, :, : shape.head_width // 2].neg_()
                self._angles[window] = angles.to(self._dtype)
        return True

    def mask(self, positions: Tensor, kv_length: int) -> Tensor:
        """Return the bias of the scores of queries at `positions` (rows, new): (rows, heads or 1, new, kv_length)."""
        distances = self.columns[:kv_length] - positions[..., None] + self.longest  # (rows, new, kv_length)
        return self._bias[:, distances].transpose(0, 1)

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, caches: CacheView | None = None) -> Tensor:
        """Return the normed last hidden states of `ids` (rows, new) at `positions`: (rows, new, width).

        Without caches, as in an encoder, the new tokens read each other.
        """
        shape = self.shape
        rows, new = ids.shape
        hidden = functional.embedding(ids, shape.embedding).flatten(0, 1)  # (rows · new, width)
        if shape.embedding_scale != 1:
            hidden = hidden * shape.embedding_scale
        if shape.learned_positions is not None:
            known = shape.learned_positions.shape[0]
            # Padding may lie beyond the last position.
            hidden = hidden + functional.embedding(positions.clamp(max=known - 1), shape.learned_positions).flatten(0, 1)
        if shape.embedding_norm is not None:
            hidden = _normed(hidden, shape.embedding_norm, shape.epsilon)
        # (2, rows · new, 1, head width): cosines, then sines
        angles = {window: table[:, positions.flatten(), None] for window, table in self._angles.items()}
        masks = {window: self._grouped(self._within(window, mask, positions)) for window in self._windows}
        for index, layer in enumerate(self.layers):
            cached = None if caches is None else caches.of(index)
            hidden = self._block(layer, hidden, angles.get(layer.window), masks[layer.window], rows, cached)
        if shape.norm is not None:
            hidden = _normed(hidden, shape.norm, shape.epsilon)
        return hidden.view(rows, new, -1)

    def _block(
        self, layer: Layer, hidden: Tensor, angles: Tensor | None, mask: Tensor, rows: int, caches: CacheView | None
    ) -> Tensor:
        """Run one layer on `hidden` (rows · new, width), which it may change in place."""
        shape = self.shape
        own_norm, feed_norm = layer.post_norms or (None, None)
        # 1. Attend to the text so far.
        heads = (rows, len(hidden) // rows, shape.heads, shape.head_width)
        projected = _linear(self._read(hidden, layer.norm), layer.query_key_value)
        if layer.head_norms is not None:
            projected = self._with_normed_heads(projected, layer.head_norms)
        query, keys, values = self._kept(projected, angles, rows, caches)
        hidden = self._added(hidden, self._attend(query.view(heads), keys, values, mask), layer.out, layer.norm, own_norm)
        # 2. Attend to the source.
        if layer.cross is not None and caches is not None:
            query = _linear(self._read(hidden, layer.cross.norm), layer.cross.query)
            keys, values = _halves(caches.cross, shape.heads)
            read = self._attend(query.view(heads), keys, values, caches.source_mask)
            hidden = self._added(hidden, read, layer.cross.out, layer.cross.norm)
        # 3. Feed forward.
        inner = _linear(self._read(hidden, layer.feed_norm), layer.feed_in)
        return self._added(hidden, self._activated(inner), layer.feed_out, layer.feed_norm, feed_norm)

    def _read(self, hidden: Tensor, norm: Norm) -> Tensor:
        """Return what a block with that norm reads."""
        return hidden if self.shape.norm_last else _normed(hidden, norm, self.shape.epsilon)

    def _added(self, hidden: Tensor, states: Tensor, linear: Linear, norm: Norm, post_norm: Norm | None = None) -> Tensor:
        """Add the projection of `states`, behind its own norm if it has one, to `hidden` (tokens, width), and change that."""
        if post_norm is not None:
            hidden.add_(_normed(_linear(states, linear), post_norm, self.shape.epsilon))
        else:
            # The residual connection and the product in one operation.
            hidden.addmm_(states, linear.weight.t())
            hidden = hidden if linear.bias is None else hidden.add_(linear.bias)
        return _normed(hidden, norm, self.shape.epsilon) if self.shape.norm_last else hidden

    def predict(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (rows, new, vocabulary) and the argmax tokens, int64 (rows, new): -1 where logits are broken."""
        if self.shape.head is None:
            raise ValueError("an encoder predicts nothing")
        scaled = hidden if self.shape.head_scale == 1 else hidden * self.shape.head_scale
        logits = _capped(_linear(scaled, self.shape.head), self.shape.logit_cap)
        if self.shape.head_tokens is not None:
            logits = spread(logits, self.shape.head_tokens, self._vocabulary)
        # Broken logits have no finite maximum; -1 tells the host without another pass or a wait.
        top, best = logits.max(-1)
        return logits, best.masked_fill_(~torch.isfinite(top), -1)

    def read(self, hidden: Tensor) -> Tensor:
        """Project an encoded source (rows, positions, width) to keys and values: (layers, rows, positions, size)."""
        if self._source is None:
            raise ValueError("a decoder-only model reads no source")
        rows, positions, _ = hidden.shape
        return _linear(hidden, self._source).view(rows, positions, len(self.layers), -1).permute(2, 0, 1, 3)

    def _with_normed_heads(self, projected: Tensor, norms: tuple[Norm, Norm]) -> Tensor:
        """Norm the queries and the keys among queries, keys and values (tokens, size), each head by itself."""
        shape = self.shape
        heads = projected.view(len(projected), -1, shape.head_width)
        # (tokens, heads of each, head width)
        query, key, value = heads.tensor_split([shape.heads, shape.heads + shape.key_value_heads], 1)
        normed = [_normed(part, norm, shape.epsilon) for part, norm in zip((query, key), norms, strict=True)]
        return torch.cat([*normed, value], 1).flatten(1)

    def _kept(
        self, projected: Tensor, angles: Tensor | None, rows: int, caches: CacheView | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cache new keys and values; return queries (tokens, size), and all keys and values (rows, positions, heads, width)."""
        shape = self.shape
        queries = shape.heads * shape.head_width
        if angles is not None:
            # Queries and keys are turned, values are not.
            both, values = projected.tensor_split([queries + shape.key_value_heads * shape.head_width], -1)
            projected = torch.cat([_turned(both, angles, shape.head_width), values], -1)
        query, fresh = projected.tensor_split([queries], -1)
        if caches is None:
            keys, values = _halves(fresh.view(rows, -1, fresh.shape[-1]), shape.key_value_heads)
        else:
            # Each new token to its own place in (slots · capacity, size), wherever its row stands.
            caches.own.flatten(0, 1).index_copy_(0, caches.slot_mapping, fresh)
            keys, values = _halves(caches.own[:rows, : caches.kv_length], shape.key_value_heads)
        return query, keys, values

    def _within(self, window: int, mask: Tensor, positions: Tensor) -> Tensor:
        """Mask what lies before the window of each query at `positions` (rows, new)."""
        if not window:
            return mask
        before = self.columns[: mask.shape[-1]] <= positions[..., None] - window  # (rows, new, keys)
        return mask.masked_fill(before[:, None], -torch.inf)

    def _grouped(self, mask: Tensor) -> Tensor:
        """Repeat the mask for groups of queries that share a key head."""
        if self._groups == 1:
            return mask
        # (rows, 1, new, keys): one mask for all heads, repeated for each query of a group.
        if mask.shape[1] == 1:
            return mask if mask.shape[2] == 1 else mask.repeat(1, 1, self._groups, 1)
        # (rows, heads, new, keys): the heads of a group become rows of one head.
        return mask.reshape(mask.shape[0], -1, self._groups * mask.shape[2], mask.shape[3])

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output of queries (rows, new, heads, width): (rows · new, heads · width)."""
        rows, new, heads, width = query.shape
        shared = keys.shape[2]
        grouped = query.transpose(1, 2) if shared == heads else query.view(rows, new, shared, -1, width).permute(0, 2, 3, 1, 4)
        # Queries that share a key head are rows of one matrix: (rows, shared, group · new, width).
        grouped, keys, values = grouped.reshape(rows, shared, -1, width), keys.transpose(1, 2), values.transpose(1, 2)
        if self.shape.score_cap:
            scores = _capped(grouped @ keys.transpose(2, 3) * self.shape.score_scale, self.shape.score_cap)
            read = torch.softmax(scores + mask, -1, dtype=torch.float32).to(values.dtype) @ values
        else:
            read = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=self.shape.score_scale)
        return read.view(rows, shared, -1, new, width).permute(0, 3, 1, 2, 4).reshape(rows * new, -1)

    def _activated(self, inner: Tensor) -> Tensor:
        if not self.shape.gated:
            return self._activation(inner)
        gate, rest = inner.chunk(2, -1)
        return self._activation(gate) * rest


def _normed(hidden: Tensor, norm: Norm, epsilon: float) -> Tensor:
    """Apply a norm."""
    size = (hidden.shape[-1],)
    if norm.bias is None:
        return functional.rms_norm(hidden, size, norm.weight, epsilon)
    return functional.layer_norm(hidden, size, norm.weight, norm.bias, epsilon)


def _linear(states: Tensor, linear: Linear) -> Tensor:
    return functional.linear(states, linear.weight, linear.bias)


def _capped(numbers: Tensor, cap: float) -> Tensor:
    """Keep numbers between -cap and cap, smoothly; 0: there is no cap."""
    return numbers if cap == 0 else torch.tanh(numbers / cap) * cap


def _turned(states: Tensor, angles: Tensor, width: int) -> Tensor:
    """Rotate heads by the angles (2, tokens, 1, width) of their positions: (tokens, size)."""
    heads = states.view(len(states), -1, width)
    # (x_1, x_2) to (x_1 cos - x_2 sin, x_2 cos + x_1 sin): the sign lies in the table.
    return torch.addcmul(heads * angles[0], heads.roll(width // 2, -1), angles[1]).flatten(1)


def _halves(both: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Split adjacent keys and values into two tensors (rows, positions, heads, width)."""
    keys, values = both.chunk(2, -1)
    return keys.view(*keys.shape[:-1], heads, -1), values.view(*values.shape[:-1], heads, -1)


def assign_slots(slots: Sequence[int], width: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Put the texts of these slots, some perhaps twice, into different slots below `width`.

    Returns:
        Their new slots, and the copies to make, as (from, to); none overwrites a slot that another is copied from.
    """
    taken: set[int] = set()
    staying = []
    for slot in slots:
        # The first row that asks for a slot keeps it; a copy of it, or a row beyond the width, moves.
        staying.append(slot < width and slot not in taken)
        if staying[-1]:
            taken.add(slot)
    free = (slot for slot in range(width) if slot not in taken)
    final = [slot if unmoved else next(free) for slot, unmoved in zip(slots, staying, strict=True)]
    moves = [(before, after) for before, after in zip(slots, final, strict=True) if before != after]
    return final, moves


class StaticKVCache:
    """The key-value caches of one decoder, which grow and are reused."""

    def __init__(self, stack: FusedStack, device: torch.device, dtype: torch.dtype) -> None:
        shape = stack.shape
        self._stack = stack
        self._device, self._dtype = device, dtype
        self._own_size = 2 * shape.key_value_heads * shape.head_width
        self._cross_size = 2 * shape.heads * shape.head_width
        self._own = self._empty(0, 0, self._own_size)
        self._cross = self._empty(0, 0, self._cross_size)
        self._source_mask = torch.empty(0, 0, device=self._device, dtype=self._dtype)
        self._first = torch.empty(0, dtype=torch.long, device=device)
        self._sources: list[int] = []
        """The source whose keys and values each slot holds; -1 where there is none."""

    def _empty(self, slots: int, positions: int, size: int) -> Tensor:
        # Zeros, because masked positions may hold anything but NaN.
        return torch.zeros(len(self._stack.layers), slots, positions, size, device=self._device, dtype=self._dtype)

    def fit(self, slots: int, positions: int) -> bool:
        """Grow to that many texts and positions, keeping the contents; return whether any tensor was replaced."""
        _, had, capacity, _ = self._own.shape
        if slots <= had and positions <= capacity:
            return self._stack.fit(capacity)
        grown = self._empty(max(slots, had), rounded_positions(max(positions, capacity)), self._own_size)
        grown[:, :had, :capacity] = self._own
        self._own = grown
        self._first = torch.arange(grown.shape[1], device=self._own.device)[:, None] * grown.shape[2]
        self._fit_sources(slots, self._cross.shape[2])
        self._stack.fit(grown.shape[2])
        return True

    def _fit_sources(self, slots: int, positions: int) -> bool:
        _, had, capacity, _ = self._cross.shape
        if not positions or (slots <= had and positions <= capacity):
            return False
        grown = self._empty(max(slots, had), max(positions, capacity), self._cross_size)
        grown[:, :had, :capacity] = self._cross
        # New slots and positions are masked until a source is read into them.
        mask = torch.full(grown.shape[1:3], torch.finfo(grown.dtype).min, device=self._device, dtype=self._dtype)
        mask[:had, :capacity] = self._source_mask
        self._cross, self._source_mask = grown, mask
        self._sources += [-1] * (grown.shape[1] - len(self._sources))
        return True

    def read(self, hidden: Tensor, mask: Tensor, positions: int) -> bool:
        """Read encoded sources (rows, source positions, width), one a slot, for texts that will attend to `positions` of them.

        Returns whether any tensor was replaced.
        """
        rows, length, _ = hidden.shape
        grown = self._fit_sources(self._own.shape[1], positions)
        self._cross[:, :rows, :length] = self._stack.read(hidden)
        self._source_mask[:rows].fill_(torch.finfo(hidden.dtype).min)
        self._source_mask[:rows, :length].masked_fill_(mask.bool(), 0)
        self._sources = [*range(rows), *[-1] * (len(self._sources) - rows)]
        return grown

    def view(self, positions: Tensor, kv_length: int, source_length: int) -> CacheView:
        """Return the view for new tokens at `positions` (rows, new) of the first slots."""
        rows = positions.shape[0]
        return CacheView(
            own=self._own,
            slot_mapping=(self._first[:rows] + positions).flatten(),
            kv_length=kv_length,
            cross=self._cross[:, :rows, :source_length],
            source_mask=self._source_mask[:rows, None, None, :source_length],
        )

    def move(self, moves: Sequence[tuple[int, int]], kv_length: int) -> None:
        """Copy the first `kv_length` positions of texts, and their sources where they differ, as `assign_slots` says."""
        if not moves:
            return
        before, after = self._index(moves)
        self._own[:, after, :kv_length] = self._own[:, before, :kv_length]
        if not self._sources:
            return
        # Rows of one source, such as beams, have its keys and values already.
        moves = [(one, other) for one, other in moves if self._sources[one] != self._sources[other]]
        if moves:
            before, after = self._index(moves)
            self._cross[:, after] = self._cross[:, before]
            self._source_mask[after] = self._source_mask[before]
            for one, other in moves:
                self._sources[other] = self._sources[one]

    def _index(self, moves: Sequence[tuple[int, int]]) -> Tensor:
        return torch.tensor(moves).t().to(self._own.device, non_blocking=True)

    def clear(self) -> None:
        """Zero everything: a NaN left behind would pass through the masks."""
        self._own.zero_()
        self._cross.zero_()
