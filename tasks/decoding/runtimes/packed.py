"""The weights of a blueprint, packed in the layout and the number format that `kernel/` reads, and the memory that they lie in.

Packed matrices lie in huge pages, and what was read of a checkpoint's file to pack them is given back to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from tasks.decoding.runtimes import blueprint, layout
from tasks.decoding.runtimes.layout import FORMATS

_NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_FLOATS = torch.empty(0, dtype=torch.float32, device="cpu")
_READ = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Number formats of weights that the kernel packs; others are widened before."""
_BLOCK_BYTES = 1 << 22
"""Bytes of weights that are packed at a time."""
_READ_BY_A_STEP = ("query_key_value", "out", "cross_query", "cross_out", "feed_in", "feed_out")

_PAGE = 1 << 21
"""Bytes of a huge page, where the system has them: weights that are read once a step need few address translations."""
_ALIGNMENT = 64
"""Bytes of a cache line, at which every tensor begins."""
_REGION = re.compile(r"^(\w+)-(\w+) \S+ \S+ \S+ (\d+).*?^Anonymous: +(\d+).*?^Swap: +(\d+)", re.MULTILINE | re.DOTALL)
"""A region of memory: its addresses, the number of its file, and how much of it is changed or swapped out."""
_MIN_BYTES = 1 << 16
"""Tensors that are smaller are not worth a call."""


