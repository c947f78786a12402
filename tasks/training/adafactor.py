"""Adafactor (Shazeer and Stern, 2018, algorithms 4 and 5) of weights that ZeRO has flattened and cut into one part a process.

ZeRO puts all weights behind one another and cuts the row into equal parts, wherever that falls in a matrix. Adafactor needs the
mean of the squared gradients of each row and each column of a matrix. Each process sums over its own part, and the sums of all
processes are added: a few numbers for each matrix. Every process then has the factors of whole matrices, and moves its part as
one process would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.training import distributed

_TINY, _SMALLEST = 1e-30, 1e-3
"""The paper's ε₁, which is added to squared gradients, and ε₂, the least root mean square that a relative rate multiplies."""


@dataclass(frozen=True)
class _Block:
    """Whole rows of a matrix, or a part of one row."""

    held: slice
    """In this process's part."""
    width: int
    rows: slice
    columns: slice
    """Both in the factors of all matrices."""


@dataclass(frozen=True)
class _Piece:
    """What a process holds of a weight: blocks of matrices, or a slice of a vector."""

    number: int
    size: int
    """Of the whole weight."""
    held: slice
    """In this process's part."""
    blocks: list[_Block]
    rows: list[slice]
    """The row factors of the matrices that it touches."""


class PartitionedAdafactor(torch.optim.Optimizer):
    """Adafactor without a first moment, of one group of weights; its rate is absolute, or relative to each weight."""

    def __init__(self, weights: list[torch.nn.Parameter], rate: float, weight_decay: float, *, relative: bool) -> None:
        super().__init__(weights, {"lr": rate, "weight_decay": weight_decay, "relative": relative})
        self._pieces: list[_Piece] = []
        self._counts = torch.empty(0)
        self._weights, self._device = 0, torch.device("cpu")

    def lay_out(self, shapes: Sequence[torch.Size], offsets: Sequence[int], part: slice, device: torch.device) -> None:
        """Take what the flat weights are made of, which ZeRO knows once it has flattened them.

        Args:
            shapes: The shape of each weight.
            offsets: Where each weight begins in the row of all.
            part: What this process has of that row.
            device: Where processes add tensors up.
        """
        counts = list[int]()
        self._device, self._weights = device, len(shapes)
        for number, (shape, offset) in enumerate(zip(shapes, offsets, strict=True)):
            # The elements of the weight that this process has; none where the end comes before the beginning.
            begin, end = max(offset, part.start) - offset, min(offset + shape.numel(), part.stop) - offset
            held = slice(offset + begin - part.start, offset + end - part.start)
            blocks, rows = list[_Block](), list[slice]()
            if len(shape) > 1:
                height, width = shape[-2:]
                matrices, slot = shape[:-2].numel(), len(counts)
                # The row factors of all matrices of the weight, then their column factors; each is a mean of so many squares.
                counts += [width] * (matrices * height) + [height] * (matrices * width)
                blocks = list(_blocks(begin, end, height, width, slot, slot + matrices * height, held.start - begin))
                rows = [slice(slot + one * height, slot + (one + 1) * height) for one in range(matrices)]
            if begin < end:
                self._pieces.append(_Piece(number, shape.numel(), held, blocks, rows))
        self._counts = torch.tensor(counts, dtype=torch.float32)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 (torch's signature)
        """Move this process's part; all processes must take the step."""
        [group] = self.param_groups
        [flat] = group["params"]
        state, gradient = self.state[flat], flat.grad
        if not state:
            state |= {"step": 0, "factors": torch.zeros_like(self._counts, device=flat.device)}
            state |= {str(one.number): torch.zeros_like(flat[one.held]) for one in self._pieces if not one.blocks}
        state["step"] += 1
        new = state["step"] ** -0.8  # 1 - β₂
        # 1. The mean of squared gradients of every row and column, and the size of every weight.
        sums, sizes = torch.zeros_like(state["factors"]), flat.new_zeros(self._weights)
        for piece in self._pieces:
            sizes[piece.number] = flat[piece.held].square().sum()
            for block in piece.blocks:
                squares = gradient[block.held].view(-1, block.width).square() + _TINY
                sums[block.rows] += squares.sum(1)
                sums[block.columns] += squares.sum(0)
        added = self._added(torch.cat([sums, sizes]))
        sums, sizes = added[: len(sums)], added[len(sums) :]
        state["factors"].lerp_(sums / self._counts.to(flat.device), new)
        # 2. The update of this part, and the size of that of every weight.
        roots = state["factors"].rsqrt()
        update, moved = torch.zeros_like(flat), flat.new_zeros(self._weights)
        for piece in self._pieces:
            for rows in piece.rows:
                roots[rows] *= state["factors"][rows].mean().sqrt()
            for block in piece.blocks:
                scaled = gradient[block.held].view(-1, block.width) * roots[block.rows, None] * roots[block.columns]
                update[block.held] = scaled.flatten()
            if not piece.blocks:
                mean = state[str(piece.number)].lerp_(gradient[piece.held].square() + _TINY, new)
                update[piece.held] = gradient[piece.held] * mean.rsqrt()
            moved[piece.number] = update[piece.held].square().sum()
        moved = self._added(moved)
        # 3. The step, with updates clipped to a root mean square of 1.
        rate = group["lr"]
        for piece in self._pieces:
            own = (moved[piece.number] / piece.size).sqrt().clamp_min(1).reciprocal()
            if group["relative"]:
                own = own * (sizes[piece.number] / piece.size).sqrt().clamp_min(_SMALLEST)
            own = own * (min(rate, 1 / math.sqrt(state["step"])) if group["relative"] else rate)
            flat[piece.held].mul_(1 - rate * group["weight_decay"]).sub_(update[piece.held] * own)

    def _added(self, numbers: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return distributed.all_reduce(numbers.to(self._device)).to(numbers.device)


def _blocks(begin: int, end: int, height: int, width: int, rows: int, columns: int, shift: int) -> Iterator[_Block]:
    """Yield the blocks of a weight between two of its elements.

    Args:
        begin: The first element.
        end: One after the last.
        height: Rows of each of the weight's matrices.
        width: Columns of each.
        rows: The place of the first row factor.
        columns: The place of the first column factor.
        shift: From elements of the weight to elements of this process's part.
    """
    while begin < end:
        row, column = divmod(begin, width)
        matrix = row // height
        # Whole rows up to the end of the matrix where there are some, else what is left of one row.
        whole = 0 if column else min(end // width, (matrix + 1) * height) - row
        stop = begin + whole * width if whole else min(end, begin + width - column)
        first = columns + matrix * width + column
        yield _Block(
            slice(begin + shift, stop + shift),
            min(width, stop - begin),
            slice(rows + row, rows + row + max(1, whole)),
            slice(first, first + min(width, stop - begin)),
        )
        begin = stop
