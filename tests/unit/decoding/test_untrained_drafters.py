"""Drafters that need no training: what each proposes, by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from scipy import stats

from tasks.decoding.decoder import Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters import look_ups, make_drafter
from tasks.decoding.drafters.base import DraftRule
from tasks.decoding.drafters.look_ups import (
    BigramDrafter,
    CopyDrafter,
    RandomDrafter,
    TableDrafter,
    UnigramDrafter,
    count_ngrams,
)
from tasks.decoding.method import CALIBRATED, DRAFTERS, SamplingSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tests.distributions import FALSE_ALARM
from tests.toys import END, START, PrefixDecoder, prefix_pair, says

GREEDY = SamplingSettings()

SPECIALS = frozenset((START, END))
TEXTS = [[2, 3, 2, 4, END], [2, 3, END], [2, 3, END], [2, 2, 5, END]]
"""Of 15 tokens 2 is six, 3 three, 4 and 5 one each, the end token four. A text begins with 2; after 2 come 3 three times
and 2, 4 and 5 once each; after 3 the end twice and 2 once; after 4 and 5 the end; after 6 and 7 nothing was seen."""


def table_drafter(kind: type[TableDrafter], sampling: SamplingSettings = GREEDY) -> TableDrafter:
    return kind(count_ngrams(TEXTS, 8, SPECIALS), PrefixDecoder(says([2])), sampling, TokenSource(0))


def frequencies(drafter: TableDrafter, last: int) -> list[float]:
    found: list[float] = torch.softmax(drafter.look_up(last), -1).tolist()
    return found


def test_tables_are_relative_frequencies() -> None:
    everywhere = pytest.approx([0, 4 / 15, 6 / 15, 3 / 15, 1 / 15, 1 / 15, 0, 0])
    unigram, bigram = (table_drafter(kind) for kind in (UnigramDrafter, BigramDrafter))
    for token in range(8):
        assert frequencies(unigram, token) == everywhere
    assert frequencies(bigram, START) == pytest.approx([0, 0, 1, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 2) == pytest.approx([0, 0, 1 / 6, 3 / 6, 1 / 6, 1 / 6, 0, 0])
    assert frequencies(bigram, 3) == pytest.approx([0, 2 / 3, 1 / 3, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 5) == pytest.approx([0, 1, 0, 0, 0, 0, 0, 0])
    for unseen in (6, 7):
        assert frequencies(bigram, unseen) == everywhere


@pytest.mark.parametrize(
    ("kind", "text", "rule", "proposed", "fallback"),
    [
        pytest.param(UnigramDrafter, [], DraftRule(3), [2, 2, 2], False, id="the most frequent token"),
        pytest.param(BigramDrafter, [], DraftRule(5), [2, 3, END], False, id="nothing after the end token"),
        pytest.param(BigramDrafter, [], DraftRule(2), [2, 3], False, id="the window"),
        pytest.param(BigramDrafter, [2], DraftRule(5), [3, END], False, id="the token before"),
        pytest.param(BigramDrafter, [2, 7], DraftRule(5), [2, 3, END], False, id="back-off where it was never seen"),
        pytest.param(BigramDrafter, [], DraftRule(5, fallback_threshold=0.51), [2], True, id="not above the threshold"),
        pytest.param(BigramDrafter, [], DraftRule(5, fallback_threshold=0.49), [2, 3, END], False, id="above the threshold"),
        pytest.param(BigramDrafter, [7], DraftRule(5, fallback_threshold=0.41), [], True, id="back-off is unsure"),
        pytest.param(BigramDrafter, [], DraftRule(5, stop_below=0.6), [2, 3], False, id="the product falls"),
    ],
)
def test_what_tables_propose(
    kind: type[TableDrafter], text: list[int], rule: DraftRule, proposed: list[int], fallback: bool
) -> None:
    draft = table_drafter(kind).draft([[START, *text]], [0], [rule.window], rule)
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [fallback], [0])
    if proposed:
        assert draft.q.scores.shape == (1, len(proposed), 8)


@pytest.mark.parametrize("rows", [[], [[]]])
def test_tables_need_a_calibration_set(rows: Rows) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=rows)
    for name in CALIBRATED:
        with pytest.raises(InputError, match=r"calibration set and there is none; run the stage calibrate"):
            METHODS["speculative"].build(pair, SpeculativeSettings(drafter=name), GREEDY, TokenSource(0))
    for name in ("copy", "random"):
        make_drafter(name, pair, GREEDY, TokenSource(0))


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="a token 9, outside the large model's vocabulary of 8"):
        count_ngrams([[2, 9, END]], 8, SPECIALS)


def test_an_unknown_drafter_is_refused() -> None:
    with pytest.raises(InputError, match=f"no drafter 'trigram'; name one of {', '.join(DRAFTERS)}$"):
        make_drafter("trigram", prefix_pair(says([2]), says([2])), GREEDY, TokenSource(0))


def test_tables_are_counted_once_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=TEXTS)
    other = dataclasses.replace(pair, calibration=[[7, END]])
    first = look_ups.tables_of(pair)
    monkeypatch.setattr(look_ups, "count_ngrams", None)
    drafter = make_drafter("bigram", pair, GREEDY, TokenSource(0))
    assert isinstance(drafter, TableDrafter)
    assert drafter.tables is first
    monkeypatch.undo()
    assert look_ups.tables_of(other).unigram.tolist() != first.unigram.tolist()


def started_copy(source: list[int], sampling: SamplingSettings = GREEDY) -> CopyDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = CopyDrafter(target, sampling)
    drafter.start(target.encode([source]), [source])
    return drafter


COPIES = [
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 3, [7, 8, 9], id="a span of the source"),
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 2, [7, 8], id="the window cuts it"),
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 5, [7, 8, 9], id="the source's end cuts it"),
    pytest.param([5, 6, 7, END], [4], 3, [], id="no match"),
    pytest.param([5, 6, 7, END], [], 3, [], id="nothing to match yet"),
    pytest.param([2, 3, 4, 9, 5, 4, 8, END], [7, 3, 4], 4, [9, 5, 4, 8], id="the longest match, not the last"),
    pytest.param([2, 3, 4, 5, 6, 3, 4, 5, 7, END], [2, 3, 4, 5], 4, [7], id="three tokens are compared and no more"),
    pytest.param([4, 9, 4, 8, END], [4], 3, [8], id="of equally long ones the last"),
    pytest.param([4, 9, END], [4, 8, 4], 5, [8, 4], id="the text itself is nearer than the source"),
    pytest.param([5, 6, END], [6], 3, [], id="the end token is not copied"),
    pytest.param([6, 2, 6, END], [6], 3, [2, 6], id="a match with no text behind it is none"),
    pytest.param([5, 6, 7, 9, 6, 8, 5], [6], 2, [8, 5], id="no match over the border of source and text"),
    pytest.param([4, 7, END, 8, 9], [4], 3, [7], id="no copy over a special token"),
    pytest.param([9, END, 4, 7, 3, 4, 8, 9, END, 4, 6], [9, 4], 2, [6], id="no match over a special token"),
    pytest.param([4, 7, 30, 8], [4], 3, [7], id="no token that the target does not know"),
]


@pytest.mark.parametrize(("source", "text", "budget", "proposed"), COPIES)
def test_what_is_copied(source: list[int], text: list[int], budget: int, proposed: list[int]) -> None:
    draft = started_copy(source).draft([[START, *text]], [0], [budget], DraftRule(budget))
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [False], [0])
    if proposed:
        assert draft.q.scores[0].argmax(-1).tolist() == proposed
        assert draft.q.scores[0].amax(-1).tolist() == [1.0] * len(proposed)


def test_no_copy_is_a_confidence_of_zero() -> None:
    """With a threshold, a draft that ends early counts as a fallback; certainty does not exceed a threshold of 1."""
    drafter, rows = started_copy([5, 6, 7, END]), [[START, 5]]
    for threshold, budget, proposed, fallback in ((0.5, 2, [6, 7], False), (0.5, 3, [6, 7], True), (1.0, 2, [], True)):
        draft = drafter.draft(rows, [0], [budget], DraftRule(budget, fallback_threshold=threshold))
        assert (draft.tokens, draft.fallback) == ([proposed], [fallback])
    assert drafter.draft(rows, [0], [0], DraftRule(3, fallback_threshold=0.5)).fallback == [False]


def test_rows_copy_from_their_own_source() -> None:
    target = PrefixDecoder(says([2]))
    drafter, sources = CopyDrafter(target, GREEDY), [[3, 4, 5, 6, END], [3, 6, END], [3, END]]
    drafter.start(target.encode(sources), sources)
    draft = drafter.draft([[START, 3]] * 3, [0, 1, 2], [3] * 3, DraftRule(3))
    assert draft.tokens == [[4, 5, 6], [6], []]
    assert draft.q.logits.shape == (3, 3, 8)
    drafter.reorder([2, 0])
    assert drafter.draft([[START, 3]] * 2, [2, 0], [3, 2], DraftRule(3)).tokens == [[], [4, 5]]


def test_a_row_that_begins_with_its_source_is_one_text() -> None:
    """Rows of a decoder-only model begin with their source."""
    draft = started_copy([5, 6, 7, 8]).draft([[5, 6, 7, 8, 6]], [0], [5], DraftRule(5))
    assert draft.tokens == [[7, 8, 6]]


def test_what_follows_a_whole_draft() -> None:
    """The next token of the copy if there is one, otherwise a uniform distribution over ordinary tokens."""
    target = PrefixDecoder(says([2]))
    drafter, sources = CopyDrafter(target, GREEDY), [[3, 4, 5, END], [6, END]]
    drafter.start(target.encode(sources), sources)
    block = drafter.predict_next([[START, 3, 4], [START, 6]], [0, 1])
    assert block.scores[:, 0].tolist() == [[0, 0, 0, 0, 0, 1, 0, 0], pytest.approx([0, 0] + [1 / 6] * 6)]
    assert drafter.predict_next([[START, 3, 4], [START, 6]], [1]).scores[:, 0].tolist() == [pytest.approx([0, 0] + [1 / 6] * 6)]


def test_random_tokens_are_ordinary_and_evenly_spread() -> None:
    target, rows = PrefixDecoder(says([2], vocabulary=12)), 3000
    drafter = RandomDrafter(target, GREEDY, TokenSource(0))
    draft = drafter.draft([[START, 5]] * rows, range(rows), [4] * rows, DraftRule(4))
    drawn = Counter(token for tokens in draft.tokens for token in tokens)
    assert set(drawn) == set(range(2, 12))
    assert stats.chisquare(list(drawn.values())).pvalue > FALSE_ALARM
    assert draft.q.scores[7].argmax(-1).tolist() == draft.tokens[7]
    assert draft.steps == [0] * rows


def test_special_tokens_anywhere_are_left_out() -> None:
    class Odd(PrefixDecoder):
        specials = frozenset((0, 3, 4, 7))

    drafter = RandomDrafter(Odd(says([2])), GREEDY, TokenSource(0))
    draft = drafter.draft([[0]], [0], [200], DraftRule(200))
    assert set(draft.tokens[0]) == {1, 2, 5, 6}
