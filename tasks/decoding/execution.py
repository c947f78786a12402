"""Which executor runs a speculative loop: decided here alone, from what the loop is made of and what its runtimes declare.

| executor | runs |
|---|---|
| `replay.replayer.replay` | on the cached predictions that stand in for both models, one row after the other |
| `continue_greedily` | one model's greedy text in a single call of its runtime |
| `native_loop.generate` | greedy rows of one native model alone, with another one or with a table, in one call of the kernel |
| `loop.generate` | everything else: any runtime, drafter and rule |

All give the same tokens, proposers and counts. On a GPU the general loop runs; the fused runtime declares greedy continuation
and draft checks, which it starts as CUDA graphs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.decoding import loop, native_loop
from tasks.decoding.decoder import Rows, StopRule
from tasks.decoding.generation import Generation
from tasks.decoding.loop import LoopParts
from tasks.decoding.replay import replayer
from tasks.decoding.turn import RowState

Executor = Callable[[LoopParts, Rows, Sequence[int], int], list[Generation]]


@dataclass(frozen=True)
class SpeculativeLoop(LoopParts):
    """A method that is one speculative loop, or one model alone: the loop with nothing drafted."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Decode each source until its end token or `limit` tokens.

        Args:
            sources: Token ids of each source.
            examples: A number for each source that keys its random draws.
            limit: Most tokens to generate, the end token included.
        """
        return executor_for(self, len(sources))(self, sources, examples, limit)


def executor_for(parts: LoopParts, rows: int) -> Executor:
    """Return the fastest executor for `rows` sources; the general loop takes everything but cached predictions."""
    target = parts.target.capabilities
    if target.replay is not None:
        return replayer.replay
    if parts.sampling.greedy:
        native, continuation = native_loop.fits(parts), target.continue_greedily
        # A continuation takes less Python than the kernel's turns, but can be neither watched nor abandoned.
        alone = rows == 1 and parts.undrafted and parts.watch is None
        if alone and continuation is not None and not (native and parts.abandoned):
            return continue_greedily
        if native:
            return native_loop.generate
    return loop.generate


def continue_greedily(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode one source with the target alone, without a decision between its runs."""
    target, continuation = parts.target, parts.target.capabilities.continue_greedily
    if continuation is None:
        raise ValueError(f"the {target.name} model's runtime does not continue a row by itself")
    [prompt] = target.start(target.encode(sources))
    # A softmax is computed only where a stop rule needs it; no confidence is under this one.
    stop = StopRule(confidence=sys.float_info.min) if parts.scored else StopRule()
    found = continuation(prompt, limit, stop, with_logits=False)
    turns, row = parts.turns(limit), RowState(examples[0], prompt, len(prompt))
    turns.finish_undrafted(row, found.tokens)
    if parts.scored:
        row.log_probabilities = [math.log(min(1.0, confidence)) for confidence in found.confidence]
    return [row.generation()]
