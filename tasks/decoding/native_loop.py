"""The native loop: rows in a single call of the compiled kernel, for rules that are numbers and drafters that are native models
or, greedily, tables.

Python between two model runs takes longer than a small model's own run, so the kernel goes through all turns by itself. It
reports each turn as a few integers, from which `account` makes tokens, proposers and counts.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import torch

from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance, Rows
from tasks.decoding.distributions import Key, Purpose
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.drafters.look_ups import TableDrafter
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair
from tasks.decoding.rules import SAMPLED_RULES, BonusToken
from tasks.decoding.runtimes import layout
from tasks.decoding.runtimes.layout import Integers, NativeTurn, Text
from tasks.decoding.runtimes.packed import empty_floats
from tasks.decoding.turn import AbandonedError, LoopParts, RowState, TurnRules

_ACCEPT_ALL = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=False, min_share=0.0)
"""A cascade's deferral decides in place of this rule."""


def native_rules(parts: LoopParts) -> tuple[layout.LoopRules, object] | None:
    """Return the rules of decoding in numbers, and what they point into; their `limit` is the caller's to set.

    None where they have another form, or where no token follows a fully accepted draft.
    """
    acceptance, draft_rule = parts.acceptance, parts.draft_rule
    if parts.scored or acceptance.bonus is BonusToken.NONE:
        return None
    greedy, deferral, sampling = acceptance.greedy, acceptance.deferral, None
    # A cascade's deferral decides in place of an acceptance rule.
    if deferral is not None:
        greedy = _ACCEPT_ALL
    if greedy is None or (deferral is None and acceptance.bonus is BonusToken.RULE):
        return None
    if not parts.sampling.greedy:
        sampling, deferral = _native_sampling(parts), None
        if sampling is None:
            return None
    drafter = parts.drafter.decoder or parts.target  # a table ends texts with the target's tokens
    ends = [layout.integers(sorted(tokens)) for tokens in (drafter.end_tokens, parts.target.end_tokens)]
    bounds = None if deferral is None else layout.Deferral(*astuple(deferral))
    packed = layout.LoopRules(
        acceptance=layout.pack_acceptance(greedy),
        fallback_threshold=draft_rule.fallback_threshold,
        stop_below=draft_rule.stop_below,
        max_entropy=draft_rule.max_entropy,
        window=draft_rule.window,
        ends_unverified=draft_rule.ends_unverified,
        small_ends=ctypes.addressof(ends[0]),
        large_ends=ctypes.addressof(ends[1]),
        small_end_count=len(ends[0]),
        large_end_count=len(ends[1]),
        deferral=None if bounds is None else ctypes.addressof(bounds),
        sampling=None if sampling is None else ctypes.addressof(sampling),
    )
    return packed, (ends, bounds, sampling)


def _native_sampling(parts: LoopParts) -> layout.Sampling | None:
    """Return how tokens are drawn and drafts accepted when sampling; none for a rule that the kernel does not have."""
    rule, sampling, source = parts.acceptance.in_numbers, parts.sampling, parts.source
    drafting = parts.drafter.sampling if isinstance(parts.drafter, ModelDrafter) else sampling
    if rule is None or source.kernel == "never":
        return None

    def choose(example: int, position: int, purpose: int, turn: int, weights: Sequence[float], count: int) -> int:
        key = Key(example, position, Purpose(purpose), turn)
        if purpose == Purpose.ACCEPT:
            return int(source.uniform(key) < weights[0])
        return source.draw(torch.tensor([weights[:count]], dtype=torch.float64), [key])[0]

    return layout.Sampling(
        small=layout.Transform(drafting.temperature, drafting.top_p, drafting.top_k),
        large=layout.Transform(sampling.temperature, sampling.top_p, sampling.top_k),
        rule=SAMPLED_RULES.index(rule.form),
        cascade=rule.cascade,
        value=rule.value,
        seed=source.seed,  # ctypes keeps its low 64 bits
        stream=source.stream,
        choose=layout.CHOOSE(choose) if source.kernel == "asks" else layout.CHOOSE(),
    )


def _reads_drafted(parts: LoopParts) -> bool:
    """Return whether the acceptance rule reads q of drafted positions."""
    rule = parts.acceptance.in_numbers
    return parts.acceptance.deferral is not None if parts.sampling.greedy else rule is not None and rule.form != "bounds"


def account(
    rules: TurnRules, row: RowState, text: Sequence[int] | Integers, turns: Sequence[NativeTurn], *, runs_model: bool = True
) -> None:
    """Add to a row what the turns that the kernel reports did to it.

    Args:
        rules: What the turns go by.
        row: The row, changed in place; it has its prompt.
        text: The prompt, and the tokens that the turns so far put behind it.
        turns: The turns that the row does not know yet.
        runs_model: Whether each of the drafter's predictions is a run of a model.
    """
    for turn in turns:
        begin = len(row.tokens)
        end = begin + (turn.accepted if turn.verified else turn.drafted)
        rules.finish(
            row,
            text[begin:end],
            text[end] if turn.added else None,
            drafted=turn.drafted,
            steps=turn.predicted if runs_model else 0,
            fallback=bool(turn.fallback),
            verified=bool(turn.verified),
        )


@dataclass(frozen=True)
class _NativeParts:
    """What the kernel needs of a method."""

    small: layout.NativeLoopModel
    large: layout.NativeLoopModel
    rules: layout.LoopRules
    buffers: object
    """What the rules point into."""


def fits(parts: LoopParts) -> bool:
    """Return whether the kernel can run rows of this method by itself."""
    return _native_parts(parts) is not None


