"""The structures and functions of the compiled `kernel/` for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _ctypes import _CArgObject as Reference

Integers = ctypes.Array[ctypes.c_int32]
_SHORT = 32
"""New tokens of a run up to which the single row's arrays are reused; prompts may be longer."""

_Pointer = ctypes.c_void_p


class Linear(ctypes.Structure):
    """`kernel/layout.h`: Linear."""

    _fields_ = (
        ("weight", _Pointer),
        ("scale", _Pointer),
        ("offset", _Pointer),
        ("bias", _Pointer),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class Norm(ctypes.Structure):
    """`kernel/layout.h`: Norm."""

    _fields_ = (("weight", _Pointer), ("bias", _Pointer))


class Layer(ctypes.Structure):
    """`kernel/layout.h`: Layer."""

    _fields_ = (
        ("norm", Norm),
        ("query_key_value", Linear),
        ("out", Linear),
        ("cross_norm", Norm),
        ("cross_query", Linear),
        ("cross_key_value", Linear),
        ("cross_out", Linear),
        ("feed_norm", Norm),
        ("feed_in", Linear),
        ("feed_out", Linear),
    )


class Stack(ctypes.Structure):
    """`kernel/layout.h`: Stack."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "width", "heads", "key_value_heads", "head_width")),
        *((name, ctypes.c_int32) for name in ("activation", "gated", "causal", "format", "threads")),
        *((name, ctypes.c_float) for name in ("epsilon", "score_scale", "head_scale")),
        ("layer", ctypes.POINTER(Layer)),
        ("embedding", _Pointer),
        ("learned_positions", _Pointer),
        ("norm", Norm),
        ("head", Linear),
        ("tied", Linear),
        ("head_tokens", _Pointer),
    )


class Cache(ctypes.Structure):
    """`kernel/layout.h`: Cache."""

    _fields_ = (
        ("keys", _Pointer),
        ("values", _Pointer),
        ("layer_stride", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("cross_keys", _Pointer),
        ("cross_values", _Pointer),
        ("source_capacity", ctypes.c_int64),
        ("source_lengths", _Pointer),
        ("bias", _Pointer),
        ("cosines", _Pointer),
        ("sines", _Pointer),
    )


class RowBatch(ctypes.Structure):
    """`kernel/layout.h`: RowBatch."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("tokens", _Pointer),
        ("begin", _Pointer),
        ("cached", _Pointer),
        ("slots", _Pointer),
    )


class Deferral(ctypes.Structure):
    """`kernel/turns.h`: Deferral."""

    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in (
            *("min_confidence", "max_entropy", "max_gain", "max_entropy_gain"),
            *("max_surprisal", "max_gap", "min_share"),
        )
    )


class Acceptance(ctypes.Structure):
    """`kernel/layout.h`: Acceptance."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("max_surprisal", "min_share", "max_gap", "min_score", "max_excess")),
        ("pardon_entropy", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("agreement", "pardon_window", "max_rank")),
    )


class LoopRules(ctypes.Structure):
    """`kernel/turns.h`: LoopRules."""

    _fields_ = (
        ("acceptance", Acceptance),
        *((name, ctypes.c_double) for name in ("fallback_threshold", "stop_below", "max_entropy")),
        *((name, ctypes.c_int32) for name in ("window", "entropy_falls_back", "first_from_target", "ends_unverified")),
        *((name, ctypes.c_int32) for name in ("target_after_rollback", "adds_bonus")),
        ("limit", ctypes.c_int64),
        ("small_ends", _Pointer),
        ("large_ends", _Pointer),
        ("small_end_count", ctypes.c_int64),
        ("large_end_count", ctypes.c_int64),
        ("deferral", _Pointer),
    )


class LoopModel(ctypes.Structure):
    """`kernel/speculative_loop.h`: LoopModel."""

    _fields_ = (
        *((name, _Pointer) for name in ("stack", "cache", "hidden", "logits", "drafted")),
        ("stride", ctypes.c_int64),
        ("vocabulary", ctypes.c_int64),
        *((name, _Pointer) for name in ("next", "confidence", "entropy")),
    )


class NativeTurn(ctypes.Structure):
    """`kernel/turns.h`: Turn."""

    predicted: int
    drafted: int
    fallback: int
    accepted: int
    verified: int
    added: int
    _fields_ = tuple((name, ctypes.c_int32) for name in ("predicted", "drafted", "fallback", "accepted", "verified", "added"))


class Text(ctypes.Structure):
    """`kernel/turns.h`: Text."""

    _fields_ = (
        ("tokens", _Pointer),
        *((name, ctypes.c_int64) for name in ("prompt", "count", "small_cached", "large_cached")),
        ("target_goes_on", ctypes.c_int32),
    )


class LoopRow(ctypes.Structure):
    """`kernel/speculative_loop.h`: LoopRow."""

    turn_count: int
    ended: int
    _fields_ = (("text", Text), ("turns", _Pointer), ("turn_count", ctypes.c_int64), ("ended", ctypes.c_int32))


class KnownPrediction(ctypes.Structure):
    """`kernel/replay.h`: KnownPrediction."""

    best: int
    top: float
    entropy: float
    _fields_ = (("best", ctypes.c_int32), ("top", ctypes.c_double), ("entropy", ctypes.c_double))


class ReplayNode(ctypes.Structure):
    """`kernel/replay.h`: ReplayNode."""

    token: int
    child: int
    sibling: int
    small: KnownPrediction
    large: KnownPrediction
    score: float
    surprisal: float
    rank: int
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("token", "child", "sibling")),
        *((name, KnownPrediction) for name in ("small", "large")),
        *((name, ctypes.c_double) for name in ("score", "surprisal")),
        ("rank", ctypes.c_int32),
    )


@dataclass(frozen=True)
class NativeLoopModel:
    """One model as the kernel's speculative loop takes it."""

    functions: ctypes.CDLL
    """The compiled kernel."""
    known_tokens: int
    """Tokens that the model has an embedding for."""
    whole_head: bool
    """Whether the model predicts every token, as a target must; a drafter may have a draft vocabulary."""
    prepare: Callable[[int, int, int, int], tuple[LoopModel, object]]
    """(rows, new tokens of the longest run, positions that a run predicts, tokens of a row at most) to the kernel's view of the
    model, and the buffers that it points into, to be kept while it is used."""


