"""Tolerant acceptance at its strictest is speculative decoding."""

from __future__ import annotations

import pytest

from tasks.decoding.method import Pair
from tasks.decoding.registry import Request, decode
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.settings import SpeculativeSettings, TopKSettings
from tests.architectures import pair_of
from tests.toys import toy_sources


@pytest.mark.parametrize("replayed", [False, True], ids=["decoded", "replayed"])
def test_the_likeliest_token_alone_is_greedy_speculative_decoding(replayed: bool) -> None:
    pair, sources = pair_of("t5"), toy_sources(12)

    def generations(method: str, settings: object, pair: Pair) -> list[object]:
        return [decode(method, settings, pair, [source], Request(14))[0] for source in sources]

    wanted = generations("speculative", SpeculativeSettings(draft_length=4), pair)
    one, two = (TopKSettings(accepted_tokens=count, draft_length=4) for count in (1, 2))
    pair = replay_pair(pair, PredictionCache(pair)) if replayed else pair
    assert generations("speculative_top_k", one, pair) == wanted
    assert generations("speculative_top_k", two, pair) != wanted