class PackedStack:
    """A `Stack` of `kernel/`, and the tensors that it points to."""

    def __init__(
        self,
        stack: blueprint.Stack,
        number_format: str,
        functions: ctypes.CDLL,
        tied: layout.Linear | None = None,
        head: layout.Linear | None = None,
    ) -> None:
        """Pack all matrices in `number_format` (one of `FORMATS`); norms, embeddings and biases stay in float32.

        An embedding that is also the head is kept once, as the head, where that loses no bits. Weights that are mapped from a
        file leave memory as soon as they are packed.

        Args:
            stack: The weights. Those that are not packed are shared, not copied.
            number_format: Of the matrices.
            functions: Those of `compiled.library`.
            tied: The packed head of another stack, which must outlive this one, if its rows are this stack's embedding.
            head: The packed head of another stack, which must outlive this one, if it is this stack's head too.
        """
        embedded = tied_head(stack, stack.head, number_format)
        if head is not None:
            stack = replace(stack, head=None)
        # What is packed is not held here.
        self.blueprint = replace(stack, layers=(), head=None, embedding=stack.embedding.detach().to("meta"))
        self._kept: list[object] = []
        self._format = number_format
        self.functions = functions
        self._panel: int = functions.draftline_panel()
        self._pages = HugePages(sum(aligned(self._packed_bytes(*linear.shape)) for linear in _matrices(stack)))
        self._files = FilePages()
        # 1. Matrices, in the order in which a step reads them: layer by layer, then the head.
        layers = (layout.Layer * len(stack.layers))(*(self._layer(layer) for layer in stack.layers))
        self._kept.append(layers)
        head = self._linear(stack.head) if head is None else head
        tied = head if tied is None and embedded else tied
        # 2. The structure that the kernel reads.
        self.native = layout.Stack(
            layers=len(stack.layers),
            width=stack.width,
            heads=stack.heads,
            key_value_heads=stack.key_value_heads,
            head_width=stack.head_width,
            activation=blueprint.ACTIVATIONS.index(stack.activation),
            gated=stack.gated,
            causal=stack.causal,
            norm_last=stack.norm_last,
            format=FORMATS.index(number_format),
            threads=1,
            epsilon=stack.epsilon,
            score_scale=stack.score_scale,
            head_scale=stack.head_scale,
            embedding_scale=stack.embedding_scale,
            score_cap=stack.score_cap,
            logit_cap=stack.logit_cap,
            layer=layers,
            embedding=self.pointer(stack.embedding) if tied is None else None,
            learned_positions=self.pointer(stack.learned_positions),
            embedding_norm=self._norm(stack.embedding_norm),
            norm=self._norm(stack.norm),
            head=head,
            tied=layout.Linear() if tied is None else tied,
            head_tokens=None if stack.head_tokens is None else self._keep(stack.head_tokens.to(torch.int32)),
        )
        # A text needs few rows of the embedding; reading one matrix of a file brought pages of the next one with it.
        for weight in (stack.embedding, *(part for linear in _matrices(stack) for part in linear.parts)):
            self._files.release(weight)
        self.reference = ctypes.byref(self.native)
        """The argument of kernel calls."""

    def _packed_bytes(self, outputs: int, inputs: int) -> int:
        return self._whole_words(inputs) * self.padded(outputs) * _NUMBERS[self._format].itemsize

    def _whole_words(self, inputs: int) -> int:
        """Return the number of inputs with those that fill the last word of 32 bits."""
        each = 4 // _NUMBERS[self._format].itemsize
        return -(-inputs // each) * each

    def padded(self, outputs: int) -> int:
        """Return the number of outputs with those that fill the last panel."""
        return -(-outputs // self._panel) * self._panel

    @property
    def step_bytes(self) -> int:
        """Bytes of the matrices that a run reads once, whatever its number of tokens; sources are projected before."""
        layers = [self.native.layer[index] for index in range(self.native.layers)]
        read = [getattr(layer, name) for layer in layers for name in _READ_BY_A_STEP] + [self.native.head]
        return sum(self._packed_bytes(int(one.outputs), int(one.inputs)) for one in read)

    def _layer(self, layer: blueprint.Layer) -> layout.Layer:
        cross = layer.cross
        query_norm, key_norm = layer.head_norms or (None, None)
        post_norm, feed_post_norm = layer.post_norms or (None, None)
        return layout.Layer(
            norm=self._norm(layer.norm),
            query_key_value=self._linear(layer.query_key_value),
            out=self._linear(layer.out),
            query_norm=self._norm(query_norm),
            key_norm=self._norm(key_norm),
            cross_norm=self._norm(None if cross is None else cross.norm),
            cross_query=self._linear(None if cross is None else cross.query),
            cross_key_value=self._linear(None if cross is None else cross.key_value),
            cross_out=self._linear(None if cross is None else cross.out),
            feed_norm=self._norm(layer.feed_norm),
            feed_in=self._linear(layer.feed_in),
            feed_out=self._linear(layer.feed_out),
            post_norm=self._norm(post_norm),
            feed_post_norm=self._norm(feed_post_norm),
            window=layer.window,
        )

    def _norm(self, norm: blueprint.Norm | None) -> layout.Norm:
        if norm is None:
            return layout.Norm()
        # Copies, because a page of a file and those around it take more memory than a norm.
        weight, bias = (None if one is None else one.detach().clone() for one in (norm.weight, norm.bias))
        return layout.Norm(self.pointer(weight), self.pointer(bias))

    def _linear(self, linear: blueprint.Linear | None) -> layout.Linear:
        if linear is None:
            return layout.Linear()
        outputs, inputs = linear.shape
        padded = self.padded(outputs)
        panels = self._keep(self._pages.take((padded, self._whole_words(inputs)), _NUMBERS[self._format]))
        scale = offset = None
        if self._format == "int8":
            scale, offset = self._keep(torch.zeros(padded)), self._keep(torch.zeros(padded, dtype=torch.int32))
        first = 0
        for part in linear.parts:
            self._pack(part, first, panels, scale, offset)
            first += part.shape[0]
        bias = None if linear.bias is None else pad(linear.bias.detach().float(), (0, padded - outputs))
        return layout.Linear(panels, scale, offset, self.pointer(bias), inputs, outputs)

    def _pack(self, part: Tensor, first: int, panels: int, scale: int | None, offset: int | None) -> None:
        """Write a block of rows, the first of which is the output `first`, into the panels of its matrix."""
        to = FORMATS.index(self._format)
        # In blocks, so that few pages of a file and few copied rows are in memory at a time.
        for rows in torch.split(part.detach(), max(1, _BLOCK_BYTES // (part.shape[1] * part.element_size()))):
            source = (rows if rows.dtype in _READ else rows.float()).contiguous()
            self.functions.draftline_pack(
                *(to, FORMATS.index(_READ[source.dtype]), source.data_ptr(), first, *source.shape),
                *(panels, scale, offset, torch.get_num_threads()),
            )
            first += len(rows)
            self._files.release(rows)

    def pointer(self, tensor: Tensor | None) -> int | None:
        """Return the address of a float32 copy, or of the tensor itself if it has that format, and keep it alive."""
        return None if tensor is None else self._keep(tensor.detach().float().contiguous())

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def tied_head(stack: blueprint.Stack, head: blueprint.Linear | None, number_format: str) -> bool:
    """Return whether a head is the embedding of a stack, whose numbers are those of the packed head."""
    if head is None or stack.embedding.dtype != _NUMBERS[number_format] or head.shape != tuple(stack.embedding.shape):
        return False
    return head.weight.data_ptr() == stack.embedding.data_ptr()


def _matrices(stack: blueprint.Stack) -> list[blueprint.Linear]:
    """All matrices of a stack, in the order in which they are packed: that in which a step reads them."""
    found: list[blueprint.Linear | None] = []
    for layer in stack.layers:
        cross = layer.cross
        found += [layer.query_key_value, layer.out]
        found += [] if cross is None else [cross.query, cross.key_value, cross.out]
        found += [layer.feed_in, layer.feed_out]
    return [linear for linear in (*found, stack.head) if linear is not None]


def empty_floats(*shape: int) -> Tensor:
    """Return uninitialised float32 memory for compiled code, whatever the default dtype of this process."""
    return _FLOATS.new_empty(shape)


class HugePages:
    """One region from which tensors are taken one after the other."""

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes, all zero; what is not written to takes no memory."""
        # Tensors that begin at a page's start: the system gives no huge page to a region that begins inside one.
        region = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
            region.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(region, dtype=torch.uint8)
        self._rest = whole[-whole.data_ptr() % _PAGE :][: max(size, 1)]

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the next tensor, which holds zeros; raise `RuntimeError` where the region is used up."""
        size = math.prod(shape) * dtype.itemsize
        taken, self._rest = self._rest[:size], self._rest[aligned(size) :]
        return taken.view(dtype).view(*shape)


def aligned(size: int) -> int:
    """Bytes that a tensor of `size` bytes takes of a region."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class FilePages:
    """The regions of this process's memory that are mapped from a file and that nobody has written to.

    `transformers` maps the weights of a checkpoint. The system counts the pages that were read as memory of this process,
    and reads a page that was given back from the file again: no tensor changes, whoever else holds it. Elsewhere than on
    Linux no region is found. Nobody may write to the weights until all of a stack are packed.
    """

    @functools.cached_property
    def _regions(self) -> list[tuple[int, int]]:
        """First and last address of each region, looked up once: what is packed is not written to meanwhile."""
        try:
            described = Path("/proc/self/smaps").read_text(errors="replace")
        except OSError:  # another system, or one that shows a process nothing of itself
            return []
        # A page that this process has changed is a copy, and would be lost.
        return [
            (int(begin, 16), int(end, 16))
            for begin, end, file, changed, swapped in _REGION.findall(described)
            if file != "0" and changed == swapped == "0"
        ]

    def release(self, tensor: Tensor) -> None:
        """Give the pages of a tensor back, unless it is small or its memory is not mapped from a file."""
        begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if size >= _MIN_BYTES and any(first <= begin and begin + size <= last for first, last in self._regions):
            # Whole pages: what a neighbour shares with this tensor is in the file too.
            page = begin // mmap.PAGESIZE * mmap.PAGESIZE
            ctypes.CDLL(None).madvise(ctypes.c_void_p(page), ctypes.c_size_t(begin + size - page), mmap.MADV_DONTNEED)
