"""Token recycling: what the table begins with, what it learns and forgets, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.drafters.recycling import RecyclingDrafter, last_successors
from tasks.decoding.drafters.tables import BEGINNING
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.loop import generate
from tasks.decoding.randomness import TokenSource
from tasks.decoding.registry import Pair, Request, build_method
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings
from tasks.decoding.turn import DraftRule
from tests.toys import END, START, Prefix, PrefixDecoder, prefix_pair, says

GREEDY = SamplingSettings()
TEXTS = [[2, 3, 2, 4, END], [5, 6, 7, END]]


def started(rows: int = 1) -> RecyclingDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = RecyclingDrafter(last_successors(TEXTS, 12), target, GREEDY)
    sources = [[2, END]] * rows
    drafter.start(target.encode(sources), sources)
    return drafter


def test_a_table_begins_with_the_last_occurrences_in_the_calibration_set() -> None:
    assert last_successors(TEXTS, 8) == {BEGINNING: 5, 2: 4, 3: 2, 4: END, 5: 6, 6: 7, 7: END}


@pytest.mark.parametrize(
    ("text", "budget", "proposed"),
    [
        pytest.param([], 8, [5, 6, 7, END], id="nothing after the end token"),
        pytest.param([], 2, [5, 6], id="the window"),
        pytest.param([3], 8, [2, 4, END], id="the token before"),
        pytest.param([9], 8, [], id="a token that was never seen"),
    ],
)
def test_what_is_proposed(text: list[int], budget: int, proposed: list[int]) -> None:
    draft = started().draft([[START, *text]], [0], [budget], DraftRule(budget))
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [False], [0])
    if proposed:
        assert draft.q.scores[0].argmax(-1).tolist() == proposed


def test_of_several_positions_with_one_token_the_last_one_counts() -> None:
    drafter = started()
    drafter.recycle([[9, 2, 9]], [[2, 3, 8]])
    assert drafter.propose(0, [START, 9], 0, 3) == [8]
    assert drafter.propose(0, [START, 2], 0, 3) == [3, 2, 3], "three after two, no longer four; two after three as before"
    drafter.recycle([[8]], [[END]])
    assert drafter.propose(0, [START, 9], 0, 3) == [8, END]


def test_rows_learn_by_themselves_and_a_new_text_knows_nothing_of_the_last_one() -> None:
    drafter = started(rows=2)
    drafter.recycle([[9], [9]], [[8], [10]])
    assert [drafter.propose(row, [START, 9], 0, 1) for row in (0, 1)] == [[8], [10]]
    drafter.reorder([1])
    assert drafter.propose(0, [START, 9], 0, 1) == [10]
    drafter.start(PrefixDecoder(says([2])).encode([[2, END]]), [[2, END]])
    assert drafter.propose(0, [START, 9], 0, 1) == []
    assert drafter.successors == last_successors(TEXTS, 12)


class Noted(RecyclingDrafter):
    """Notes what it drafts."""

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        drafted = super().propose(row, tokens, example, budget)
        self.drafts.append(drafted)
        return drafted

    drafts: Rows


def noted(pair: Pair, settings: SpeculativeSettings) -> tuple[SpeculativeLoop, Noted]:
    method = build_method("speculative", settings, pair, Request(9))
    assert isinstance(method, SpeculativeLoop)
    drafter = Noted(pair.last_successors, pair.large, GREEDY)
    drafter.drafts = []
    return dataclasses.replace(method, drafter=drafter), drafter


def test_predictions_of_rejected_positions_are_recycled() -> None:
    """The target says 2 3 4 6 5 8, whatever stands before: after the rejected 5 6 7 that was 3 4 6."""
    pair = dataclasses.replace(
        prefix_pair(says([2], vocabulary=12), says([2, 3, 4, 6, 5, 8], vocabulary=12)), calibration=TEXTS[1:]
    )
    method, drafter = noted(pair, SpeculativeSettings(drafter="recycling", draft_length=3))
    [found] = generate(method, [[2, END]], [0], 9)
    assert found.tokens == [2, 3, 4, 6, 5, 8, END]
    assert drafter.drafts == [
        [5, 6, 7],  # the calibration set; the target says 2 at the beginning, and 3, 4 and 6 behind these
        [],  # nothing is known about 2; the target says 3
        [],  # nor about 3; it says 4
        [],  # nor about 4; it says 6
        [4, 6, 4],  # 4 was said behind the rejected 6; now it says 5, then 8, and END behind the later 6 and 4
        [3, 4, END],  # 3 was said behind the rejected 5, 4 behind 3, END just now behind 4; it says 8
        [],  # nothing is known about 8
    ]
    assert found.counts.accepted == 0


def drifting(source: Prefix, prefix: Prefix) -> Tensor:
    """Predicts by the last token and the source, for six tokens in a row alike: almost surely."""
    logits = torch.zeros(8)
    logits[(5 * prefix[-1] + len(prefix) // 6 + source[0]) % 6 + 2] = 9.0
    return logits


def test_a_method_gives_the_same_again() -> None:
    """No text depends on the texts before it, nor on those beside it: neither its tokens nor its counts."""
    pair = dataclasses.replace(prefix_pair(says([2]), drifting), calibration=[[2, 3, 2]])
    sources = [[number % 6 + 2, END] for number in range(6)]
    for name, settings in (
        ("speculative", SpeculativeSettings(drafter="recycling")),
        ("bild", BildSettings(drafter="recycling", max_draft=3)),
    ):
        method = build_method(name, settings, pair, Request(14))
        together = method.run(sources, range(6), 14)
        assert method.run(sources, range(6), 14) == together
        assert [method.run([source], [number], 14)[0] for number, source in enumerate(sources)] == together
        assert sum(one.counts.accepted for one in together) > 5


def test_successors_are_of_the_pair() -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=TEXTS)
    drafter = make_drafter("recycling", pair, GREEDY, TokenSource(0))
    assert isinstance(drafter, RecyclingDrafter)
    assert drafter.successors is pair.last_successors
