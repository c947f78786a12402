"""The weights of a blueprint, packed in the layout and the number format that `kernel/` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tasks.decoding.runtimes import blueprint, layout
from tasks.decoding.runtimes.huge_pages import HugePages, aligned

FORMATS = ("float32", "bfloat16", "int8")
_SIZES = {"float32": 4, "bfloat16": 2, "int8": 1}
_READ_BY_A_STEP = ("query_key_value", "out", "cross_query", "cross_out", "feed_in", "feed_out")
_ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")


class PackedStack:
    """A `Stack` of `kernel/`, and the tensors that it points to."""

    def __init__(self, stack: blueprint.Stack, number_format: str, panel: int) -> None:
        """Pack all matrices in `number_format` (one of `FORMATS`); norms, embeddings and biases stay in float32."""
        # Without the matrices, because fused ones would be held twice.
        self.blueprint = replace(stack, layers=(), head=None)
        self._kept: list[object] = []
        self._format = number_format
        self._panel = panel
        self._pages = HugePages(sum(aligned(self._packed_bytes(*linear.weight.shape)) for linear in _matrices(stack)))
        layers = (layout.Layer * len(stack.layers))(*(self._layer(layer) for layer in stack.layers))
        self._kept.append(layers)
        self.native = layout.Stack(
            layers=len(stack.layers),
            width=stack.width,
            heads=stack.heads,
            key_value_heads=stack.key_value_heads,
            head_width=stack.head_width,
            activation=_ACTIVATIONS.index(stack.activation),
            gated=stack.gated,
            causal=stack.causal,
            format=FORMATS.index(number_format),
            threads=1,
            epsilon=stack.epsilon,
            score_scale=stack.score_scale,
            head_scale=stack.head_scale,
            layer=layers,
            embedding=self.pointer(stack.embedding),
            learned_positions=self.pointer(stack.learned_positions),
            norm=self._norm(stack.norm),
            head=self._linear(stack.head),
        )
        self.reference = ctypes.byref(self.native)
        """The argument of kernel calls."""

    def _packed_bytes(self, outputs: int, inputs: int) -> int:
        return inputs * -(-outputs // self._panel) * self._panel * _SIZES[self._format]

    @property
    def step_bytes(self) -> int:
        """Bytes of the matrices that a run reads once, whatever its number of tokens; sources are projected before."""
        layers = [self.native.layer[index] for index in range(self.native.layers)]
        read = [getattr(layer, name) for layer in layers for name in _READ_BY_A_STEP] + [self.native.head]
        return sum(self._packed_bytes(int(one.outputs), int(one.inputs)) for one in read)

    def _layer(self, layer: blueprint.Layer) -> layout.Layer:
        cross = layer.cross
        return layout.Layer(
            norm=self._norm(layer.norm),
            query_key_value=self._linear(layer.query_key_value),
            out=self._linear(layer.out),
            cross_norm=layout.Norm() if cross is None else self._norm(cross.norm),
            cross_query=self._linear(None if cross is None else cross.query),
            cross_key_value=self._linear(None if cross is None else cross.key_value),
            cross_out=self._linear(None if cross is None else cross.out),
            feed_norm=self._norm(layer.feed_norm),
            feed_in=self._linear(layer.feed_in),
            feed_out=self._linear(layer.feed_out),
        )

    def _norm(self, norm: blueprint.Norm) -> layout.Norm:
        return layout.Norm(self.pointer(norm.weight), self.pointer(norm.bias))

    def _linear(self, linear: blueprint.Linear | None) -> layout.Linear:
        if linear is None:
            return layout.Linear()
        outputs, inputs = linear.weight.shape
        weight, scale = _NUMBERS[self._format](linear.weight.detach().float())
        padding = -outputs % self._panel
        padded = pad(weight, (0, 0, 0, padding)).view(-1, self._panel, inputs).transpose(1, 2)
        panels = self._pages.take(padded.shape, padded.dtype).copy_(padded)
        bias = None if linear.bias is None else pad(linear.bias.detach().float(), (0, padding))
        scale = None if scale is None else pad(scale, (0, padding))
        return layout.Linear(self._keep(panels), self.pointer(scale), self.pointer(bias), inputs, outputs)

    def pointer(self, tensor: Tensor | None) -> int | None:
        """Return the address of a float32 copy, or of the tensor itself if it has that format, and keep it alive."""
        return None if tensor is None else self._keep(tensor.detach().float().contiguous())

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def _matrices(stack: blueprint.Stack) -> list[blueprint.Linear]:
    """All matrices of a stack, in the order in which they are packed: that in which a step reads them."""
    found: list[blueprint.Linear | None] = []
    for layer in stack.layers:
        cross = layer.cross
        found += [layer.query_key_value, layer.out]
        found += [] if cross is None else [cross.query, cross.key_value, cross.out]
        found += [layer.feed_in, layer.feed_out]
    return [linear for linear in (*found, stack.head) if linear is not None]


def _int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise to integers with one scale for each output: w ≈ scale · n, |n| ≤ 127."""
    scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


_NUMBERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor | None]]] = {
    "float32": lambda weight: (weight, None),
    "bfloat16": lambda weight: (weight.bfloat16(), None),
    "int8": _int8,
}
