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
    blended_with_kl,
    divergence,
    forward_kl,
    gather_with_rest,
    jensen_shannon,
    log_overlap,
    negative_log_acceptance,
    reverse_kl,
    total_variation,
)
from tasks.alignment.settings import DIVERGENCES

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
    assert negative_log_acceptance(log_p, log_q).item() == pytest.approx(-math.log(0.75))
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
    assert slope(negative_log_acceptance, 1000) > 0.7


def test_where_p_is_one_token_the_negative_log_of_the_acceptance_is_the_cross_entropy() -> None:
    log_p = torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]])
    logits = torch.tensor([[-30.0, 2.0, 1.0, -1.0]])
    assert negative_log_acceptance(log_p, logits.log_softmax(-1)).item() == pytest.approx(-float(logits.log_softmax(-1)[0, 0]))
    expected = logits.softmax(-1) - torch.tensor([1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(gradient(negative_log_acceptance, log_p, logits), expected)


def gradient(apart: Callable[[Tensor, Tensor], Tensor], log_p: Tensor, logits: Tensor) -> Tensor:
    """The gradient of the summed loss with respect to the drafter's logits."""
    logits = logits.clone().requires_grad_()
    torch.autograd.backward(apart(log_p, logits.log_softmax(-1)).sum())
    assert logits.grad is not None
    return logits.grad


def test_the_log_divides_the_gradient_of_total_variation_by_the_acceptance() -> None:
    log_p, log_q = some(1).double(), some(2).double()
    accepted = torch.minimum(log_p.exp(), log_q.exp()).sum(-1, keepdim=True)
    expected = gradient(total_variation, log_p, log_q) / accepted
    torch.testing.assert_close(gradient(negative_log_acceptance, log_p, log_q), expected)


@pytest.mark.parametrize("apart_by", [5.0, 20.0, 100.0, 1000.0])
def test_the_gradient_does_not_vanish_with_the_acceptance(apart_by: float) -> None:
    """Both are all but certain, of different tokens, and 1000 nats are far below what float32 holds as a probability."""
    p, q = torch.tensor([[apart_by, 0.0, 0.0]]), torch.tensor([[0.0, apart_by, 0.0]])
    found = negative_log_acceptance(p.log_softmax(-1), q.log_softmax(-1))
    # p and q share exp(-distance) of either token, and of the third one.
    assert found.item() == pytest.approx(apart_by - math.log(3), rel=1e-2)
    slopes = gradient(negative_log_acceptance, p.log_softmax(-1), q)[0]
    # Of what is accepted, a third each comes from either token and the third one; q is short of the first alone, by a third,
    # and the tie at the third token halves what it gives.
    torch.testing.assert_close(slopes, torch.tensor([-1 / 3, 1 / 2, -1 / 6]), atol=2e-2, rtol=0.0)
    assert gradient(total_variation, p.log_softmax(-1), q).abs().max() < 0.02


def test_with_stored_predictions_the_gradient_does_not_vanish_either() -> None:
    """Of p, which is certain of token 0, two tokens are stored; q knows it with a probability of about 3e-5."""
    log_p = torch.tensor([[20.0, 3.0, 0.0, 0.0, 0.0]]).log_softmax(-1)
    tokens = log_p.topk(2).indices

    def stored(log_p: Tensor, log_q: Tensor) -> Tensor:
        return negative_log_acceptance(append_rest(log_p.gather(-1, tokens)), gather_with_rest(log_q, tokens))

    logits = torch.tensor([[0.0, 0.0, 10.0, 9.0, 8.0]])
    slopes = gradient(stored, log_p, logits)
    torch.testing.assert_close(slopes, gradient(negative_log_acceptance, log_p, logits), atol=0.02, rtol=0.0)
    assert slopes[0, 0] < -0.95


def test_without_a_shared_token_the_loss_is_finite_and_teaches_nothing() -> None:
    """Rows of one batch: no shared token, one shared token, and equal distributions."""
    p = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 0.0, -math.inf], [0.0, 0.0, -math.inf]]).log_softmax(-1)
    q = torch.tensor([[-math.inf, 0.0, 0.0], [-math.inf, 0.0, 0.0], [0.0, 0.0, -math.inf]])
    torch.testing.assert_close(negative_log_acceptance(p, q.log_softmax(-1)), torch.tensor([60.0, math.log(2), 0.0]))
    slopes = gradient(negative_log_acceptance, p, q)
    assert slopes.isfinite().all()
    assert slopes[0].abs().max() == slopes[2].abs().max() == 0
    assert slopes[1, 2] > 0.1


def test_a_blend_is_kl_at_one_end_and_the_divergence_at_the_other() -> None:
    log_p, log_q = P.log(), Q.log()
    assert blended_with_kl(total_variation, 1.0)(log_p, log_q).item() == pytest.approx(0.25 * math.log(2))
    assert blended_with_kl(total_variation, 0.0)(log_p, log_q).item() == pytest.approx(0.25)
    assert blended_with_kl(total_variation, 0.4)(log_p, log_q).item() == pytest.approx(0.4 * 0.25 * math.log(2) + 0.6 * 0.25)
    slopes = [gradient(blended_with_kl(total_variation, weight), some(1), some(2)) for weight in (0.0, 0.4, 1.0)]
    torch.testing.assert_close(slopes[1], 0.6 * slopes[0] + 0.4 * slopes[2])


def test_the_overlap_of_less_than_a_distribution_is_by_hand() -> None:
    """Σ min(p, q) of p = (0.3, 0.1), whose other tokens are outside a draft vocabulary, and q = (0.2, 0.8)."""
    found = log_overlap(torch.tensor([[0.3, 0.1]]).log(), torch.tensor([[0.2, 0.8]]).log())
    assert found.exp().item() == pytest.approx(0.3)
