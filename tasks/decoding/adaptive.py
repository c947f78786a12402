"""Speculative decoding with windows of the best draft length for the acceptance in a text so far."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.draft_length import best_draft_length
from tasks.decoding.drafting import Drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.turn import DraftRule

_ROUNDS = 6


def adaptive_window(counts: Counts, cost_ratio: float, longest: int) -> int:
    """Return the best draft length, at least 1, for the acceptance in a text so far.

    Each checked token was accepted or was the first rejected one of its draft. The acceptance rate is estimated by the rule
    of succession, so that a text starts at 1/2. With a window of 0 an improved acceptance would never be noticed.
    """
    acceptance_rate = (counts.accepted + 1) / (counts.accepted + counts.rollbacks + 2)
    return max(1, best_draft_length(acceptance_rate, cost_ratio, longest))


def with_adaptive_window(method: SpeculativeLoop, cost_ratio: float) -> SpeculativeLoop:
    """Return the method with each window, at most its draft rule's, chosen from the counts of its own text."""
    window = functools.partial(adaptive_window, cost_ratio=cost_ratio, longest=method.draft_rule.window)
    return dataclasses.replace(method, draft_rule=dataclasses.replace(method.draft_rule, adaptive=window))


def measured_cost_ratio(target: Decoder, drafter: Drafter, source: list[int], limit: int) -> float:
    """Measure c in a few turns on one source, each with one drafted token that is not kept.

    It runs the parts as the loop does, for at most `limit` tokens, and leaves no state that starting a text does not clear.
    The shortest time counts, because other load on the machine only adds to it.
    """
    encoder_output = target.encode([source])
    tokens = target.start(encoder_output)
    drafter.start(encoder_output, [source])
    small, large = [], []
    for _ in range(min(_ROUNDS, limit)):
        begin = time.perf_counter()
        drafter.draft(tokens, [0], [1], DraftRule(window=1))
        between = time.perf_counter()
        step = target.forward([tokens[0][target.lengths[0] :]])
        # int() waits for the result of an asynchronous device.
        token = int(step.logits[0, -1].argmax())
        small.append(between - begin)
        large.append(time.perf_counter() - between)
        tokens[0].append(token)
        target.rewind([len(tokens[0]) - 1])
        drafter.observe(tokens, step, [step.lengths[0] - 1])
    return min(small) / min(large)


@dataclass(frozen=True)
class SelfTimedMethod:
    """An adaptive method that measures c before its first run.

    c is stored with the pair of models, so all decoding with one pair uses the same c and measures it once. Another process
    may measure another c and use other windows; greedy output and the sampled distribution do not depend on it.
    """

    method: SpeculativeLoop
    drafter: str
    ratios: dict[str, float]
    """c of each drafter that was measured with this pair, by name."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        if self.drafter not in self.ratios:
            self.ratios[self.drafter] = measured_cost_ratio(self.method.target, self.method.drafter, sources[0], limit)
        return with_adaptive_window(self.method, self.ratios[self.drafter]).run(sources, examples, limit)
