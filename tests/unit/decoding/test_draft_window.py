"""One row's draft stops at a threshold, at the end of the window, and at an end token."""

from __future__ import annotations

import pytest

from tasks.decoding.drafters.base import DraftBuilder, DraftRule


@pytest.mark.parametrize(("confidence", "drafted"), [(0.49, []), (0.5, []), (0.51, [7])])
def test_a_token_is_drafted_only_above_the_fallback_threshold(confidence: float, drafted: list[int]) -> None:
    window = DraftBuilder(3, DraftRule(3, fallback_threshold=0.5), {1})
    window.add(7, confidence)
    assert (window.tokens, window.fallback, window.going, window.predictions) == (drafted, not drafted, bool(drafted), 1)


def test_a_draft_ends_after_the_token_that_takes_the_product_under_its_bound() -> None:
    window = DraftBuilder(5, DraftRule(5, stop_below=0.25), {1})
    for confidence, going in ((0.5, True), (0.5, True), (0.99, False)):
        window.add(7, confidence)
        assert window.going is going
    assert (window.tokens, window.fallback) == ([7, 7, 7], False)


def test_a_draft_ends_after_the_token_at_whose_position_the_entropy_is_above_its_bound() -> None:
    window = DraftBuilder(5, DraftRule(5, max_entropy=1.5), {1})
    for entropy, going in ((0.2, True), (1.5, True), (1.6, False)):
        window.add(7, 0.01, entropy)
        assert window.going is going
    assert (window.tokens, window.fallback) == ([7, 7, 7], False)


@pytest.mark.parametrize(("tokens", "budget"), [([7, 1], 5), ([7, 8], 2), ([], 0)])
def test_a_draft_ends_at_an_end_token_and_at_its_budget(tokens: list[int], budget: int) -> None:
    window = DraftBuilder(budget, DraftRule(5), {1})
    for token in tokens:
        assert window.going
        window.add(token, 0.9)
    assert not window.going
    assert (window.tokens, window.fallback) == (tokens, False)
