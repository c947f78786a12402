"""Divergences: by hand, against torch's own, at their limits, and what they teach."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from tasks.alignment.divergences import (
    append_rest,
    divergence,
    forward_kl,
    gather_with_rest,
    jensen_shannon,
    reverse_kl,
    total_variation,
)
from tasks.alignment.settings import LOSSES

DIVERGENCES = [name for name in LOSSES if name != "sequence"]
P, Q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])


def some(seed: int, vocabulary: int = 11, sharpness: float = 2.0) -> Tensor:
    """Log-probabilities (4, 3, vocabulary)."""
    logits = torch.randn(4, 3, vocabulary, generator=torch.Generator().manual_seed(seed))
    return (sharpness * logits).log_softmax(-1)


def test_by_hand() -> None:
    log_p, log_q = P.log(), Q.log()
    assert forward_kl(log_p, log_q).item() == pytest.approx(0.25 * math.log(2))
    assert reverse_kl(log_p, log_q).item() == pytest.approx(0.25 * math.log(2))
    assert total_variation(log_p, log_q).item() == pytest.approx(0.25)
    half = 0.5 * math.log(0.5 / 0.375) + 0.25 * math.log(0.25 / 0.375)
    assert jensen_shannon(log_p, log_q, 0.5).item() == pytest.approx(half)
    # M is p alone where q is nowhere: of the two parts, the one with q's own mass is left.
    apart = jensen_shannon(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log(), 0.3)
    assert apart.item() == pytest.approx(-(0.3 * math.log(0.3) + 0.7 * math.log(0.7)))


def test_kl_is_torch_s() -> None:
    log_p, log_q = some(1), some(2)
    p, q = Categorical(logits=log_p), Categorical(logits=log_q)
    torch.testing.assert_close(forward_kl(log_p, log_q), kl_divergence(p, q))
    torch.testing.assert_close(reverse_kl(log_p, log_q), kl_divergence(q, p))


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.9])
def test_jensen_shannon_is_made_of_two_kl_to_the_mixture(beta: float) -> None:
    log_p, log_q = some(1), some(2)
    p, q = Categorical(logits=log_p), Categorical(logits=log_q)
    mixture = Categorical(probs=beta * p.probs + (1 - beta) * q.probs)
    expected = beta * kl_divergence(p, mixture) + (1 - beta) * kl_divergence(q, mixture)
    torch.testing.assert_close(jensen_shannon(log_p, log_q, beta), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_the_named_jensen_shannon_has_the_beta_it_is_given(beta: float) -> None:
    torch.testing.assert_close(divergence("jensen_shannon", beta)(some(1), some(2)), jensen_shannon(some(1), some(2), beta))


def test_jensen_shannon_is_a_kl_at_either_end() -> None:
    """JS(beta) / beta → KL(p|q) for beta → 0, JS(beta) / (1 - beta) → KL(q|p) for beta → 1 (Agarwal et al., 2024)."""
    log_p, log_q = some(1).double(), some(2).double()
    torch.testing.assert_close(jensen_shannon(log_p, log_q, 1e-6) / 1e-6, forward_kl(log_p, log_q), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(jensen_shannon(log_p, log_q, 1 - 1e-6) / 1e-6, reverse_kl(log_p, log_q), rtol=1e-3, atol=1e-4)


def test_total_variation_is_one_less_what_is_accepted() -> None:
    log_p, log_q = some(1), some(2)
    shared = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
    torch.testing.assert_close(total_variation(log_p, log_q), 1 - shared)


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_divergence_is_zero_only_for_equal_distributions(loss: str) -> None:
    apart = divergence(loss, 0.4)
    assert apart(some(1), some(1)).abs().max() < 1e-6
    assert apart(some(1), some(2)).min() > 1e-3
    assert apart(some(1), some(2)).shape == (4, 3)


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_few_gradient_steps_bring_q_to_p(loss: str) -> None:
    apart, log_p = divergence(loss, 0.4), some(1)
    logits = some(2).clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        torch.autograd.backward(apart(log_p, logits.log_softmax(-1)).sum())
        optimizer.step()
    overlap = torch.minimum(log_p.exp(), logits.softmax(-1)).sum(-1).mean()
    assert overlap > 0.97


@pytest.mark.parametrize("loss", DIVERGENCES)
@pytest.mark.parametrize("masked", ["p", "q", "both"])
def test_a_masked_token_leaves_value_and_gradient_finite(loss: str, masked: str) -> None:
    p, q = torch.tensor([1.0, 0.5, 2.0, 0.0]), torch.tensor([0.0, 1.0, 1.0, 0.3])
    if masked in ("p", "both"):
        p[1] = -math.inf
    if masked in ("q", "both"):
        q[1] = -math.inf
    q.requires_grad_()
    found = divergence(loss, 0.3)(p.log_softmax(-1), q.log_softmax(-1))
    torch.autograd.backward(found)
    assert q.grad is not None
    assert found.isfinite() and q.grad.isfinite().all()
    assert q.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_buckets_of_all_but_one_token_are_the_whole(loss: str) -> None:
    apart, log_p, log_q = divergence(loss, 0.3), some(1), some(2)
    tokens = log_p.topk(10).indices
    found = apart(append_rest(log_p.gather(-1, tokens)), gather_with_rest(log_q, tokens))
    torch.testing.assert_close(found, apart(log_p, log_q), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_fewer_buckets_see_less_of_a_difference(loss: str) -> None:
    """Data processing: to look at the tokens that share a bucket as one takes no two distributions further apart."""
    apart, log_p, log_q = divergence(loss, 0.3), some(1), some(2)
    whole, before = apart(log_p, log_q), torch.zeros(4, 3)
    for k in (1, 3, 6, 9):
        tokens = log_p.topk(k).indices
        found = apart(append_rest(log_p.gather(-1, tokens)), gather_with_rest(log_q, tokens))
        assert (found >= before - 1e-5).all()
        assert (found <= whole + 1e-5).all()
        before = found


def slope(apart: Callable[[Tensor, Tensor], Tensor], vocabulary: int) -> float:
    """How steep the loss is at a q that knows nothing, for a p that is all but certain."""
    p = torch.zeros(vocabulary)
    p[3] = 15.0
    logits = torch.zeros(vocabulary, requires_grad=True)
    torch.autograd.backward(apart(p.log_softmax(-1), logits.log_softmax(-1)))
    assert logits.grad is not None
    return float(logits.grad.norm())


def test_total_variation_has_small_gradients_for_a_random_drafter() -> None:
    assert slope(total_variation, 1000) < 0.002
    assert slope(forward_kl, 1000) > 0.9
