"""Lossy acceptance: what it emits, by hand and on random positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import LossySettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import lossy, speculative_sampling, tuned_beta
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.laws import bisected
from tests.toys import Toys, toy_sources
from tests.unit.decoding.test_lenience import LIMIT, Q

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


def test_untuned_lossy_does_not_follow_the_target() -> None:
    """With β = 1, max(min(q, p/(1 - α)), p/β) is (0.25, 0.5, 0.5), which is no distribution."""
    q, p = np.array(Q2), np.array(P2)
    target = np.maximum(np.minimum(q, 2 * p), p)
    assert target.sum() == 1.25
    emitted = emission(lossy(0.5, tuned=False), block(Q2), block(P2)).emitted
    assert np.abs(emitted - target / target.sum()).max() > 0.01


@pytest.mark.parametrize("tuned", [False, True])
@given(pair=positions(), alpha=st.floats(0, 0.99))
@repeatable
def test_lossy_emits_its_distribution(tuned: bool, pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = pair
    one = emission(lossy(alpha, tuned=tuned), q, p)
    beta = bisected(dist(q), dist(p), alpha) if tuned else 1.0
    kept, residual = np.minimum(dist(q), dist(p) / (1 - alpha)), np.maximum(0, dist(p) / beta - dist(q))
    assert one.replacement.min() >= 0
    assert one.replacement.sum() > 0
    assert one.rejected == pytest.approx(1 - kept.sum(), abs=2e-6)
    np.testing.assert_allclose(one.kept, kept, atol=2e-6)
    if 1 - kept.sum() > 1e-4:
        np.testing.assert_allclose(one.emitted, kept + (1 - kept.sum()) * residual / residual.sum(), atol=5e-6)
    if tuned:
        np.testing.assert_allclose(one.emitted, np.maximum(kept, dist(p) / beta), atol=5e-6)


@given(pair=positions((*DRAWN, GREEDY)), alpha=st.floats(0, 0.999))
@repeatable
def test_tuned_beta_satisfies_its_equation(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = dist(pair[0]), dist(pair[1])
    beta = float(tuned_beta(torch.from_numpy(q), torch.from_numpy(p), alpha))
    assert beta >= 1 - alpha
    assert np.maximum(0, p / beta - q).sum() == pytest.approx(np.maximum(0, q - p / (1 - alpha)).sum(), abs=1e-12)


def test_tuned_beta_of_many_positions_at_once() -> None:
    generator = torch.Generator().manual_seed(2)
    q, p = (torch.softmax(3 * torch.randn(3, 7, 50, generator=generator), -1) for _ in "qp")
    together = tuned_beta(q, p, 0.4)
    assert together.shape == (3, 7)
    for row in range(3):
        for position in range(7):
            alone = tuned_beta(q[row, position], p[row, position], 0.4)
            assert float(together[row, position]) == pytest.approx(float(alone))
            wanted = bisected(q[row, position].double().numpy(), p[row, position].double().numpy(), 0.4)
            assert float(alone) == pytest.approx(wanted, rel=1e-5)


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


@pytest.mark.parametrize("tuned", [False, True])
def test_greedy_lossy_output_is_vanilla(toys: Toys, tuned: bool) -> None:
    sources, request = toy_sources(12, seed=3), Request(LIMIT)
    vanilla = decode("vanilla_large", VanillaSettings(), toys.cached, sources, request)
    settings = LossySettings(lossiness=0.9, tuned=tuned, draft_length=3)
    lossy_texts = decode("speculative_lossy", settings, toys.cached, sources, request)
    assert [one.tokens for one in lossy_texts] == [one.tokens for one in vanilla]
