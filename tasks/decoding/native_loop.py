"""The native loop: one greedy row in a single call of the compiled kernel, for rules that are numbers and drafters that are
native models or tables.

Python between two model runs takes longer than a small model's own run, so the kernel goes through all turns by itself. It
reports each turn as a few integers, from which `turn` makes tokens, proposers and counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tasks.decoding.acceptance_rules import BonusToken, GreedyDeferral
from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.loop import LoopParts
from tasks.decoding.runtimes.layout import Deferral, LoopModel, LoopRules, NativeLoopModel, NativeTurn, integers
from tasks.decoding.turn import RowState, TurnRules

_ACCEPT_ALL = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=False, min_share=0.0)
"""A cascade's deferral decides in place of this rule."""


@dataclass(frozen=True)
class _NativeParts:
    """What the kernel needs of a method."""

    small: NativeLoopModel
    large: NativeLoopModel
    greedy: GreedyAcceptance
    deferral: GreedyDeferral | None


def fits(parts: LoopParts) -> bool:
    """Return whether the kernel can run one greedy row of this method by itself."""
    return _native_parts(parts) is not None


def _native_parts(parts: LoopParts) -> _NativeParts | None:
    rule, large = parts.acceptance, parts.target.capabilities.native_loop
    if rule.deferral is not None:
        greedy: GreedyAcceptance | None = _ACCEPT_ALL
    else:
        greedy = rule.greedy if rule.bonus is BonusToken.TARGET else None
    in_numbers = parts.sampling.greedy and parts.draft_rule.adaptive is None and not parts.scored
    if large is None or not large.whole_head or parts.target.vocabulary > large.known_tokens:
        return None
    if greedy is None or not in_numbers:
        return None
    small = _native_drafter(parts, large)
    return None if small is None else _NativeParts(small, large, greedy, rule.deferral)


def _native_drafter(parts: LoopParts, large: NativeLoopModel) -> NativeLoopModel | None:
    """Return the drafter as the kernel takes it: a model, or the table of all its predictions."""
    decoder, vocabulary = parts.drafter.decoder, parts.target.vocabulary
    if decoder is not None:
        small = decoder.capabilities.native_loop
        return small if small is not None and decoder.vocabulary == vocabulary <= small.known_tokens else None
    # A cascade compares the distributions of both models.
    table = parts.drafter.greedy_table(large.known_tokens) if parts.acceptance.deferral is None else None
    if table is None:
        return None
    view = LoopModel(vocabulary=vocabulary, next=table.next.data_ptr(), confidence=table.confidence.data_ptr())
    return NativeLoopModel(large.functions, len(table.next), True, lambda *_: (view, table))


def generate(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode one source in one call.

    Raises:
        BrokenLogitsError: a model gave NaN, +infinity or no finite logit.
    """
    native = _native_parts(parts)
    if native is None:
        raise ValueError("the native loop takes greedy rules in numbers, and a native model with another one or a table")
    encoder_output = parts.target.encode(sources)
    [prompt] = parts.target.start(encoder_output)
    parts.drafter.start(encoder_output, sources)
    text, turns = _run(parts, native, prompt, limit)
    row = RowState(examples[0], prompt, len(prompt))
    return [_generation(parts.turns(limit), row, text, turns, runs_model=parts.drafter.runs_model)]


def _run(parts: LoopParts, native: _NativeParts, prompt: list[int], limit: int) -> tuple[list[int], list[NativeTurn]]:
    """Return the prompt and what the kernel put behind it, and its turns."""
    rule = parts.draft_rule
    drafter = parts.drafter.decoder or parts.target  # a table ends texts with the target's tokens
    ends = [integers(sorted(model.end_tokens)) for model in (drafter, parts.target)]
    deferral = None if native.deferral is None else Deferral(*astuple(native.deferral))
    rules = LoopRules(
        *(rule.fallback_threshold, rule.stop_below, native.greedy.max_surprisal, native.greedy.min_share),
        2 if native.greedy.first_only else native.greedy.keep_agreed,
        *(rule.window, rule.first_from_target, rule.ends_unverified, rule.target_after_rollback, limit),
        *map(ctypes.addressof, ends),
        *map(len, ends),
        None if deferral is None else ctypes.addressof(deferral),
    )
    longest_run, length = len(prompt) + rule.window + 2, len(prompt) + limit
    small, _small_buffers = native.small.prepare(longest_run, 1 if deferral is None else rule.window + 1, length)
    large, _large_buffers = native.large.prepare(longest_run, rule.window + 1, length)
    tokens = (ctypes.c_int32 * length)(*prompt)
    turns = (NativeTurn * max(1, limit))()
    best, confidence = (ctypes.c_int32 * (rule.window + 1))(), (ctypes.c_double * max(1, rule.window))()
    run = native.large.functions.draftline_speculative_loop
    count = run(small, large, rules, tokens, len(prompt), turns, best, confidence)
    if count < 0:
        failed = turns[:-count]
        if failed[-1].verified:
            raise BrokenLogitsError.at(parts.target.name, len(failed))
        raise BrokenLogitsError.at(drafter.name, sum(turn.predicted for turn in failed))
    return tokens[:], turns[:count]


def _generation(
    rules: TurnRules, row: RowState, text: list[int], turns: list[NativeTurn], *, runs_model: bool = True
) -> Generation:
    """Account for the kernel's turns; it must have stopped exactly where the turns say that the text ends.

    Raises:
        RuntimeError: it did not.
    """
    for number, turn in enumerate(turns, start=1):
        begin = len(row.tokens)
        end = begin + (turn.accepted if turn.verified else turn.drafted)
        ended = rules.finish(
            row,
            text[begin:end],
            text[end] if turn.added else None,
            drafted=turn.drafted,
            steps=turn.predicted if runs_model else 0,
            fallback=bool(turn.fallback),
            verified=bool(turn.verified),
        )
        if ended != (number == len(turns)):
            raise RuntimeError(f"the native loop took {len(turns)} turns, but the text ends otherwise at turn {number}")
    return row.generation()
