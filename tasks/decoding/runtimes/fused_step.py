"""What the parts of the fused runtime know of each other: what a run gives, and who makes runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows

Done = TypeVar("Done")


@dataclass(frozen=True)
class StepOutput:
    """What a run gives, by slot: (slots, new tokens, …)."""

    hidden: Tensor
    logits: Tensor
    best: Tensor
    """-1 where logits are broken."""

    def after(self, column: int) -> StepOutput:
        """From that new token on."""
        return StepOutput(self.hidden[:, column:], self.logits[:, column:], self.best[:, column:])


@dataclass(frozen=True)
class SyncPolicy:
    """When the host looks at the tokens of a continuation, to see whether it should have ended."""

    steps_per_sync: int = 1
    """Steps from look to look."""
    syncs_in_flight: int = 0
    """Bursts that are started before the first of them is looked at: the device need not wait, and may do as many in vain."""


class StepRunner(Protocol):
    """A decoder as those see it who chain its runs, or judge by them."""

    model: Any
    device: torch.device
    vocabulary: int
    end_tokens: frozenset[int]
    sync_policy: SyncPolicy

    def run(self, tokens: Rows, unread: int = 0) -> StepOutput:
        """Feeds each row its tokens and predicts after all but the first `unread` columns; the next run overwrites it."""
        ...

    def predicted(self, inputs: Tensor, reach: int, unread: int = 0) -> StepOutput:
        """The work itself; `inputs`: (slots, 1 + new tokens), int64, each row's cached length, then its tokens."""
        ...

    def recorded(
        self, key: tuple[Any, ...], position: int, work: Callable[[int], Done], changing: Sequence[Tensor] = ()
    ) -> Done:
        """Does work that reads as many positions as one of that number must, recorded where runs are."""
        ...

    def forget(self, kind: str) -> None:
        """Drops what was recorded under keys that begin so."""
        ...
