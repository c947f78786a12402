"""The native loop: one greedy row in a single call of the compiled kernel, for rules that are numbers and drafters that are
native models or tables.

Python between two model runs takes longer than a small model's own run, so the kernel goes through all turns by itself. It
reports each turn as a few integers, from which `turn` makes tokens, proposers and counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import BrokenLogitsError, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.loop import LoopParts
from tasks.decoding.native_rules import NativeRules, account
from tasks.decoding.runtimes.layout import LoopModel, NativeLoopModel, NativeTurn
from tasks.decoding.turn import RowState


@dataclass(frozen=True)
class _NativeParts:
    """What the kernel needs of a method."""

    small: NativeLoopModel
    large: NativeLoopModel
    rules: NativeRules


def fits(parts: LoopParts) -> bool:
    """Return whether the kernel can run one greedy row of this method by itself."""
    return _native_parts(parts) is not None


def _native_parts(parts: LoopParts) -> _NativeParts | None:
    large = parts.target.capabilities.native_loop
    if large is None or not large.whole_head or parts.target.vocabulary > large.known_tokens:
        return None
    rules = parts.native_rules
    if rules is None or not rules.adds_bonus:
        return None
    small = _native_drafter(parts, large)
    return None if small is None else _NativeParts(small, large, rules)


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
    view = LoopModel(
        vocabulary=vocabulary,
        next=table.next.data_ptr(),
        confidence=table.confidence.data_ptr(),
        entropy=table.entropy.data_ptr(),
    )
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
    return [account(parts.turns(limit), row, text, turns, runs_model=parts.drafter.runs_model)]


def _run(parts: LoopParts, native: _NativeParts, prompt: list[int], limit: int) -> tuple[list[int], list[NativeTurn]]:
    """Return the prompt and what the kernel put behind it, and its turns."""
    rules, window = native.rules.packed, parts.draft_rule.window
    rules.limit = limit
    longest_run, length = len(prompt) + window + 2, len(prompt) + limit
    small, _small_buffers = native.small.prepare(longest_run, window + 1 if native.rules.cascades else 1, length)
    large, _large_buffers = native.large.prepare(longest_run, window + 1, length)
    tokens = (ctypes.c_int32 * length)(*prompt)
    turns = (NativeTurn * max(1, limit))()
    best, (confidence, entropies) = (ctypes.c_int32 * (window + 1))(), [(ctypes.c_double * max(1, window))() for _ in range(2)]
    run = native.large.functions.draftline_speculative_loop
    count = run(small, large, rules, tokens, len(prompt), turns, best, confidence, entropies)
    if count < 0:
        failed = turns[:-count]
        if failed[-1].verified:
            raise BrokenLogitsError.at(parts.target.name, len(failed))
        raise BrokenLogitsError.at((parts.drafter.decoder or parts.target).name, sum(turn.predicted for turn in failed))
    return tokens[:], turns[:count]
