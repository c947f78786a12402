"""The suffix trees of earlier outputs and of the text itself, and what is drafted from them, by hand."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters import look_ups, make_drafter
from tasks.decoding.drafters.base import DraftRule
from tasks.decoding.drafters.look_ups import BREAK, SuffixDrafter, SuffixNode, matches, outputs_tree, own_matches
from tasks.decoding.method import SamplingSettings
from tasks.errors import InputError
from tests.toys import END, START, PrefixDecoder, prefix_pair, says

SPECIALS, ENDS = frozenset((START, END)), frozenset((END,))
TEXTS = [[2, 3, 4, 5, END], [2, 3, 4, 6, END], [7, 3, 4, 6, 8, END], [9, 3, 5, END]]
"""After 3 come 4 three times and 5 once; after 3 4 come 6 twice and 5 once; after 2 3 4 come 5 and then 6, once each."""


def started(source: list[int], texts: list[list[int]] = TEXTS) -> SuffixDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = SuffixDrafter(outputs_tree(texts, 12, SPECIALS, ENDS), target, SamplingSettings())
    drafter.start(target.encode([source]), [source])
    return drafter


@pytest.mark.parametrize(
    ("source", "text", "budget", "proposed"),
    [
        pytest.param([], [11, 3], 1, [4], id="the most frequent continuation"),
        pytest.param([], [11, 3], 8, [4, 6], id="at most α tokens for each token of the match"),
        pytest.param([], [11, 3, 4], 8, [6, 8, END], id="nothing after the end token"),
        pytest.param([], [2, 3, 4], 1, [6], id="of equally likely continuations the later output's"),
        pytest.param([], [], 8, [2, 3], id="an output begins like most of them"),
        pytest.param([], [9], 8, [3, 5, END], id="the beginning belongs to the match"),
        pytest.param([], [11], 8, [], id="no match"),
        pytest.param([11, 3, 10, END], [11, 3], 1, [10], id="the source, where it is surer than earlier outputs"),
        pytest.param([10, 11, 3, END], [11], 8, [3], id="up to the end of the source, which is not copied"),
        pytest.param([], [10, 11, 10], 8, [11, 10], id="the text itself, up to its last token"),
        pytest.param([10, 11, 9, 10, 11, 8, END], [10, 11], 1, [8], id="of equally frequent ones the latest"),
        pytest.param([10, 11, 8, 10, 11, 8, 11, 9, END], [11], 1, [8], id="the most frequent, not the latest"),
        pytest.param([5, 6, 10, 11], [], 4, [2, 3], id="no match over the border of source and text"),
        pytest.param([10, 30, 11], [10], 4, [], id="no token that the target does not know"),
    ],
)
def test_what_is_proposed(source: list[int], text: list[int], budget: int, proposed: list[int]) -> None:
    draft = started(source).draft([[START, *text]], [0], [budget], DraftRule(budget))
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [False], [0])
    if proposed:
        assert draft.q.scores[0].argmax(-1).tolist() == proposed


def test_a_row_that_begins_with_its_source_is_one_text_whose_output_has_a_beginning() -> None:
    drafter = started([10, 11, 10])
    assert drafter.propose(0, [10, 11, 10], 0, 4) == [11, 10], "the prompt itself, which is surer than how outputs begin"
    assert drafter.propose(0, [10, 11, 10, 9], 0, 4) == [3, 5, END]


def test_the_expected_number_of_accepted_tokens_decides() -> None:
    """After 3 the sum of D(N) is ¾ + ¾ · ⅔ = 1.25; after 2 3, over twice as many tokens, 1 + ½ + ½ = 2."""
    drafter = started([], [[2, 3, 4, 5, END], [2, 3, 4, 6, END], [7, 3, 4, 6, 8, END], [9, 3, 5, END]])
    for context, budget, expected in (([3], 2, 1.25), ([2, 3], 3, 2.0), ([4, 6], 1, 0.5)):
        *_, node = matches(drafter.outputs, context)
        drafted, score = drafter._follow(node, budget)
        assert len(drafted) == budget
        assert score == pytest.approx(expected)


def test_a_match_is_as_long_as_it_occurs_and_ends_at_a_break() -> None:
    tree = outputs_tree(TEXTS, 12, SPECIALS, ENDS)
    assert len(list(matches(tree, [11, 2, 3, 4]))) == 3
    assert len(list(matches(tree, [6, BREAK, 2, 3]))) == 3, "with the beginning, and nothing before it"
    assert len(list(own_matches([4, BREAK, 5, 6, 4, BREAK, 5, 6]))) == 2, "the text's own matches end before a break"


def test_a_match_has_at_most_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    context = [2, 3] * 20
    tree = outputs_tree([[*context, END]], 12, SPECIALS, ENDS)
    assert len(list(matches(tree, context))) == len(list(own_matches(context))) == 16
    monkeypatch.setattr(look_ups, "_LONGEST_SUFFIX_MATCH", 3)
    assert len(list(matches(tree, context))) == len(list(own_matches(context))) == 3


def test_both_ways_to_the_nodes_of_a_text_agree_with_counting() -> None:
    """On random texts, against all occurrences, one by one."""
    rng = random.Random(5)
    seen = 0
    for _ in range(300):
        text = [rng.choice((2, 3, 4, BREAK)) for _ in range(rng.randint(1, 60))]
        for found in (matches(SuffixNode(text, range(len(text))), text), own_matches(text)):
            for length, node in enumerate(found, start=1):
                behind = [
                    (text[end], end + 1)
                    for end in range(length, len(text))
                    if text[end - length : end] == text[-length:] and text[end] != BREAK
                ]
                if not behind:
                    assert node.top() is None
                    continue
                counts = {token: [end for one, end in behind if one == token] for token, _ in behind}
                best = max(counts, key=lambda token: (len(counts[token]), counts[token][-1]))
                child = node.top()
                assert child is not None
                assert child[1] == best
                assert child[2] == pytest.approx(len(counts[best]) / len(behind))
                seen += length > 1
    assert seen > 300


def test_no_match_goes_from_one_output_into_another() -> None:
    assert started([], [[10, 3, END], [4, 3, 6, END]]).propose(0, [START, 3, END, 4], 0, 1) == [3]
    drafter = started([], [[10, 3], [4, 5, END]])
    assert drafter.propose(0, [START, 10], 0, 4) == [3], "an output that was cut off has no continuation"


def test_what_follows_a_whole_draft() -> None:
    """The next token of the tree if there is one, otherwise a uniform distribution over ordinary tokens."""
    block = started([]).predict_next([[START, 9, 3]], [0])
    assert block.scores[0, 0].argmax() == 5
    assert block.scores[0, 0].max() == 1
    assert started([]).predict_next([[START, 11]], [0]).scores[0, 0].tolist() == pytest.approx([0, 0] + [0.1] * 10)


def test_rows_have_their_own_source() -> None:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter, sources = started([]), [[10, 4, END], [10, 5, 6, END], [10, 7, END]]
    drafter.start(target.encode(sources), sources)
    assert drafter.draft([[START, 10]] * 3, [0, 1, 2], [2] * 3, DraftRule(2)).tokens == [[4], [5, 6], [7]]
    drafter.reorder([2, 1])
    assert drafter.draft([[START, 10]] * 2, [2, 1], [2] * 2, DraftRule(2)).tokens == [[7], [5, 6]]


def test_the_tree_is_of_the_pair_and_made_once() -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=[[2, 3, END]])
    first, second = (make_drafter("suffix", pair, SamplingSettings(), TokenSource(0)) for _ in range(2))
    assert isinstance(first, SuffixDrafter)
    assert isinstance(second, SuffixDrafter)
    assert first.outputs is second.outputs
    with pytest.raises(InputError, match="a token 9, outside the large model's vocabulary of 8"):
        make_drafter("suffix", dataclasses.replace(pair, calibration=[[2, 9, END]]), SamplingSettings(), TokenSource(0))
