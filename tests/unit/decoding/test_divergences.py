"""Divergences, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.decoding.divergences import DIVERGENCES
from tasks.decoding.settings.speculative import DIVERGENCES as NAMES

CASES = [
    ([0.5, 0.5], [0.25, 0.75], {"kl": 0.5 * math.log(4 / 3), "tv": 0.25}),
    ([1.0, 0.0], [0.25, 0.75], {"kl": math.log(4), "tv": 0.75}),
    ([0.5, 0.5, 0.0], [0.5, 0.0, 0.5], {"kl": math.inf, "tv": 0.5, "js": 0.5 * math.log(2)}),
    ([1.0, 0.0], [0.0, 1.0], {"kl": math.inf, "tv": 1.0, "js": math.log(2)}),
]


@pytest.mark.parametrize(("q", "p", "expected"), CASES)
def test_divergences_by_hand(q: list[float], p: list[float], expected: dict[str, float]) -> None:
    log_q, log_p = (torch.tensor([[one]]).log() for one in (q, p))
    for name, value in expected.items():
        found = DIVERGENCES[name](log_q, log_p)
        assert found.shape == (1, 1)
        assert float(found) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equal_distributions_are_no_distance_apart(name: str) -> None:
    log_q = torch.log_softmax(torch.randn(20, 9, generator=torch.Generator().manual_seed(1)), -1)
    assert (DIVERGENCES[name](log_q, log_q) < 1e-7).all()
    assert (DIVERGENCES[name](log_q, log_q.roll(1, 0)) > 1e-3).all()


def test_the_settings_name_them_all() -> None:
    assert tuple(DIVERGENCES) == NAMES
