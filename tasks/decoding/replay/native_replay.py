"""Replay in the compiled kernel, wherever all predictions of a text are known: the same tokens and counts as the replayer's.

The kernel walks over the nodes of a source in about a microsecond. The texts of many settings are the same, by the same turns:
these are accounted for once.
"""

from __future__ import annotations

import ctypes

from tasks.decoding.generation import Generation
from tasks.decoding.loop import LoopParts
from tasks.decoding.native_rules import account
from tasks.decoding.replay.known_predictions import KnownPredictions
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, SMALL_MODEL
from tasks.decoding.runtimes.layout import NativeTurn
from tasks.decoding.turn import RowState

_TURN_BYTES = ctypes.sizeof(NativeTurn)


def replay_known(parts: LoopParts, known: KnownPredictions, limit: int) -> Generation | None:
    """Return what a method decodes from the open source, at most `limit` tokens.

    None where a prediction is not known yet, the rules are not numbers, or it is not the large model that checks drafts of the
    small one.
    """
    rules = parts.native_rules
    if rules is None or not _drafts_by_small_model(parts):
        return None
    known.fit(limit, parts.draft_rule.window)
    rules.packed.limit = limit
    tokens, turns, count = known.tokens, known.turns, known.count
    taken = known.functions.draftline_replay(known.nodes, rules.packed, tokens, ctypes.byref(count), turns, known.best)
    if not taken:
        return None
    text = tokens[: count.value]
    key = rules.adds_bonus, ctypes.string_at(turns, taken * _TURN_BYTES), tuple(text)
    found = known.texts.get(key)
    if found is None:
        row = RowState(0, [], 0)
        account(parts.turns(limit), row, text, turns[:taken])
        found = known.texts[key] = row.generation()
    return found


def _drafts_by_small_model(parts: LoopParts) -> bool:
    drafter, target = parts.drafter.decoder, parts.target.capabilities.replay
    drafting = None if drafter is None else drafter.capabilities.replay
    if drafting is None or target is None:
        return False
    return (drafting.model, target.model) == (SMALL_MODEL, LARGE_MODEL)