def declare_functions(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Declare to ctypes what the kernel's functions take and return."""
    integer, short, real, pointer = ctypes.c_int64, ctypes.c_int32, ctypes.c_double, _Pointer
    stack, cache, rows = (ctypes.POINTER(one) for one in (Stack, Cache, RowBatch))
    loop_model = ctypes.POINTER(LoopModel)
    model, predicted = [stack, cache, rows], [integer, integer, pointer]
    signatures = {
        "draftline_panel": ([], integer),
        "draftline_pack": ([short, short, pointer, *[integer] * 3, *[pointer] * 3, short], None),
        "draftline_run": ([*model, pointer], None),
        "draftline_read": ([stack, cache, pointer, integer, integer], None),
        "draftline_predict": ([stack, pointer, integer, pointer, *predicted], None),
        "draftline_continue": (
            [*model, integer, real, real, real, pointer, integer, pointer, pointer, *predicted, pointer, pointer],
            integer,
        ),
        "draftline_take_turns": (
            [loop_model, loop_model, ctypes.POINTER(LoopRules), ctypes.POINTER(LoopRow), integer, integer, pointer, integer],
            integer,
        ),
        "draftline_replay": ([pointer, ctypes.POINTER(LoopRules), *[pointer] * 4], integer),
        "draftline_read_memory": ([pointer, integer, integer, short, pointer], None),
        "draftline_multiply": ([short, integer, pointer], integer),
        "draftline_check_draft": ([*model, integer, ctypes.POINTER(Acceptance), pointer, pointer, *predicted], integer),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(functions, name)
        function.argtypes, function.restype = arguments, result
    return functions


def integers(values: Iterable[int]) -> Integers:
    """Return a C array of int32."""
    some = list(values)
    return (ctypes.c_int32 * len(some))(*some)


def several_rows(
    tokens: Sequence[Sequence[int]], cached: Sequence[int], slots: Sequence[int]
) -> tuple[Reference, tuple[Integers, ...]]:
    """Return a reference to a `RowBatch`, and the arrays that it points into, to be kept while it is used."""
    begin = accumulate(map(len, tokens), initial=0)
    parts = integers(chain.from_iterable(tokens)), integers(begin), integers(cached), integers(slots)
    return ctypes.byref(RowBatch(len(tokens), *map(ctypes.addressof, parts))), parts


class SingleRow:
    """A `RowBatch` of one row, overwritten for each run."""

    def __init__(self) -> None:
        self._tokens = integers([0] * _SHORT)
        self._begin, self._cached, self._slot = integers([0, 0]), integers([0]), integers([0])
        parts = (self._tokens, self._begin, self._cached, self._slot)
        self.reference = ctypes.byref(RowBatch(1, *map(ctypes.addressof, parts)))

    def write(self, tokens: list[int], cached: int, slot: int) -> bool:
        """Write the row; return False where its tokens do not fit."""
        count = len(tokens)
        if count > _SHORT:
            return False
        self._tokens[:count] = tokens  # type: ignore[assignment]  # ctypes takes a list
        self._begin[1], self._cached[0], self._slot[0] = count, cached, slot
        return True
