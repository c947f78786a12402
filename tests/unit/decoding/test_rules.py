"""Acceptance rules by hand, and at their ends."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding import rules
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.toys import prefix_pair, random_table, toy_sources

PLAIN = SamplingSettings(temperature=1.0)
Q = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
P = torch.tensor([[[0.2, 0.3, 0.5], [0.4, 0.5, 0.1], [0.6, 0.2, 0.2]]])


def block_of(probabilities: torch.Tensor, sampling: SamplingSettings = PLAIN) -> PredictionBlock:
    return PredictionBlock(probabilities.log(), sampling)


def test_a_token_of_probability_zero_under_q_divides_by_nothing() -> None:
    """Positions past a row's own draft hold arbitrary tokens; their result is unused but must be finite."""
    q, p = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    for token in (0, 1):
        assert torch.isfinite(rules.speculative_sampling.apply(torch.tensor([[token]]), block_of(q), block_of(p)).accept).all()


@pytest.mark.parametrize(
    ("threshold", "kept"), [(0.0, [0, 0]), (0.6, [0, 0]), (0.7, [0, 1]), (1.6, [0, 1]), (1.7, [1, 1]), (math.inf, [1, 1])]
)
def test_distance_rollback_by_hand(threshold: float, kept: list[int]) -> None:
    """Token 0 lies at -ln 0.2 = 1.609, token 1 at -ln 0.5 = 0.693."""
    rule = rules.distance_rollback(threshold)
    result = rule.apply(torch.tensor([[0, 1]]), block_of(Q), block_of(P[:, :2]))
    assert result.accept.tolist() == [kept]
    torch.testing.assert_close(rules.token_probabilities(result.residual), P[:, :2])


def test_a_token_of_probability_zero_is_accepted_only_by_an_infinite_threshold() -> None:
    p = torch.tensor([[[0.0, 1.0]]])
    for threshold, kept in ((50.0, 0.0), (math.inf, 1.0)):
        rule = rules.distance_rollback(threshold)
        assert rule.apply(torch.tensor([[0]]), block_of(p), block_of(p)).accept.tolist() == [[kept]]


Q_LENIENCE = [0.6, 0.3, 0.1]
P_LENIENCE = [0.2, 0.3, 0.5]


@pytest.mark.parametrize(("lenience", "accept"), [(0.41, [0, 1, 1]), (0.39, [1, 1, 1]), (0.61, [0, 0, 1]), (1.0, [0, 0, 1])])
def test_greedy_lenience_by_hand(lenience: float, accept: list[float]) -> None:
    """Relative to max p = 0.5, token 0 has 0.4 and token 1 has 0.6; token 2 replaces a rejected token."""
    q, p = block(Q_LENIENCE, GREEDY), block(P_LENIENCE, GREEDY)
    result = rules.lenient(lenience).apply(torch.tensor([[0]]), q, p)
    assert result.accept.tolist() == [accept[:1]]
    assert rules.token_probabilities(result.residual).argmax(-1).tolist() == [[2]]
    for token in (1, 2):
        drafts_it = block([float(one == token) for one in range(3)], GREEDY)
        assert rules.lenient(lenience).apply(torch.tensor([[token]]), drafts_it, p).accept.tolist() == [[accept[token]]]


@given(pair=positions((*DRAWN, GREEDY)), alpha=st.floats(0, 0.999))
@repeatable
def test_tuned_beta_satisfies_its_equation(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = dist(pair[0]), dist(pair[1])
    beta = float(rules.tuned_beta(torch.from_numpy(q), torch.from_numpy(p), alpha))
    assert beta >= 1 - alpha
    assert np.maximum(0, p / beta - q).sum() == pytest.approx(np.maximum(0, q - p / (1 - alpha)).sum(), abs=1e-12)


@given(pair=positions((GREEDY,)), alpha=st.floats(0, 0.99), tuned=st.booleans())
@repeatable
def test_greedy_lossy_is_speculative_sampling(pair: tuple[PredictionBlock, PredictionBlock], alpha: float, tuned: bool) -> None:
    q, p = pair
    drafted = int(q.dist.argmax())
    strict, one = emission(rules.speculative_sampling, q, p), emission(rules.lossy(alpha, tuned=tuned), q, p)
    assert one.accept[drafted] == strict.accept[drafted]
    assert one.replacement.argmax() == strict.replacement.argmax()


def test_drafts_of_unequal_length_are_decided_as_if_alone() -> None:
    """A draft ends at an end token, others beside it go on."""
    tables = (random_table(name, agreement=0.5, sharpness=1.0, vocabulary=5, end=1.0) for name in ("small", "large"))
    pair, sources = prefix_pair(*tables), toy_sources(40, seed=7)
    settings, request = SpeculativeSettings(draft_length=4), Request(11, PLAIN)
    together = decode("speculative", settings, pair, sources, request)
    alone = [decode("speculative", settings, pair, [one], request, [number])[0] for number, one in enumerate(sources)]
    assert together == alone
    assert len({drafted for one in together for drafted, _ in one.counts.kept}) > 1
