"""Lossy acceptance: what it emits, by hand and on random positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.rules import lossy, speculative_sampling, tuned_beta
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.unit.decoding.test_lenience import Q

Q2 = [0.1, 0.8, 0.1]
P2 = [0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("tuned", "replacement", "emitted"),
    [
        # α = 0.5 keeps min(q, 2p) = (0.1, 0.5, 0.1) and rejects 0.3; max(0, p - q) has shares 0.15 and 0.4 of 0.55.
        (False, [0.15, 0, 0.4], [0.1 + 0.3 * 3 / 11, 0.5, 0.1 + 0.3 * 8 / 11]),
        # 0.75/β - 0.2 = 0.3 gives β = 1.5: max(0, p/β - q) = (1/6 - 0.1, 0, 1/3 - 0.1).
        (True, [1 / 15, 0, 7 / 30], [1 / 6, 0.5, 1 / 3]),
    ],
)
def test_lossy_by_hand(tuned: bool, replacement: list[float], emitted: list[float]) -> None:
    one = emission(lossy(0.5, tuned=tuned), block(Q2), block(P2))
    np.testing.assert_allclose(one.accept, [1, 0.625, 1], atol=1e-6)
    np.testing.assert_allclose(one.replacement, replacement, atol=1e-6)
    np.testing.assert_allclose(one.emitted, emitted, atol=1e-6)


@given(pair=positions((*DRAWN, GREEDY)), alpha=st.floats(0, 0.999))
@repeatable
def test_tuned_beta_satisfies_its_equation(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = dist(pair[0]), dist(pair[1])
    beta = float(tuned_beta(torch.from_numpy(q), torch.from_numpy(p), alpha))
    assert beta >= 1 - alpha
    assert np.maximum(0, p / beta - q).sum() == pytest.approx(np.maximum(0, q - p / (1 - alpha)).sum(), abs=1e-12)


def test_without_rejections_q_is_emitted() -> None:
    """p/(1 - α) is at least q everywhere; the equation then holds for every β from max p/q on, which may be infinite."""
    for q, p in ((Q, Q), ([0.5, 0.5, 0.0], [0.4, 0.4, 0.2])):
        for tuned in (False, True):
            one = emission(lossy(0.5, tuned=tuned), block(q), block(p))
            assert one.accept.tolist() == [1, 1, 1]
            np.testing.assert_allclose(one.emitted, q, atol=1e-6)
    one = emission(lossy(0.5, tuned=True), block([0.5, 0.5, 0.0]), block([0.4, 0.4, 0.2]))
    np.testing.assert_allclose(one.replacement, [0.5, 0.5, 0])


@given(pair=positions((GREEDY,)), alpha=st.floats(0, 0.99), tuned=st.booleans())
@repeatable
def test_greedy_lossy_is_speculative_sampling(pair: tuple[PredictionBlock, PredictionBlock], alpha: float, tuned: bool) -> None:
    q, p = pair
    drafted = int(q.dist.argmax())
    strict, one = emission(speculative_sampling, q, p), emission(lossy(alpha, tuned=tuned), q, p)
    assert one.accept[drafted] == strict.accept[drafted]
    assert one.replacement.argmax() == strict.replacement.argmax()
