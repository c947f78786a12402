"""Two models in one call: the loop for one row, greedy, in the kernel, where a method's rules are numbers.

What is decided between two runs takes Python longer than a small model's run takes the processor. Tokens, proposers and counts
are the loop's own; whatever does not fit goes through the loop.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.acceptance_rules import target_distribution as followed_by_large
from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance, Rows
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import DecodingMethod
from tasks.decoding.runtimes.layout import LoopRules, NativeTurn, integers
from tasks.decoding.runtimes.native import NativeDecoder


@dataclass(frozen=True)
class NativeSpeculativeLoop:
    """A method of which the kernel can run a row by itself."""

    method: SpeculativeLoop
    small: NativeDecoder
    large: NativeDecoder
    keep: GreedyAcceptance

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        if len(sources) > 1:
            return self.method.run(sources, examples, limit)
        encoder_output = self.large.encode(sources)
        [prompt] = self.large.start(encoder_output)
        self.method.drafter.start(encoder_output, sources)
        tokens, turns = self._play(prompt, limit)
        return [_generation(tokens, turns)]

    def _play(self, prompt: list[int], limit: int) -> tuple[list[int], list[NativeTurn]]:
        """The text behind the prompt, and what each turn of the loop did."""
        rule = self.method.draft_rule
        ends = [integers(sorted(model.end_tokens)) for model in (self.small, self.large)]
        rules = LoopRules(
            *(rule.fallback_threshold, rule.stop_below, self.keep.max_surprisal),
            *(self.keep.keep_agreed, rule.window, rule.first_from_target, rule.ends_unverified, limit),
            *map(ctypes.addressof, ends),
            *map(len, ends),
        )
        longest, length = len(prompt) + rule.window + 2, len(prompt) + limit
        small, _small = self.small.player(longest, 1, length)
        large, _large = self.large.player(longest, rule.window + 1, length)
        tokens = (ctypes.c_int32 * length)(*prompt)
        turns = (NativeTurn * max(1, limit))()
        best, confident = (ctypes.c_int32 * (rule.window + 1))(), (ctypes.c_double * max(1, rule.window))()
        count = self.large.functions.draftline_speculative_loop(
            small, large, rules, tokens, len(prompt), turns, best, confident
        )
        if count < 0:
            self._raise_broken(turns[:-count])
        done = turns[:count]
        return tokens[len(prompt) : len(prompt) + sum(map(_added, done))], done

    def _raise_broken(self, turns: list[NativeTurn]) -> None:
        if turns[-1].judged:
            raise BrokenLogitsError.at(self.large.name, len(turns))
        raise BrokenLogitsError.at(self.small.name, sum(turn.seen for turn in turns))


def _added(turn: NativeTurn) -> int:
    return turn.kept + turn.followed if turn.judged else turn.drafted


def _generation(tokens: list[int], turns: list[NativeTurn]) -> Generation:
    """As the loop would have counted."""
    counts, proposers = Counts(tokens=len(tokens), verified=Counter()), []
    for turn in turns:
        counts.small_steps += turn.seen
        counts.drafted += turn.drafted
        counts.fallbacks += turn.fallback
        if not turn.judged:
            proposers.append(SMALL * turn.drafted)
            continue
        whole = turn.kept == turn.drafted
        counts.large_calls += 1
        counts.verified[turn.drafted + 1] += 1
        counts.record_verification(turn.drafted, turn.kept)
        proposers.append(SMALL * turn.kept + (LARGE if whole else CORRECTED) * turn.followed)
    return Generation(tokens, "".join(proposers), counts)


def with_native_loop(strategy: DecodingMethod) -> DecodingMethod:
    """A `Duet` where the strategy is the loop of two native models by rules that are numbers; else the strategy itself."""
    if not (isinstance(strategy, SpeculativeLoop) and strategy.sampling.greedy and not strategy.scored):
        return strategy
    drafter, large, rule = strategy.drafter, strategy.target, strategy.acceptance
    small = drafter.decoder if isinstance(drafter, ModelDrafter) else None
    if not (isinstance(small, NativeDecoder) and isinstance(large, NativeDecoder)):
        return strategy
    numbers = rule.greedy is not None and rule.bonus is followed_by_large and strategy.draft_rule.adaptive is None
    alike = small.vocabulary == large.vocabulary and small.vocabulary <= min(small.known, large.known)
    return (
        NativeSpeculativeLoop(strategy, small, large, rule.greedy)
        if numbers and alike and rule.greedy is not None
        else strategy
    )
