"""A greedy method's rules as the compiled kernel takes them, and what the turns that it reports did to a row."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from tasks.decoding.acceptance_rules import AcceptanceRule, BonusToken
from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.runtimes.layout import Deferral, Integers, LoopRules, NativeTurn, integers, pack_acceptance
from tasks.decoding.turn import DraftRule, RowState, TurnRules

_ACCEPT_ALL = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=False, min_share=0.0)
"""A cascade's deferral decides in place of this rule."""


@dataclass(frozen=True)
class NativeRules:
    """What the kernel needs of a method besides its models."""

    packed: LoopRules
    """Its `limit` is the caller's to set."""
    buffers: object
    """What `packed` points into."""
    cascades: bool
    """Whether a deferral rule decides, which reads the drafter's distributions too."""
    adds_bonus: bool
    """Whether a token follows a fully accepted draft."""


def native_rules(
    acceptance: AcceptanceRule, draft_rule: DraftRule, drafter_ends: Iterable[int], target_ends: Iterable[int]
) -> NativeRules | None:
    """Return the rules of greedy decoding in numbers; none where they adapt the window or have another form.

    Args:
        acceptance: What is accepted of a draft.
        draft_rule: When drafting stops.
        drafter_ends: Tokens that end a text for the drafter.
        target_ends: Tokens that end a text for the target.
    """
    greedy, deferral = acceptance.greedy, acceptance.deferral
    if deferral is not None:
        greedy = _ACCEPT_ALL
    if greedy is None or draft_rule.adaptive is not None or (deferral is None and acceptance.bonus is BonusToken.RULE):
        return None
    adds_bonus = acceptance.bonus is not BonusToken.NONE
    ends = [integers(sorted(tokens)) for tokens in (drafter_ends, target_ends)]
    bounds = None if deferral is None else Deferral(*astuple(deferral))
    flags = (
        *(draft_rule.entropy_falls_back, draft_rule.first_from_target),
        *(draft_rule.ends_unverified, draft_rule.target_after_rollback, adds_bonus),
    )
    packed = LoopRules(
        *(pack_acceptance(greedy), draft_rule.fallback_threshold, draft_rule.stop_below, draft_rule.max_entropy),
        draft_rule.window,
        *(*flags, 0),
        *map(ctypes.addressof, ends),
        *map(len, ends),
        None if bounds is None else ctypes.addressof(bounds),
    )
    return NativeRules(packed, (ends, bounds), cascades=deferral is not None, adds_bonus=adds_bonus)


def account(
    rules: TurnRules,
    row: RowState,
    text: Sequence[int] | Integers,
    turns: Sequence[NativeTurn],
    *,
    ended: bool = True,
    runs_model: bool = True,
) -> None:
    """Account for the kernel's turns; it must have ended the text exactly where the turns say that it ends.

    Args:
        rules: What the turns go by.
        row: The row, changed in place; it has its prompt.
        text: The prompt, and the tokens that the turns so far put behind it.
        turns: The turns that the row does not know yet.
        ended: Whether the text ends with the last of them, by what the kernel says.
        runs_model: Whether each of the drafter's predictions is a run of a model.

    Raises:
        RuntimeError: the text ends elsewhere.
    """
    for number, turn in enumerate(turns, start=1):
        begin = len(row.tokens)
        end = begin + (turn.accepted if turn.verified else turn.drafted)
        ends = rules.finish(
            row,
            text[begin:end],
            text[end] if turn.added else None,
            drafted=turn.drafted,
            steps=turn.predicted if runs_model else 0,
            fallback=bool(turn.fallback),
            verified=bool(turn.verified),
        )
        if ends != (ended and number == len(turns)):
            raise RuntimeError(f"the kernel took {len(turns)} turns, but the text ends otherwise at turn {number}")
