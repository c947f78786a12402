"""The structures, buffers and functions of the compiled `kernel/` for ctypes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _ctypes import _CArgObject as Reference

    from tasks.decoding.decoder import GreedyAcceptance

FORMATS = ("float32", "bfloat16", "int8")
"""Number formats of the matrices, in the order of the kernel's `Format`."""
Integers = ctypes.Array[ctypes.c_int32]
_SHORT = 32
"""New tokens of a run up to which the single row's arrays are reused; prompts may be longer."""

_POINTER, _INT32, _INT64, _FLOAT, _DOUBLE = (
    ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_double,
)  # fmt: skip


def _fields(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    """Return the fields of a structure from groups of one type, each with the names in the order of the kernel's header."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Linear(ctypes.Structure):
    """`kernel/layout.h`: Linear."""

    _fields_ = _fields((_POINTER, "weight scale offset bias"), (_INT64, "inputs outputs"))


class Norm(ctypes.Structure):
    """`kernel/layout.h`: Norm."""

    _fields_ = _fields((_POINTER, "weight bias"))


class Layer(ctypes.Structure):
    """`kernel/layout.h`: Layer."""

    _fields_ = _fields(
        (Norm, "norm"),
        (Linear, "query_key_value out"),
        (Norm, "query_norm key_norm cross_norm"),
        (Linear, "cross_query cross_key_value cross_out"),
        (Norm, "feed_norm"),
        (Linear, "feed_in feed_out"),
        (Norm, "post_norm feed_post_norm"),
        (_INT64, "window"),
    )


class Stack(ctypes.Structure):
    """`kernel/layout.h`: Stack."""

    _fields_ = _fields(
        (_INT32, "layers width heads key_value_heads head_width activation gated causal norm_last format threads"),
        (_FLOAT, "epsilon score_scale head_scale embedding_scale score_cap logit_cap"),
        (ctypes.POINTER(Layer), "layer"),
        (_POINTER, "embedding learned_positions"),
        (Norm, "embedding_norm norm"),
        (Linear, "head tied"),
        (_POINTER, "head_tokens"),
    )


class Cache(ctypes.Structure):
    """`kernel/layout.h`: Cache."""

    _fields_ = _fields(
        (_POINTER, "keys values"),
        (_INT64, "layer_stride slots capacity"),
        (_POINTER, "cross_keys cross_values"),
        (_INT64, "source_capacity"),
        (_POINTER, "source_lengths bias cosines sines window_cosines window_sines"),
    )


class RowBatch(ctypes.Structure):
    """`kernel/layout.h`: RowBatch."""

    _fields_ = _fields((_INT64, "rows"), (_POINTER, "tokens begin cached slots"))


class Deferral(ctypes.Structure):
    """`kernel/speculative_loop.h`: Deferral."""

    _fields_ = _fields((_DOUBLE, "min_confidence max_entropy max_gain max_entropy_gain max_surprisal max_gap min_share"))


class Acceptance(ctypes.Structure):
    """`kernel/layout.h`: Acceptance."""

    _fields_ = _fields((_DOUBLE, "max_surprisal min_share max_gap"), (_INT32, "keep_agreed"))


CHOOSE = ctypes.CFUNCTYPE(_INT32, _INT64, _INT64, _INT32, _INT64, ctypes.POINTER(_DOUBLE), _INT64)
"""`kernel/sampling.h`: Choose."""


class Transform(ctypes.Structure):
    """`kernel/sampling.h`: Transform."""

    _fields_ = _fields((_DOUBLE, "temperature top_p"), (_INT64, "top_k"))


class Sampling(ctypes.Structure):
    """`kernel/sampling.h`: Sampling."""

    _fields_ = _fields(
        (Transform, "small large"),
        (_INT32, "rule cascade"),
        (_DOUBLE, "value"),
        (ctypes.c_uint64, "seed stream"),
        (CHOOSE, "choose"),
    )


class LoopRules(ctypes.Structure):
    """`kernel/speculative_loop.h`: LoopRules."""

    _fields_ = _fields(
        (Acceptance, "acceptance"),
        (_DOUBLE, "fallback_threshold stop_below max_entropy"),
        (_INT32, "window ends_unverified"),
        (_INT64, "limit"),
        (_POINTER, "small_ends large_ends"),
        (_INT64, "small_end_count large_end_count"),
        (_POINTER, "deferral sampling"),
    )


class LoopModel(ctypes.Structure):
    """`kernel/speculative_loop.h`: LoopModel."""

    _fields_ = _fields(
        (_POINTER, "stack cache hidden logits drafted"), (_INT64, "stride vocabulary"), (_POINTER, "next confidence kept")
    )


class NativeTurn(ctypes.Structure):
    """`kernel/speculative_loop.h`: Turn."""

    _fields_ = _fields((_INT32, "predicted drafted fallback accepted verified added"))


class Text(ctypes.Structure):
    """`kernel/speculative_loop.h`: Text."""

    _fields_ = _fields((_POINTER, "tokens"), (_INT64, "prompt count small_cached large_cached"))


class LoopRow(ctypes.Structure):
    """`kernel/speculative_loop.h`: LoopRow."""

    _fields_ = _fields(
        (Text, "text"), (_POINTER, "turns"), (_INT64, "turn_count"), (_INT32, "ended"), (_INT64, "example"), (_INT32, "source")
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
    keep: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """While it is open, predictions outlive a call: batches of the same sources compute each of them once."""


def declare_functions(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Declare to ctypes what the kernel's functions take and return."""
    stack, cache, rows, model = (ctypes.POINTER(one) for one in (Stack, Cache, RowBatch, LoopModel))
    rules, run, predicted = ctypes.POINTER(LoopRules), [stack, cache, rows], [_INT64, _INT64, _POINTER]
    signatures: dict[str, tuple[list[type], type | None]] = {
        "draftline_panel": ([], _INT64),
        "draftline_pack": ([_INT32, _INT32, _POINTER, *[_INT64] * 3, *[_POINTER] * 3, _INT32], None),
        "draftline_run": ([*run, _POINTER], None),
        "draftline_read": ([stack, cache, _POINTER, _INT64, _INT64], None),
        "draftline_predict": ([stack, _POINTER, _INT64, _POINTER, *predicted], None),
        "draftline_continue": (
            [*run, _INT64, *[_DOUBLE] * 3, _POINTER, _INT64, *[_POINTER] * 2, *predicted, *[_POINTER] * 2], _INT64
        ),
        "draftline_check_draft": ([*run, _INT64, ctypes.POINTER(Acceptance), *[_POINTER] * 2, *predicted], _INT64),
        "draftline_take_turns": (
            [model, model, rules, ctypes.POINTER(LoopRow), _INT64, _INT64, _POINTER, _INT64], _INT64
        ),
        "draftline_keep": ([], _POINTER),
        "draftline_drop": ([_POINTER], None),
        "draftline_read_memory": ([_POINTER, _INT64, _INT64, _INT32, _POINTER], None),
    }  # fmt: skip
    for name, (arguments, result) in signatures.items():
        # Without declared types ctypes would cut addresses to 32 bits.
        function = getattr(functions, name)
        function.argtypes, function.restype = arguments, result
    return functions


def pack_acceptance(rule: GreedyAcceptance) -> Acceptance:
    """Return the kernel's structure of a greedy acceptance rule."""
    return Acceptance(rule.max_surprisal, rule.min_share, rule.max_gap, rule.keep_agreed)


def integers(values: Iterable[int]) -> Integers:
    """Return a C array of int32."""
    # The length makes the type, so that it has to be known first.
    some = list(values)
    return (ctypes.c_int32 * len(some))(*some)


def several_rows(
    tokens: Sequence[Sequence[int]], cached: Sequence[int], slots: Sequence[int]
) -> tuple[Reference, tuple[Integers, ...]]:
    """Return a reference to a `RowBatch`, and the arrays that it points into, to be kept while it is used."""
    # Rows one behind the other: where each begins, and where the last one ends.
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
        # Prompts are longer than the array; they are rare and take `several_rows`.
        if count > _SHORT:
            return False
        self._tokens[:count] = tokens  # type: ignore[assignment]  # ctypes takes a list
        self._begin[1], self._cached[0], self._slot[0] = count, cached, slot
        return True
