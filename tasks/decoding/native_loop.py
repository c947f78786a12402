"""The native loop: greedy rows in a single call of the compiled kernel, for rules that are numbers and drafters that are native
models or tables.

Python between two model runs takes longer than a small model's own run, so the kernel goes through all turns by itself. It
reports each turn as a few integers, from which `turn.account` makes tokens, proposers and counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import BrokenLogitsError, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.runtimes.layout import LoopModel, LoopRow, NativeLoopModel, NativeTurn, Text, empty_floats
from tasks.decoding.turn import AbandonedError, LoopParts, NativeRules, RowState, account


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
    """Decode all sources side by side, in one call or, where texts are watched, in one call a turn.

    `loop.SpeculativeLoop.run` describes the arguments.

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
    rows = [RowState(example, prompt, len(prompt)) for example, prompt in zip(examples, prompts, strict=True)]
    batch = _Batch(parts, native, prompts, limit)
    while batch.going:
        moved = batch.going
        batch.take_turns(limit if parts.watch is None else 1)
        for index in moved:
            batch.account(index, rows[index])
            if parts.watch is not None:
                parts.watch(rows[index])
    return [row.generation() for row in rows]


class _Batch:
    """Rows in the kernel: their texts and turns, and all that it works on."""

    def __init__(self, parts: LoopParts, native: _NativeParts, prompts: Rows, limit: int) -> None:
        self._parts, self._native, self._rules = parts, native, parts.turns(limit)
        window, count = parts.draft_rule.window, len(prompts)
        native.rules.packed.limit = limit
        # A run reads the prompts, or a draft and the two tokens that a model may lag behind.
        run, length = sum(map(len, prompts)) + count * (window + 2), max(map(len, prompts)) + limit
        self._small, small_buffers = native.small.prepare(count, run, count, length)
        self._large, large_buffers = native.large.prepare(count, run, count * (window + 1), length)
        drafted = empty_floats(count * (window + 1) if native.rules.cascades else 0, self._small.stride)
        self._small.drafted = drafted.data_ptr()
        self._kept = small_buffers, large_buffers, drafted
        self._tokens = [(ctypes.c_int32 * (len(prompt) + limit))(*prompt) for prompt in prompts]
        self._turns = [(NativeTurn * max(1, limit))() for _ in prompts]
        self._known = [0] * count
        """Turns of each row that it has accounted for."""
        texts = [Text(ctypes.addressof(tokens), len(row), len(row)) for tokens, row in zip(self._tokens, prompts, strict=True)]
        self._rows = (LoopRow * count)(*map(LoopRow, texts, map(ctypes.addressof, self._turns)))
        self._flags = (ctypes.c_void_p * len(parts.abandoned))(*(text.address for text in parts.abandoned))

    @property
    def going(self) -> list[int]:
        """The rows whose texts have not ended."""
        return [index for index, row in enumerate(self._rows) if not row.ended]

    def take_turns(self, most: int) -> None:
        """Let the kernel take at most that many turns of each row that is going."""
        take, count = self._native.large.functions.draftline_take_turns, len(self._rows)
        broken = take(
            self._small, self._large, self._native.rules.packed, self._rows, count, most, self._flags, len(self._flags)
        )
        if broken > count:
            raise AbandonedError
        if broken < count:
            turns = self._turns[broken][: self._rows[broken].turn_count]
            if turns[-1].verified:
                raise BrokenLogitsError.at(self._parts.target.name, len(turns))
            drafter = self._parts.drafter.decoder or self._parts.target
            raise BrokenLogitsError.at(drafter.name, sum(turn.predicted for turn in turns))

    def account(self, index: int, row: RowState) -> None:
        """Add to a row what its new turns did."""
        native, known = self._rows[index], self._known[index]
        self._known[index] = native.turn_count
        turns, runs_model = self._turns[index][known : native.turn_count], self._parts.drafter.runs_model
        account(self._rules, row, self._tokens[index], turns, runs_model=runs_model)
