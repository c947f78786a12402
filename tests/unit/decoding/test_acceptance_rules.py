"""The acceptance rules on hand-made distributions."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import SamplingSettings
from tasks.decoding.rules import BonusToken, accept_all, distance_rollback, speculative_sampling, token_probabilities

PLAIN = SamplingSettings(temperature=1.0)
Q = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
P = torch.tensor([[[0.2, 0.3, 0.5], [0.4, 0.5, 0.1], [0.6, 0.2, 0.2]]])


def block(probabilities: torch.Tensor, sampling: SamplingSettings = PLAIN) -> PredictionBlock:
    return PredictionBlock(probabilities.log(), sampling)


def test_speculative_by_hand() -> None:
    result = speculative_sampling.apply(torch.tensor([[0, 1]]), block(Q), block(P[:, :2]))
    torch.testing.assert_close(result.accept, torch.tensor([[0.4, 1.0]]))
    torch.testing.assert_close(result.residual_probabilities, torch.tensor([[[0, 0, 0.3], [0.3, 0.4, 0]]]))


def test_greedy_speculative_compares_argmaxes() -> None:
    result = speculative_sampling.apply(
        torch.tensor([[0, 2]]), block(Q, SamplingSettings()), block(P[:, :2], SamplingSettings())
    )
    assert result.accept.tolist() == [[0.0, 0.0]]
    assert result.residual_probabilities.argmax(-1).tolist() == [[2, 1]]
    keep_agreed = speculative_sampling.apply(
        torch.tensor([[0]]), block(Q[:, :1], SamplingSettings()), block(P[:, 2:], SamplingSettings())
    )
    assert keep_agreed.accept.tolist() == [[1.0]]


@pytest.mark.parametrize("sampling", [PLAIN, SamplingSettings(temperature=0.6, top_k=20, top_p=0.85), SamplingSettings()])
def test_accepted_tokens_and_residual_add_up_to_p(sampling: SamplingSettings) -> None:
    """Σ q(x) accept(x) = Σ min(p, q), the residual is never negative, and q(x) accept(x) + residual(x) = p(x)."""
    generator = torch.Generator().manual_seed(3)
    q = PredictionBlock(torch.randn(1, 60, 40, generator=generator) * 2, sampling)
    p = PredictionBlock(torch.randn(1, 60, 40, generator=generator) * 2, sampling)
    accept = torch.stack([speculative_sampling.apply(torch.full((1, 60), token), q, p).accept[0] for token in range(40)], -1)
    residual = speculative_sampling.apply(torch.zeros(1, 60, dtype=torch.long), q, p).residual_probabilities[0]
    target, kept = p.dist[0], q.dist[0] * accept
    torch.testing.assert_close(kept, torch.minimum(q.dist[0], target))
    assert float(residual.min()) >= 0
    left = 1 - torch.minimum(q.dist[0], target).sum(-1, keepdim=True)
    emitted = kept + left * residual / residual.sum(-1, keepdim=True)
    torch.testing.assert_close(emitted, target, atol=1e-6, rtol=1e-4)


def test_equal_models_reject_nothing_and_the_residual_is_p() -> None:
    result = speculative_sampling.apply(torch.tensor([[1, 2]]), block(P[:, :2]), block(P[:, :2]))
    assert result.accept.tolist() == [[1.0, 1.0]]
    torch.testing.assert_close(result.residual_probabilities, P[:, :2])


def test_a_token_of_probability_zero_under_q_divides_by_nothing() -> None:
    """Positions past a row's own draft hold arbitrary tokens; their result is unused but must be finite."""
    q, p = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    for token in (0, 1):
        assert torch.isfinite(speculative_sampling.apply(torch.tensor([[token]]), block(q), block(p)).accept).all()


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [(0.0, [0, 0]), (0.6, [0, 0]), (0.7, [0, 1]), (1.6, [0, 1]), (1.7, [1, 1]), (math.inf, [1, 1])],
)
def test_distance_rollback_by_hand(threshold: float, kept: list[int]) -> None:
    """Token 0 lies at -ln 0.2 = 1.609, token 1 at -ln 0.5 = 0.693."""
    rule = distance_rollback(threshold)
    result = rule.apply(torch.tensor([[0, 1]]), block(Q), block(P[:, :2]))
    assert result.accept.tolist() == [kept]
    torch.testing.assert_close(result.residual_probabilities, P[:, :2])


def test_the_distance_reads_scores_not_the_one_hot() -> None:
    """The token is accepted although the large model's greedy choice differs."""
    result = distance_rollback(2.0).apply(
        torch.tensor([[0, 0]]), block(Q, SamplingSettings()), block(P[:, :2], SamplingSettings())
    )
    assert result.accept.tolist() == [[1.0, 1.0]]
    assert result.residual_probabilities.tolist() == [[[0, 0, 1], [0, 1, 0]]]


def test_agreed_tokens_are_accepted_if_so_configured() -> None:
    tokens = torch.tensor([[2, 1]])
    for keep_agreed, kept in ((False, [0.0, 0.0]), (True, [1.0, 1.0])):
        rule = distance_rollback(0.1, keep_agreed=keep_agreed)
        assert rule.apply(tokens, block(Q), block(P[:, :2])).accept.tolist() == [kept]


def test_a_token_of_probability_zero_is_accepted_only_by_an_infinite_threshold() -> None:
    p = torch.tensor([[[0.0, 1.0]]])
    for threshold, kept in ((50.0, 0.0), (math.inf, 1.0)):
        rule = distance_rollback(threshold)
        assert rule.apply(torch.tensor([[0]]), block(p), block(p)).accept.tolist() == [[kept]]


def test_the_bonus_token_comes_from_p() -> None:
    for rule in (accept_all, speculative_sampling, distance_rollback(2.0)):
        assert rule.bonus is BonusToken.TARGET
        assert torch.equal(token_probabilities(rule.target(block(Q), block(P))), block(P).dist)


def test_accept_all_accepts_all() -> None:
    assert accept_all.apply(torch.tensor([[0, 1]]), block(Q), block(P[:, :2])).accept.tolist() == [[1.0, 1.0]]