def _native_parts(parts: LoopParts) -> _NativeParts | None:
    large = parts.target.capabilities.native_loop
    if large is None or not large.whole_head or parts.target.vocabulary > large.known_tokens:
        return None
    rules = native_rules(parts)
    small = None if rules is None else _native_drafter(parts, large)
    return None if rules is None or small is None else _NativeParts(small, large, *rules)


def _native_drafter(parts: LoopParts, large: layout.NativeLoopModel) -> layout.NativeLoopModel | None:
    """Return the drafter as the kernel takes it: a model, the table of all its predictions, or nothing."""
    decoder, vocabulary = parts.drafter.decoder, parts.target.vocabulary
    if parts.undrafted:
        return layout.NativeLoopModel(large.functions, vocabulary, True, lambda *_: (layout.LoopModel(), None))
    if decoder is not None:
        small = decoder.capabilities.native_loop
        if small is None or not decoder.vocabulary == vocabulary <= small.known_tokens:
            return None
        # Where q and p are compared token by token, they must be over the same ones.
        return small if small.whole_head or parts.sampling.greedy or not _reads_drafted(parts) else None
    # A cascade compares the distributions of both models.
    # A drafter that depends on the last token alone is, greedily, a table of its predictions.
    if parts.acceptance.deferral is not None or not parts.sampling.greedy or not isinstance(parts.drafter, TableDrafter):
        return None
    table = parts.drafter.greedy_table(large.known_tokens)
    view = layout.LoopModel(vocabulary=vocabulary, next=table.next.data_ptr(), confidence=table.confidence.data_ptr())
    return layout.NativeLoopModel(large.functions, len(table.next), True, lambda *_: (view, table))


def generate(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode all sources side by side, in one call or, where texts are watched, in one call a turn.

    `loop.SpeculativeLoop.run` describes the arguments.

    Raises:
        BrokenLogitsError: a model gave NaN, +infinity or no finite logit.
        AbandonedError: all flags of `parts.abandoned` were set on the way.
    """
    native = _native_parts(parts)
    if native is None:
        raise ValueError("the native loop takes rules in numbers, and a native model with another one or a table")
    encoder_output = parts.target.encode(sources)
    prompts = parts.target.start(encoder_output)
    parts.drafter.start(encoder_output, sources)
    rows = [RowState(example, prompt, len(prompt)) for example, prompt in zip(examples, prompts, strict=True)]
    batch = _Batch(parts, native, sources, prompts, examples, limit)
    while batch.going:
        moved = batch.going
        batch.take_turns(limit if parts.watch is None else 1)
        for index in moved:
            batch.account(index, rows[index])
            if parts.watch is not None and parts.watch(rows[index]):
                batch.end(index, rows[index])
    return [row.generation() for row in rows]


@contextlib.contextmanager
def keeping_predictions(pair: Pair) -> Iterator[None]:
    """Let methods that decode the same batch one after the other compute each prediction of a native model once.

    The tokens are the same: a token's logits are, to the bit, whether it is computed alone or in a draft, and in any batch.
    """
    with contextlib.ExitStack() as stack:
        for decoder in {id(one): one for one in (pair.small, pair.large)}.values():
            if (native := decoder.capabilities.native_loop) is not None:
                stack.enter_context(native.keep())
        yield


class _Batch:
    """Rows in the kernel: their texts and turns, and all that it works on."""

    def __init__(
        self, parts: LoopParts, native: _NativeParts, sources: Rows, prompts: Rows, examples: Sequence[int], limit: int
    ) -> None:
        self._parts, self._native, self._rules = parts, native, parts.turns(limit)
        window, count = parts.draft_rule.window, len(prompts)
        native.rules.limit = limit
        # A run reads the prompts, or a draft and the two tokens that a model may lag behind.
        run, length = sum(map(len, prompts)) + count * (window + 2), max(map(len, prompts)) + limit
        self._small, small_buffers = native.small.prepare(count, run, count, length)
        self._large, large_buffers = native.large.prepare(count, run, count * (window + 1), length)
        # q of all drafted positions, where the rule reads it.
        drafted = empty_floats(count * (window + 1) if _reads_drafted(parts) else 0, self._small.stride)
        self._small.drafted = drafted.data_ptr() or None
        self._kept = small_buffers, large_buffers, drafted
        self._tokens = [(ctypes.c_int32 * (len(prompt) + limit))(*prompt) for prompt in prompts]
        self._turns = [(NativeTurn * max(1, limit))() for _ in prompts]
        self._known = [0] * count
        """Turns of each row that it has accounted for."""
        texts = [Text(ctypes.addressof(tokens), len(row), len(row)) for tokens, row in zip(self._tokens, prompts, strict=True)]
        self._rows = (layout.LoopRow * count)(*map(layout.LoopRow, texts, map(ctypes.addressof, self._turns)))
        numbers = dict[tuple[int, ...], int]()
        for native_row, example, source in zip(self._rows, examples, sources, strict=True):
            native_row.example, native_row.source = example, numbers.setdefault(tuple(source), len(numbers))
        self._flags = (ctypes.c_void_p * len(parts.abandoned))(*(text.address for text in parts.abandoned))

    @property
    def going(self) -> list[int]:
        """The rows whose texts have not ended."""
        return [index for index, row in enumerate(self._rows) if not row.ended]

    def take_turns(self, most: int) -> None:
        """Let the kernel take at most that many turns of each row that is going."""
        take, count = self._native.large.functions.draftline_take_turns, len(self._rows)
        broken = take(self._small, self._large, self._native.rules, self._rows, count, most, self._flags, len(self._flags))
        if broken > count:
            raise AbandonedError
        if broken < count:
            turns = self._turns[broken][: self._rows[broken].turn_count]
            # The last turn says which model broke: it was verified where the target did.
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

    def end(self, index: int, row: RowState) -> None:
        """Let a text go no further."""
        self._rows[index].ended = 1
        row.end()
