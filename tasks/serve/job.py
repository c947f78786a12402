"""One text that the server decodes, and who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.decoding.generation import Generation
from tasks.decoding.method import Request
from tasks.decoding.turn import Abandonment


@dataclass(eq=False)
class Job:
    """One text on its way through the server. The callbacks run on the worker thread."""

    row: list[int]
    """Token ids of the source."""
    request: Request
    done: Callable[[Generation, str], None]
    """Takes what was generated and the method that did it."""
    failed: Callable[[Exception], None]
    grown: Callable[[list[int]], None] | None = None
    """Takes the tokens so far after each turn; None where nothing is streamed."""
    example: int | None = None
    """Keys the random draws; None: a number of the server's own."""
    arrived: float = field(default_factory=time.perf_counter)
    cancelled: Abandonment = field(default_factory=Abandonment)
    """Set by the server when the client has hung up."""

    def fits(self, other: Job) -> bool:
        """Whether both may share a batch."""
        alike = self.request == other.request and (self.grown is None) == (other.grown is None)
        return alike and (self.example is None and other.example is None)
