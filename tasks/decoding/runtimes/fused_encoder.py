"""The encoder of the fused runtime, with its own recorded graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.runtimes.cuda_graphs import GraphCache, GraphRecorder, rounded_positions
from tasks.decoding.runtimes.fused_stack import FusedStack

_LARGEST_SOURCES = 4096
"""Positions of all sources together up to which a run is recorded as a graph."""


class FusedEncoder:
    """Encodes sources side by side."""

    def __init__(self, stack: FusedStack, device: torch.device, recorder: GraphRecorder | None) -> None:
        """Take the encoder's stack, its device, and what records runs (none: nothing is recorded)."""
        self._stack = stack
        self._device = device
        self._graphs = GraphCache(recorder)

    def encode(self, sources: Rows) -> EncoderOutput:
        """Encode sources of known token ids, right-padded."""
        longest = max(map(len, sources))
        if self._stack.fit(rounded_positions(longest)):
            self._graphs.forget()
        hidden = self._run([[len(source), *source] for source in sources], longest)
        mask = [[1] * len(source) + [0] * (longest - len(source)) for source in sources]
        return EncoderOutput(hidden, torch.tensor(mask, device=self._device))

    def _run(self, rows: Rows, longest: int) -> Tensor:
        width, positions = self._graphs.padded_rows(len(rows)), self._graphs.padded_positions(longest)
        if not self._graphs or width * positions > _LARGEST_SOURCES:
            return self._encoded(stage_rows(rows, len(rows), longest, self._device))
        inputs = stage_rows(rows, width, positions, self._device, self._graphs)
        hidden = self._graphs.run((width, positions), lambda: self._encoded(inputs))
        return hidden[: len(rows), :longest].clone()

    def _encoded(self, inputs: Tensor) -> Tensor:
        """Return hidden states (rows, positions, width) of `inputs`: each row's length, then its padded ids."""
        ids = inputs[:, 1:]
        columns = self._stack.columns[: ids.shape[1]]
        mask = self._stack.mask(columns.expand_as(ids), len(columns))
        padding = (columns >= inputs[:, :1])[:, None, None]
        return self._stack.run(ids, columns, mask.masked_fill(padding, torch.finfo(mask.dtype).min))


def stage_rows(rows: Rows, width: int, most: int, device: torch.device, graphs: GraphCache | None = None) -> Tensor:
    """Pad rows of a length and tokens to (width, 1 + most), and copy them to the device: to where graphs read them, if any."""
    padded = [row + [0] * (1 + most - len(row)) for row in rows] + [[0] * (1 + most)] * (width - len(rows))
    here = torch.tensor(padded)
    return graphs.stage(here, device) if graphs else here.to(device)
