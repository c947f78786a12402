"""Theory of speculative decoding, and draft windows that adapt to acceptance or end at low confidence."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.decoder import Rows, Step
from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.generation import Counts
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods import speculative
from tasks.decoding.registry import METHODS, decode
from tests.emission import repeatable
from tests.toys import END, Predict, PrefixDecoder, prefix_pair, says

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


@pytest.mark.parametrize(
    ("accepted", "rollbacks", "cost_ratio", "window"),
    [
        (0, 0, 0.1, 2),
        (0, 1, 0.1, 1),
        # 3/4: 1.75/1.1, 2.3125/1.2, 2.734/1.3, 3.051/1.4, 3.288/1.5: 1.591, 1.927, 2.103, 2.179, 2.192, then 2.166.
        (2, 0, 0.1, 5),
        (50, 0, 5.0, 1),
        (5000, 0, 0.01, 10),
    ],
)
def test_the_window_by_hand(accepted: int, rollbacks: int, cost_ratio: float, window: int) -> None:
    counts = Counts(tokens=7, drafted=300, accepted=accepted, rollbacks=rollbacks)
    assert speculative.adaptive_window(counts, cost_ratio, 10) == window


@pytest.mark.parametrize(
    ("small", "proposers", "verified", "drafted"),
    [
        # Windows 2 and 5, fully accepted; then 8/9 would give 9, but the limit leaves 2.
        (TEXT, "sslssssslssl", {3: 2, 6: 1}, 9),
        # Window 2; nothing accepted, window 1; and so on to the last token, for which nothing is drafted.
        ([3] + [2, 2, 3, 4, 5, 6, 7] * 2, "c" * 11 + "l", {3: 1, 2: 10, 1: 1}, 12),
    ],
    ids=["always accepted", "never accepted"],
)
def test_windows_adapt_to_the_text_so_far(small: list[int], proposers: str, verified: dict[int, int], drafted: int) -> None:
    pair = prefix_pair(says(small), says(TEXT))
    [generation] = decode("speculative_adaptive", speculative.AdaptiveSettings(cost_ratio=0.1), pair, [[5, END]], Request(12))
    assert generation.tokens == TEXT
    assert generation.proposers == proposers
    assert generation.counts.verified == Counter(verified)
    assert generation.counts.drafted == drafted


UNSURE = [
    # The product falls below 0.4 at the first unsure token, below 0.1 at the second, to 0.036, and never below 0.03.
    *(
        ("speculative_confident", speculative.ConfidentSettings(max_draft=5, stop_below=stop_below), windows)
        for stop_below, windows in ((0.4, [3, 5, 1]), (0.1, [4, 5, 0]), (0.03, [5, 5]), (0.99, [3, 5, 1]))
    ),
    *(
        ("speculative_entropy", speculative.EntropySettings(max_draft=5, min_acceptance=0.4, entropy_factor=factor), windows)
        for factor, windows in ((0.2, [3, 5, 1]), (0.01, [5, 5]))
    ),
]


@pytest.mark.parametrize(("method", "settings", "windows"), UNSURE)
def test_a_window_ends_where_the_small_model_is_unsure(method: str, settings: Any, windows: list[int]) -> None:
    """The small model gives the third and fourth token probability 0.19, and is certain of all others."""
    pair = prefix_pair(says(TEXT, unsure=[2, 3]), says(TEXT))
    [generation] = decode(method, settings, pair, [[5, END]], Request(12))
    counts = generation.counts
    assert generation.tokens == TEXT
    assert generation.proposers == "".join("s" * window + "l" for window in windows)
    assert counts.verified == Counter(window + 1 for window in windows)
    assert counts.kept == Counter((window, window) for window in windows if window)
    assert counts.small_steps == counts.drafted == counts.accepted == sum(windows)


@pytest.mark.parametrize(("min_acceptance", "entropy_factor", "entropy"), [(0.4, 0.2, 1.8), (0.0, 0.2, 5.0), (0.5, 1.0, 0.25)])
def test_the_largest_entropy_has_the_smallest_bound(min_acceptance: float, entropy_factor: float, entropy: float) -> None:
    assert speculative.largest_entropy(min_acceptance, entropy_factor) == pytest.approx(entropy)
    assert 1 - math.sqrt(entropy_factor * entropy) == pytest.approx(min_acceptance)


class Slow(PrefixDecoder):
    """Takes `seconds` for a run, ten times that for the first run of a text, and 1000 s to encode."""

    def __init__(self, predict: Predict, clock: SimpleNamespace, seconds: float) -> None:
        super().__init__(predict)
        self.clock, self.seconds = clock, seconds

    def encode(self, sources: Rows) -> Any:
        self.clock.now += 1000
        return super().encode(sources)

    def forward(self, tokens: Rows) -> Step:
        self.clock.now += self.seconds * (1 if self.runs else 10)
        return super().forward(tokens)


def test_the_cost_ratio_is_that_of_single_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(speculative, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    small, large = Slow(says(TEXT), clock, 2.0), Slow(says(TEXT), clock, 8.0)
    drafter = ModelDrafter(small, SamplingSettings(), TokenSource(0))
    assert speculative.measured_cost_ratio(large, drafter, [5, END], 20) == 0.25
    # One token a run, and no further than the limit lets the text grow.
    assert small.runs == large.runs == [[1]] * 6
    speculative.measured_cost_ratio(large, drafter, [5, END], 3)
    assert small.runs == large.runs == [[1]] * 3
    assert speculative.measured_cost_ratio(large, drafter, [5, END], 1) == 0.25


def test_a_pair_is_timed_once_for_each_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = MagicMock(return_value=0.1)
    monkeypatch.setattr(speculative, "measured_cost_ratio", measure)
    pair = prefix_pair(says(TEXT), says(TEXT))
    for seed in range(3):
        decode("speculative_adaptive", speculative.AdaptiveSettings(), pair, [[5, END]], Request(12, seed=seed))
    assert measure.call_count == 1
    decode("speculative_adaptive", speculative.AdaptiveSettings(drafter="random"), pair, [[5, END]], Request(8))
    assert measure.call_count == 2
    assert pair.cost_ratios == {"small": 0.1, "random": 0.1}
    decode("speculative_adaptive", speculative.AdaptiveSettings(cost_ratio=0.0), pair, [[5, END]], Request(12))
    assert [call.args[3] for call in measure.call_args_list] == [12, 8]
    other = prefix_pair(says(TEXT), says(TEXT))
    method = METHODS["speculative_adaptive"].make(speculative.AdaptiveSettings(), other, Request(8))
    assert isinstance(method, speculative.SelfTimedMethod)
    assert other.cost_ratios == {}
