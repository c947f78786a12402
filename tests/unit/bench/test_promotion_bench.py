"""The benchmark of promotions on made-up results: its counts, and what it says of the twins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tasks.bench.promotion import main, result_of, twins_of
from tasks.errors import InputError
from tasks.evaluation.promotion.null_trials import NullSource
from tasks.evaluation.results.rows import TimedRound


def test_equal_pairs_are_not_promoted_and_fast_ones_are() -> None:
    rng = np.random.default_rng(2)
    scores = rng.uniform(0, 100, (200, 1))
    other = np.where(rng.random((200, 1)) < 0.05, rng.permutation(scores), scores)
    latencies = 10 * np.exp(0.01 * rng.standard_normal((24, 2, 20)))
    found: dict[str, Any] = result_of(NullSource((scores, other), latencies), "rougeL", 10.0, 100, 200)
    assert (found["trials"], found["rounds"], found["margin"]) == (200, 8, 10.0)
    assert found["worst_hundred"] <= 5
    assert found["promoted_per_100"]["1.2"] == 100
    assert 0.02 < found["differing_outputs"] < 0.08
    assert found["twins"]["speed_ratio"] == pytest.approx(1, abs=0.01)


def test_twins_by_hand() -> None:
    rounds = [TimedRound(latency_ms=[1.0, 1.0], vanilla_latency_ms=[ratio, ratio]) for ratio in (1.0, math.e)]
    reach = 12.706 * math.sqrt(0.5) / math.sqrt(2)
    assert twins_of(rounds) == {
        "rounds": 2,
        "speed_ratio": round(math.exp(0.5), 4),
        "interval": [round(math.exp(0.5 - reach), 4), round(math.exp(0.5 + reach), 4)],
        "scatter": round(math.sqrt(0.5), 4),
    }


def test_too_few_rounds_or_trials_are_refused() -> None:
    for option in (["--rounds", "7"], ["--trials", "99"]):
        with pytest.raises(InputError, match="at least 8 and 100"):
            main(["--task", "translation", *option])
