"""The compiled kernel replays what the replayer does, to the count, and only where all predictions are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding import replay
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, SpeculativeCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import KnownPredictions, PredictionCache
from tasks.decoding.registry import decode
from tasks.decoding.replay import replay_pair
from tasks.decoding.runtimes.compiled import library
from tests.architectures import pair_of
from tests.methods import NUMERIC
from tests.toys import prefix_pair, random_table, toy_sources

SOURCES = toy_sources(8)
KNOWN: list[tuple[str, Any]] = [
    *NUMERIC,
    *(("bild_oracle", BildOracleSettings(rollback_threshold=threshold)) for threshold in (0.0, 0.5, 1.5, math.inf)),
]
"""The native loop does not run the oracle, which adds no token to a draft of one; the kernel replays it."""
LIMITS = (1, 2, 3, 20)


def by_replayer(pair: Pair, source: list[int], limit: int, methods: list[tuple[str, Any]]) -> list[Any]:
    """Each method's generation of a source, in Python."""
    cache = PredictionCache(pair)
    cache.known = None
    return [decode(*method, replay_pair(pair, cache), [source], Request(limit))[0] for method in methods]


def with_kernel(cache: PredictionCache) -> PredictionCache:
    """A cache whose predictions the kernel reads, whatever the runtime."""
    functions = library()
    assert functions is not None
    cache.known = KnownPredictions(functions)
    return cache


@pytest.fixture
def replayed_in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limits of the texts that the replayer goes through itself."""
    limits: list[int] = []
    run = replay._Replayer.run

    def noted(self: Any) -> Any:
        limits.append(self.turns.limit)
        return run(self)

    monkeypatch.setattr(replay._Replayer, "run", noted)
    return limits


@pytest.mark.parametrize("limit", LIMITS)
def test_known_texts_are_replayed_by_the_kernel(limit: int, replayed_in_python: list[int]) -> None:
    pair = pair_of("t5")
    cache = PredictionCache(pair)
    replaying = replay_pair(pair, cache)
    for source in SOURCES:
        wanted = by_replayer(pair, source, limit, KNOWN)
        assert [decode(*method, replaying, [source], Request(limit))[0] for method in KNOWN] == wanted
        replayed_in_python.clear()
        assert [decode(*method, replaying, [source], Request(limit))[0] for method in KNOWN] == wanted
        assert not replayed_in_python


@pytest.mark.parametrize("agreement", [0.3, 0.7, 0.95])
def test_the_kernel_equals_the_replayer_on_random_models(agreement: float, replayed_in_python: list[int]) -> None:
    pair = prefix_pair(
        random_table("small", agreement=agreement, sharpness=2.0, end=0.1),
        random_table("large", agreement=agreement, sharpness=3.0, end=0.1),
    )
    cache = with_kernel(PredictionCache(pair))
    replaying = replay_pair(pair, cache)
    for source in toy_sources(12, seed=5):
        wanted = by_replayer(pair, source, 12, KNOWN)
        for _ in range(2):
            replayed_in_python.clear()
            assert [decode(*method, replaying, [source], Request(12))[0] for method in KNOWN] == wanted
        assert not replayed_in_python


def test_a_text_that_reaches_unknown_predictions_is_left_to_the_replayer(replayed_in_python: list[int]) -> None:
    pair = pair_of("t5")
    cache = PredictionCache(pair)
    replaying = replay_pair(pair, cache)
    for limit in (3, 3, 12, 12):
        decode("speculative", SpeculativeSettings(draft_length=2), replaying, SOURCES[:1], Request(limit))
    assert replayed_in_python[0] == 3
    assert replayed_in_python in ([3], [3, 12])
    decode("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=0.1), replaying, SOURCES[1:2], Request(5))
    assert replayed_in_python[-1] == 5


def test_saved_predictions_are_enough(tmp_path: Path, replayed_in_python: list[int]) -> None:
    pair = pair_of("t5")
    for _ in range(2):
        cache = PredictionCache(pair, tmp_path)
        cache.open_source(SOURCES[0], "first")
        replayed_in_python.clear()
        for method in KNOWN:
            decode(*method, replay_pair(pair, cache), SOURCES[:1], Request(14))
        cache.save("first")
    assert not replayed_in_python
    assert cache.runs == 0


def test_a_score_that_would_take_a_run_is_not_known_to_the_kernel(tmp_path: Path, replayed_in_python: list[int]) -> None:
    """The large model's score of the small one's token, where a file does not hold it."""
    pair = pair_of("t5")
    method = ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=0.5, max_draft=4))
    wanted = [by_replayer(pair, source, 14, [method])[0] for source in SOURCES]
    cache = PredictionCache(pair)
    forgotten = []
    for number, source in enumerate(SOURCES):
        decode(*method, replay_pair(pair, cache), [source], Request(14))
        statistics = [node.statistics for node, _ in cache.trie.nodes()]
        differ = [(large, small.argmax) for small, large in statistics if small and large and small.argmax != large.argmax]
        for large, token in differ:
            del large.token_scores[token]
        forgotten += [number] * bool(differ)
        cache.trie.save(tmp_path / f"{number}.json")
    assert forgotten
    again = PredictionCache(pair, tmp_path)
    replayed_in_python.clear()
    for number, source in enumerate(SOURCES):
        again.open_source(source, str(number))
        assert decode(*method, replay_pair(pair, again), [source], Request(14)) == [wanted[number]]
    assert replayed_in_python == [14] * len(forgotten)


def test_many_prefixes_fit() -> None:
    """More nodes than there is room for at first."""
    pair = prefix_pair(
        random_table("small", agreement=0.3, sharpness=1.0, vocabulary=40),
        random_table("large", agreement=0.3, sharpness=1.0, vocabulary=40),
    )
    methods: list[tuple[str, Any]] = [
        ("speculative_cascade", SpeculativeCascadeSettings(rule="token_v3", deferral_cost=cost / 40, draft_length=4))
        for cost in range(41)
    ]
    cache = with_kernel(PredictionCache(pair))
    [source] = toy_sources(1)
    for _ in range(2):
        found = [decode(*method, replay_pair(pair, cache), [source], Request(60))[0] for method in methods]
    assert cache.known is not None
    assert len(cache.known.nodes) > 256
    assert found == by_replayer(pair, source, 60, methods)


@pytest.mark.parametrize("method", ["vanilla_large", "vanilla_small", "sequence_cascade"])
def test_one_model_s_text_is_gone_through_once(method: str, replayed_in_python: list[int]) -> None:
    pair = pair_of("t5")
    settings = SequenceCascadeSettings(deferral_cost=0.2) if method == "sequence_cascade" else VanillaSettings()
    replaying = replay_pair(pair, PredictionCache(pair))
    for source in SOURCES:
        wanted = by_replayer(pair, source, 9, [(method, settings)])
        replayed_in_python.clear()
        found = [decode(method, settings, replaying, [source], Request(9))[0] for _ in range(3)]
        assert found == wanted * 3
        assert len(replayed_in_python) <= 1 + (method == "sequence_cascade")
