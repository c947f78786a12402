"""Given texts: scored from one run of each model, and decoded by the loop token by token, with equal results."""

import math
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Rows
from tasks.decoding.given_text import UNTRUNCATED, GivenText, predict_along, score, without_end_tokens
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import TokenCascadeSettings
from tasks.decoding.registry import METHODS
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.turn import LoopParts
from tests.toys import END, prefix_pair, random_table, says, toy_sources, toy_t5

SMALL, LARGE = (random_table(name, agreement=0.7, sharpness=2.0) for name in ("small", "large"))
METHODS_OF_TEXTS: list[tuple[str, Any]] = [
    ("vanilla_large", VanillaSettings()),
    *(
        ("bild", BildSettings(fallback_threshold=fallback, rollback_threshold=math.inf, max_draft=most))
        for fallback in (0.0, 0.35, 0.5, 1.0)
        for most in (1, 3, 10)
    ),
    *(
        ("token_cascade", TokenCascadeSettings(rule=rule, deferral_cost=cost, max_draft=4))
        for rule, cost in (("chow", 0.4), ("chow", 0.7), ("chow_log", 1.2))
    ),
]


def texts_of(count: int, vocabulary: int) -> Rows:
    """Texts of several lengths with end tokens inside."""
    return [[token % vocabulary for token in (*row, *row[:3])] for row in toy_sources(count, seed=3)]


def check_equal(pair: Pair, sources: Rows, texts: Rows, method: str, settings: Any) -> int:
    """Compare both ways on every text; return how many tokens the small model scored."""
    endless, given, small = without_end_tokens(pair), GivenText(texts), 0
    parts = METHODS[method].make(settings, endless, Request(99, UNTRUNCATED, draws=given))
    assert isinstance(parts, LoopParts)
    for example, (source, text) in enumerate(zip(sources, texts, strict=True)):
        [decoded] = parts.run([source], [example], len(text))
        scored = score(parts, predict_along(endless, source, text), example)
        assert scored.tokens == decoded.tokens == text
        assert scored.proposers == decoded.proposers
        assert scored.counts == decoded.counts
        assert scored.log_probabilities == pytest.approx(given.log_probabilities(example), abs=1e-5)
        small += scored.proposers.count("s")
    return small


@pytest.mark.parametrize(("method", "settings"), METHODS_OF_TEXTS, ids=str)
def test_scoring_equals_decoding_on_random_tables(method: str, settings: Any) -> None:
    sources, texts = toy_sources(12), texts_of(12, 8)
    assert any(END in text[:-1] for text in texts)
    small = check_equal(prefix_pair(SMALL, LARGE), sources, texts, method, settings)
    total = sum(map(len, texts))
    never = method == "vanilla_large" or getattr(settings, "fallback_threshold", 0) == 1
    assert (small == 0) == never
    assert small < total or getattr(settings, "fallback_threshold", 1) == 0


def test_scoring_equals_decoding_with_caches() -> None:
    pair = Pair(TransformersDecoder(toy_t5(1, 2, 1), "small"), TransformersDecoder(toy_t5(2, 1, 3), "large"))
    settings = BildSettings(fallback_threshold=0.5, rollback_threshold=math.inf, max_draft=4)
    small = check_equal(pair, toy_sources(6), texts_of(6, 24), "bild", settings)
    assert 0 < small < sum(map(len, texts_of(6, 24)))
    assert pair.large.end_token == END


def test_predictions_along_a_text_by_hand() -> None:
    """Unsure at the first position: its softmax is e^0.5 / (e^0.5 + 7); at the second nearly certain of 3, and 4 is given."""
    pair = prefix_pair(says([2, 3], unsure=[0]), says([5, 4]))
    known = predict_along(pair, [6, END], [2, 4])
    top = math.exp(0.5) / (math.exp(0.5) + 7)
    assert known.confidence == pytest.approx([top, 1.0], abs=1e-5)
    assert known.entropy[0] == pytest.approx(-top * math.log(top) - (1 - top) * math.log((1 - top) / 7), abs=1e-5)
    assert known.log_q == pytest.approx([math.log(top), -20.0], abs=1e-4)
    assert known.log_p == pytest.approx([-20.0, 0.0], abs=1e-4)


def test_a_window_that_is_full_gives_a_token_to_the_large_model() -> None:
    """Always sure, at most two tokens in a row: small, small, large, small, small, large, small."""
    pair = without_end_tokens(prefix_pair(says([2, 3, 4, 5, 6, 7, 2]), says([7] * 7)))
    settings = BildSettings(fallback_threshold=0.5, rollback_threshold=math.inf, max_draft=2)
    parts = METHODS["bild"].make(settings, pair, Request(99, UNTRUNCATED))
    assert isinstance(parts, LoopParts)
    found = score(parts, predict_along(pair, [5, END], [2, 3, 4, 5, 6, 7, 2]), 0)
    assert found.proposers == "sslssls"
    assert (found.counts.large_calls, found.counts.small_steps, found.counts.fallbacks) == (2, 5, 0)
    # The large model expects 7 everywhere: it is right at the sixth token alone.
    assert found.log_probabilities == pytest.approx([0, 0, -20, 0, 0, 0, 0], abs=1e-4)


def test_a_token_that_is_nearly_impossible_keeps_a_finite_log_probability() -> None:
    def far(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([0.0, 0.0, 300.0])

    known = predict_along(prefix_pair(far, far), [2, END], [1])
    assert known.log_p == known.log_q == pytest.approx([-300.0])
