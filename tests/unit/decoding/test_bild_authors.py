"""The mode `bild_authors` equals the authors' code of BiLD, described as the state machine that it is, without caches."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch

from tasks.decoding.generation import Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import Request
from tasks.decoding.methods.bild import BildAuthorsSettings, BildSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.replay import replay_pair
from tasks.decoding.runtimes.choose import open_decoders
from tests.architectures import models
from tests.executors import same_in_the_kernel
from tests.toys import END, START, Predict, Prefix, prefix_pair, random_table, toy_sources

Summary = tuple[list[int], str, int, int, int, int]
"""Tokens, proposers, runs of the small model, calls of the large one, fallbacks, rollbacks."""


def authors_code(
    small: Predict, large: Predict, source: Prefix, settings: BildAuthorsSettings, limit: int, seen: Counter[str]
) -> Summary:
    """One model writes at a time. Only a run that is not rolled back ends with the stop test and hands over."""
    text, who, writer = [START], "-", "large"
    stored, drafted, steps, calls, fallbacks, rollbacks = 1, 0, 0, 0, 0, 0
    while True:
        if writer == "small":
            q = torch.softmax(small(source, tuple(text)), -1)
            steps += 1
            if float(q.max()) < settings.fallback_threshold:
                writer, fallbacks = "large", fallbacks + 1
                continue
            text, who, drafted = [*text, int(q.argmax())], who + "s", drafted + 1
            writer = "large" if drafted == settings.max_draft else "small"
        else:
            calls += 1
            # Tokens that it has stored end before `stored`: those of a run that was rolled back are not among them.
            p = {at: torch.softmax(large(source, tuple(text[:at])), -1) for at in range(stored, len(text) + 1)}
            distance = {at: -math.log(max(float(p[at][text[at]]), 1e-45)) for at in range(stored, len(text))}
            far = [at for at in distance if distance[at] > settings.rollback_threshold]
            if far:
                first = far[0]
                best = int(p[first].argmax())
                seen["agreed, later disagree"] += best == text[first] and any(int(p[at].argmax()) != text[at] for at in far)
                if best != text[first]:
                    seen["first drafted token"] += first == stored
                    seen["end token"] += best == END
                    text, who, rollbacks = [*text[:first], best], who[:first] + "c", rollbacks + 1
                    continue  # without the stop test, and the large model writes again
            seen["max_draft"] += drafted == settings.max_draft
            text, who = [*text, int(p[len(text)].argmax())], who + "l"
            stored, drafted, writer = len(text), 0, "small"
        if text[-1] == END or len(text) - 1 >= limit:
            seen[f"ended by {who[-1]}" if text[-1] == END else f"cut at {who[-1]}"] += 1
            return text[1:], who[1:], steps, calls, fallbacks, rollbacks


def summary(one: Generation) -> Summary:
    counts = one.counts
    return one.tokens, one.proposers, counts.small_steps, counts.large_calls, counts.fallbacks, counts.rollbacks


THRESHOLDS = [(0.0, 0.5), (0.0, math.inf), (0.3, 0.0), (0.3, 1.0), (0.3, 2.0), (0.45, 4.0), (0.6, 0.5), (0.8, 1.0), (1.0, 0.0)]


def settings_of(fallback: float, rollback: float, max_draft: int) -> BildAuthorsSettings:
    return BildAuthorsSettings(fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft)


@pytest.mark.parametrize("max_draft", [1, 3, 10])
def test_it_is_the_authors_code_on_random_tables(max_draft: int) -> None:
    """In the general loop and replayed: 756 texts for each window."""
    small, large = (random_table(name, agreement=0.7, sharpness=3.0, end=0.3) for name in ("small", "large"))
    sources, seen, pair = toy_sources(28, seed=max_draft), Counter[str](), prefix_pair(small, large)
    cached = replay_pair(pair, PredictionCache(pair))
    for limit in (1, 2, 12):
        for settings in (settings_of(*thresholds, max_draft) for thresholds in THRESHOLDS):
            wanted = [authors_code(small, large, tuple(one), settings, limit, seen) for one in sources]
            found, replayed = (decode("bild_authors", settings, one, sources, Request(limit)) for one in (pair, cached))
            assert [summary(one) for one in found] == wanted
            assert replayed == found
    events = ["first drafted token", "end token", "max_draft", "ended by s", "ended by l", "cut at s", "cut at l"]
    assert min(seen[event] for event in events + ["agreed, later disagree"] * (max_draft > 1)) >= 3
    assert seen["cut at c"] == seen["ended by c"] == 0


def test_the_native_loop_equals_the_general_loop() -> None:
    """Each token that the large model corrects to ends its texts in turn, so that rollbacks to an end token are frequent."""
    pair, sources = open_decoders(*models("t5")), toy_sources(12, seed=7)

    def decoded(settings: BildAuthorsSettings, limit: int) -> list[Generation]:
        method = METHODS["bild_authors"].make(settings, pair, Request(limit))
        assert isinstance(method, SpeculativeLoop)
        return same_in_the_kernel(method, sources, limit)

    def corrections(texts: list[Generation]) -> Counter[int]:
        return Counter(token for one in texts for token, who in zip(one.tokens, one.proposers, strict=True) if who == "c")

    usual = corrections(decoded(settings_of(0.0, 0.7, 3), 14))
    before, ended = pair.large.end_tokens, 0
    for token in sorted(usual):
        pair.large.end_tokens = before | {token}
        ended += corrections(decoded(settings_of(0.0, 0.7, 3), 14))[token]
    assert ended > 5
    pair.large.end_tokens = before
    for settings, limit in itertools.product((settings_of(0.0, 0.7, 3), settings_of(0.4, 0.1, 4)), (1, 2, 14)):
        decoded(settings, limit)


def test_it_falls_back_under_the_threshold_and_algorithm_1_at_it() -> None:
    def flat(source: Prefix, prefix: Prefix) -> torch.Tensor:
        return torch.zeros(8)

    def proposers(method: str, settings: Any) -> str:
        return decode(method, settings, prefix_pair(flat, flat), [[5, END]], Request(4))[0].proposers

    ours: dict[str, Any] = {"fallback_threshold": 0.125, "rollback_threshold": math.inf}
    assert proposers("bild_authors", BildAuthorsSettings(**ours)) == "lsss"
    assert proposers("bild", BildSettings(**ours)) == "llll"
