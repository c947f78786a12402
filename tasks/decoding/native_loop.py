"""The native loop: greedy rows in a single call of the compiled kernel, for rules that are numbers and drafters that are native
models or tables.

Python between two model runs takes longer than a small model's own run, so the kernel goes through all turns by itself. It
reports each turn as a few integers, from which `turn` makes tokens, proposers and counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.abandonment import AbandonedError
from tasks.decoding.decoder import BrokenLogitsError, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.loop import LoopParts
from tasks.decoding.native_rules import NativeRules, account
from tasks.decoding.runtimes.layout import LoopModel, LoopRow, NativeLoopModel, NativeTurn
from tasks.decoding.runtimes.native_cache import empty_floats
from tasks.decoding.turn import RowState


@dataclass(frozen=True)
class _NativeParts:
    """What the kernel needs of a method."""

    small: NativeLoopModel
    large: NativeLoopModel
    rules: NativeRules


def fits(parts: LoopParts) -> bool:
    """Return whether the kernel can run greedy rows of this method by itself."""
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
    """Return the drafter as the kernel takes it: a model, the table of all its predictions, or nothing."""
    decoder, vocabulary = parts.drafter.decoder, parts.target.vocabulary
    if parts.undrafted:
        return NativeLoopModel(large.functions, vocabulary, True, lambda *_: (LoopModel(), None))
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
    """Decode all sources in one call, side by side; `execution.SpeculativeLoop.run` describes the arguments.

    Raises:
        BrokenLogitsError: a model gave NaN, +infinity or no finite logit.
        AbandonedError: all flags of `parts.abandoned` were set on the way.
    """
    native = _native_parts(parts)
    if native is None:
        raise ValueError("the native loop takes greedy rules in numbers, and a native model with another one or a table")
    encoder_output = parts.target.encode(sources)
    prompts = parts.target.start(encoder_output)
    parts.drafter.start(encoder_output, sources)
    decoded = _run(parts, native, prompts, limit)
    rules, runs_model = parts.turns(limit), parts.drafter.runs_model
    rows = [RowState(example, prompt, len(prompt)) for example, prompt in zip(examples, prompts, strict=True)]
    return [account(rules, row, *texts, runs_model=runs_model) for row, texts in zip(rows, decoded, strict=True)]


def _run(parts: LoopParts, native: _NativeParts, prompts: Rows, limit: int) -> list[tuple[list[int], list[NativeTurn]]]:
    """Return, for each row, its prompt with what the kernel put behind it, and its turns."""
    rules, window, count = native.rules.packed, parts.draft_rule.window, len(prompts)
    rules.limit = limit
    # A run reads the prompts, or a draft and the two tokens that a model may lag behind.
    run, length = sum(map(len, prompts)) + count * (window + 2), max(map(len, prompts)) + limit
    small, _small_buffers = native.small.prepare(count, run, count, length)
    large, _large_buffers = native.large.prepare(count, run, count * (window + 1), length)
    if native.rules.cascades:
        drafted = empty_floats(count * (window + 1), small.stride)
        small.drafted = drafted.data_ptr()
    tokens = [(ctypes.c_int32 * (len(prompt) + limit))(*prompt) for prompt in prompts]
    turns = [(NativeTurn * max(1, limit))() for _ in prompts]
    views = zip(map(ctypes.addressof, tokens), map(len, prompts), map(ctypes.addressof, turns), strict=True)
    rows = (LoopRow * count)(*(LoopRow(*view) for view in views))
    flags = (ctypes.c_void_p * len(parts.abandoned))(*(text.address for text in parts.abandoned))
    broken = native.large.functions.draftline_speculative_loop(small, large, rules, rows, count, flags, len(flags))
    if broken > count:
        raise AbandonedError
    if broken < count:
        failed = turns[broken][: rows[broken].turn_count]
        if failed[-1].verified:
            raise BrokenLogitsError.at(parts.target.name, len(failed))
        raise BrokenLogitsError.at((parts.drafter.decoder or parts.target).name, sum(turn.predicted for turn in failed))
    return [(text[:], taken[: row.turn_count]) for text, taken, row in zip(tokens, turns, rows, strict=True)]
