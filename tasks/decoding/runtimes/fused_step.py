"""The interface between the parts of the fused runtime: one step of a decoder, and when the host reads its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.runtimes.cuda_graphs import GraphKey

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")


@dataclass(frozen=True)
class StepOutput:
    """The result of one run, by slot: (slots, new tokens, …)."""

    hidden: Tensor
    logits: Tensor
    best: Tensor
    """The likeliest token; -1 where logits are broken."""

    def after(self, column: int) -> StepOutput:
        """Return the output from that new token on."""
        return StepOutput(self.hidden[:, column:], self.logits[:, column:], self.best[:, column:])


@dataclass(frozen=True)
class SyncPolicy:
    """When the host reads the tokens of a greedy continuation to decide whether it has ended."""

    steps_per_sync: int = 1
    """Steps between two reads."""
    syncs_in_flight: int = 0
    """Reads that may be pending while further steps run: the device never waits, and may run that many steps in vain."""


class StepRunner(Protocol):
    """A decoder as the greedy loop and the draft checker use it."""

    model: PreTrainedModel
    device: torch.device
    vocabulary: int
    end_tokens: frozenset[int]
    sync_policy: SyncPolicy

    def run(self, tokens: Rows, skipped: int = 0) -> StepOutput:
        """Feed each row its tokens and predict after all but the first `skipped` columns; the next run overwrites it."""
        ...

    def predict_step(self, inputs: Tensor, kv_length: int, skipped: int = 0) -> StepOutput:
        """Do the work of one step without recording it.

        `inputs`: (slots, 1 + new tokens), int64: each row's cached length, then its tokens. `kv_length`: positions read.
        """
        ...

    def run_recorded(
        self, key: GraphKey, position: int, work: Callable[[int], Result], changing: Sequence[Tensor] = ()
    ) -> Result:
        """Do `work(kv_length)` for a new token at `position`, from a recorded graph where the runtime records."""
        ...

    def forget(self, kind: str) -> None:
        """Drop the graphs recorded under keys that begin so."""
        ...
