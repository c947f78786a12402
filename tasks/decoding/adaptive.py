"""What speculative decoding gains, by theory, and the draft length that theory would choose (SD, sections 3.2 to 3.5).

The acceptance rate here is SD's α: the probability that a drafted token is accepted, the same for each.
c is the time of one run of the drafter over that of one run of the large model (Definition 3.7).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafting import Drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.turn import DraftRule

_ROUNDS = 6


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Tokens that one run of the large model gives: (1 - α^(γ+1)) / (1 - α), and γ + 1 where α is 1 (equation 1)."""
    return sum(acceptance_rate**kept for kept in range(draft_length + 1))


def expected_speedup(acceptance_rate: float, draft_length: int, cost_ratio: float) -> float:
    """Factor in wall time over the large model alone: (1 - α^(γ+1)) / ((1 - α) (γ c + 1)) (Theorem 3.8)."""
    return expected_tokens(acceptance_rate, draft_length) / (draft_length * cost_ratio + 1)


def expected_operations(acceptance_rate: float, draft_length: int, operations_ratio: float) -> float:
    """Factor in arithmetic operations: (1 - α) (γ ĉ + γ + 1) / (1 - α^(γ+1)) (Theorem 3.11).

    `operations_ratio` is ĉ: the drafter's operations for a token over the large model's.
    """
    runs = draft_length * operations_ratio + draft_length + 1
    return runs / expected_tokens(acceptance_rate, draft_length)


def best_draft_length(acceptance_rate: float, cost_ratio: float, longest: int) -> int:
    """The γ of 0 to `longest` with the greatest expected speed-up, the smallest of several (Figure 3).

    It is 0, no draft at all, where the acceptance rate is not above c (Corollary 3.9).
    """
    return max(range(longest + 1), key=lambda length: expected_speedup(acceptance_rate, length, cost_ratio))


def adaptive_window(counts: Counts, cost_ratio: float, longest: int) -> int:
    """The best draft length, at least 1, for the acceptance of a text so far.

    Of the tokens checked, each was kept or was the one that its draft fell with; their share is taken by the rule of
    succession, so that a text begins at 1/2. A window of 0 would never learn that acceptance has become better.
    """
    acceptance_rate = (counts.accepted + 1) / (counts.accepted + counts.rollbacks + 2)
    return max(1, best_draft_length(acceptance_rate, cost_ratio, longest))


def with_adaptive_window(method: SpeculativeLoop, cost_ratio: float) -> SpeculativeLoop:
    """The method with each window, at most its draft rule's, chosen from the counts of its own text."""
    window = functools.partial(adaptive_window, cost_ratio=cost_ratio, longest=method.draft_rule.window)
    return dataclasses.replace(method, draft_rule=dataclasses.replace(method.draft_rule, adaptive=window))


def measured_cost_ratio(target: Decoder, drafter: Drafter, source: list[int], limit: int) -> float:
    """c, by a few turns of the loop on one source, each with one drafted token, none of them kept.

    It uses the parts as the loop does, at most `limit` tokens far, and leaves nothing behind that starting a text does not
    clear. Of several times the shortest counts: whatever else the machine does only adds to it.
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
        # Reading the token waits for a device that runs on by itself.
        token = int(step.logits[0, -1].argmax())
        small.append(between - begin)
        large.append(time.perf_counter() - between)
        tokens[0].append(token)
        target.rewind([len(tokens[0]) - 1])
        drafter.observe(tokens, step, [step.lengths[0] - 1])
    return min(small) / min(large)


@dataclass(frozen=True)
class SelfTimedMethod:
    """An adaptive method that finds out its own c before it first runs.

    c is kept with the pair of models. So all that one pair decodes goes by the same c and pays for it once; another
    process may find another, and with it other windows: greedy output and the law of what is drawn stay the same.
    """

    method: SpeculativeLoop
    drafter: str
    ratios: dict[str, float]
    """c of each drafter that was timed with this pair, by name."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        if self.drafter not in self.ratios:
            self.ratios[self.drafter] = measured_cost_ratio(self.method.target, self.method.drafter, sources[0], limit)
        return with_adaptive_window(self.method, self.ratios[self.drafter]).run(sources, examples, limit)
