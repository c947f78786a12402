"""Counts from the calls of the large model, on hand-made texts."""

from __future__ import annotations

import pytest

from tasks.verify.counting import count_calls, count_drafts

END = 1
PROMPT = [7, 8]


@pytest.mark.parametrize(
    ("calls", "tokens", "kept"),
    [
        pytest.param([[7, 8, 3, 4], [5, 6, 9]], [3, 4, 5, 6, 9, 10], {(2, 2): 2}, id="all kept, a token of the target follows"),
        pytest.param([[7, 8, 3, 4], [5, 6, 9]], [3, 5, 2], {(2, 1): 1, (2, 0): 1}, id="the second is replaced, then the first"),
        pytest.param([[7, 8, 3, END]], [3, END], {(2, 2): 1}, id="an end token inside of the draft is kept"),
        pytest.param([[7, 8, 3, 4]], [3, END], {(2, 1): 1}, id="the target ends the text in place of a drafted token"),
        pytest.param([[7, 8, 3, END]], [4], {(2, 0): 1}, id="a drafted end token is replaced, and the text reaches its limit"),
        pytest.param([[7, 8, 3], [4]], [3, 4, END], {(1, 1): 1}, id="nothing is drafted before the last token"),
        pytest.param([[7, 8], [5, 3]], [5, 3, 4], {(1, 1): 1}, id="nothing is drafted at first"),
    ],
)
def test_drafts_are_counted_by_what_stayed(calls: list[list[int]], tokens: list[int], kept: dict[tuple[int, int], int]) -> None:
    counts = count_drafts(calls, len(PROMPT), tokens)
    assert dict(counts.kept) == kept
    assert counts.drafted == sum(drafted * number for (drafted, _), number in kept.items())
    assert counts.accepted == sum(accepted * number for (_, accepted), number in kept.items())
    assert counts.rollbacks == sum(number for (drafted, accepted), number in kept.items() if accepted < drafted)
    assert counts.large_calls == len(calls)
    assert counts.tokens == len(tokens)


@pytest.mark.parametrize(
    ("calls", "tokens"),
    [
        pytest.param([[7, 8, 3, 4], [6, 9]], [3, 4, 5, 9], id="a call begins with another token than the last final one"),
        pytest.param([[7, 8, 3, 4]], [3, 4, 5, 6], id="the calls end before the text"),
        pytest.param([[7, 8, 3, END], [END, 4]], [3, END], id="a call follows the end of the text"),
        pytest.param([], [3], id="there is no call"),
    ],
)
def test_calls_of_another_text_are_refused(calls: list[list[int]], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="call"):
        count_drafts(calls, len(PROMPT), tokens)


def test_calls_are_counted_by_what_each_wrote() -> None:
    counts = count_calls([1, 3, 1], [3, 4, 5, 6, END])
    assert (counts.tokens, counts.large_calls) == (5, 3)


@pytest.mark.parametrize("written", [[1, 3], [1, 3, 2], [1, 3, 0, 1], []])
def test_calls_that_did_not_write_the_text_are_refused(written: list[int]) -> None:
    with pytest.raises(ValueError, match="calls account for"):
        count_calls(written, [3, 4, 5, 6, END])
