"""Theory of speculative decoding, and drafts that end at low confidence."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.method import Request
from tasks.decoding.methods import speculative
from tasks.decoding.registry import decode
from tests.emission import repeatable
from tests.toys import END, prefix_pair, says

TEXT = [2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7]


@given(acceptance_rate=st.floats(0, 0.999), draft_length=st.integers(0, 40), ratio=st.floats(0, 2))
@repeatable
def test_the_sums_equal_the_closed_forms(acceptance_rate: float, draft_length: int, ratio: float) -> None:
    tokens = (1 - acceptance_rate ** (draft_length + 1)) / (1 - acceptance_rate)
    assert speculative.expected_tokens(acceptance_rate, draft_length) == pytest.approx(tokens)
    steps = draft_length * ratio + 1
    assert speculative.expected_speedup(acceptance_rate, draft_length, ratio) == pytest.approx(tokens / steps)
    operations = (1 - acceptance_rate) * (draft_length * ratio + draft_length + 1) / (1 - acceptance_rate ** (draft_length + 1))
    assert speculative.expected_operations(acceptance_rate, draft_length, ratio) == pytest.approx(operations)


@pytest.mark.parametrize(
    ("acceptance_rate", "cost_ratio", "longest", "best"),
    [
        # Gains of 1.364, 1.458, 1.442.
        (0.5, 0.1, 10, 2),
        (0.5, 0.1, 1, 1),
        (0.8, 0.0, 6, 6),
        (0.0, 0.0, 6, 0),
        (1.0, 1.0, 9, 0),
        # No gain: 1.1 tokens in the time of 1.2.
        (0.1, 0.2, 9, 0),
        (0.2, 0.1, 9, 1),
        (0.9, math.inf, 9, 0),
    ],
)
def test_best_draft_length_by_hand(acceptance_rate: float, cost_ratio: float, longest: int, best: int) -> None:
    assert speculative.best_draft_length(acceptance_rate, cost_ratio, longest) == best


# The product falls below 0.4 at the first unsure token, below 0.1 at the second, to 0.036, and never below 0.03.
@pytest.mark.parametrize(("stop_below", "windows"), [(0.4, [3, 5, 1]), (0.1, [4, 5, 0]), (0.03, [5, 5]), (0.99, [3, 5, 1])])
def test_a_window_ends_where_the_small_model_is_unsure(stop_below: float, windows: list[int]) -> None:
    """The small model gives the third and fourth token probability 0.19, and is certain of all others."""
    settings = speculative.ConfidentSettings(max_draft=5, stop_below=stop_below)
    pair = prefix_pair(says(TEXT, unsure=[2, 3]), says(TEXT))
    [generation] = decode("speculative_confident", settings, pair, [[5, END]], Request(12))
    counts = generation.counts
    assert generation.tokens == TEXT
    assert generation.proposers == "".join("s" * window + "l" for window in windows)
    assert counts.verified == Counter(window + 1 for window in windows)
    assert counts.kept == Counter((window, window) for window in windows if window)
    assert counts.small_steps == counts.drafted == counts.accepted == sum(windows)
