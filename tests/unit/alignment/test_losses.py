"""Divergences by hand, against torch's own and at their limits; the loss against forward passes token by token."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from tasks.alignment.losses import DivergenceLoss, divergence, forward_kl, jensen_shannon, reverse_kl, total_variation
from tasks.alignment.settings import DIVERGENCES
from tasks.models.pruned_head import prune_head
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, DRAFTED, TARGETS, WEIGHTS, Stored, by_single_steps, pair, whole_batch

LIVE = pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])


def some(seed: int) -> Tensor:
    """Log-probabilities (4, 3, 11)."""
    logits = torch.randn(4, 3, 11, generator=torch.Generator().manual_seed(seed))
    return (2 * logits).log_softmax(-1)


def test_jensen_shannon_of_distributions_without_a_common_token() -> None:
    # M is p alone where q is nowhere: of the two parts, the one with q's own mass is left.
    apart = jensen_shannon(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log(), 0.3)
    assert apart.item() == pytest.approx(-(0.3 * math.log(0.3) + 0.7 * math.log(0.7)))


def test_kl_is_torch_s_and_total_variation_is_one_less_what_is_accepted() -> None:
    log_p, log_q = some(1), some(2)
    p, q = Categorical(logits=log_p), Categorical(logits=log_q)
    torch.testing.assert_close(forward_kl(log_p, log_q), kl_divergence(p, q))
    torch.testing.assert_close(reverse_kl(log_p, log_q), kl_divergence(q, p))
    shared = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
    torch.testing.assert_close(total_variation(log_p, log_q), 1 - shared)


@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_jensen_shannon_is_made_of_two_kl_to_the_mixture(beta: float) -> None:
    log_p, log_q = some(1), some(2)
    p, q = Categorical(logits=log_p), Categorical(logits=log_q)
    mixture = Categorical(probs=beta * p.probs + (1 - beta) * q.probs)
    expected = beta * kl_divergence(p, mixture) + (1 - beta) * kl_divergence(q, mixture)
    torch.testing.assert_close(divergence("jensen_shannon", beta)(log_p, log_q), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_divergence_is_zero_only_for_equal_distributions_and_leads_there(loss: str) -> None:
    apart, log_p = divergence(loss, 0.4), some(1)
    assert apart(log_p, log_p).abs().max() < 1e-6
    assert apart(log_p, some(2)).min() > 1e-3
    assert apart(log_p, some(2)).shape == (4, 3)
    logits = some(2).clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        torch.autograd.backward(apart(log_p, logits.log_softmax(-1)).sum())
        optimizer.step()
    assert torch.minimum(log_p.exp(), logits.softmax(-1)).sum(-1).mean() > 0.97


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
    assert found.isfinite() and q.grad.isfinite().all()
    assert q.grad.abs().sum() > 0


@CAUSAL
@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_batch_is_the_sum_over_its_positions(loss: str, causal: bool) -> None:
    drafter, large = pair(causal)
    apart = divergence(loss, 0.3)
    distilled = DivergenceLoss(apart, 24, large)
    batch = whole_batch(causal, weighted=True)
    [found] = distilled.sums(drafter, batch)
    parts = zip(by_single_steps(large, causal), by_single_steps(drafter, causal), WEIGHTS, strict=True)
    expected = sum(float((apart(p, q) * torch.tensor(weights)).sum()) for p, q, weights in parts)
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert distilled.counts(batch) == [pytest.approx(sum(map(sum, WEIGHTS)))]
    assert distilled.counts(whole_batch(causal)) == [11.0]


@CAUSAL
def test_gradients_reach_the_drafter_alone(causal: bool) -> None:
    drafter, large = pair(causal)
    objective = Objective(drafter, TrainingSettings(), DivergenceLoss(forward_kl, 24, large))
    assert {id(weight) for weight in objective.parameters()} == {id(weight) for weight in drafter.parameters()}
    torch.autograd.backward(objective.sums(whole_batch(causal)).sum())
    assert all(weight.grad is None for weight in large.parameters())
    assert sum(float(weight.grad.abs().sum()) for weight in drafter.parameters() if weight.grad is not None) > 0


@CAUSAL
def test_stored_predictions_of_all_but_one_token_are_the_live_ones(causal: bool) -> None:
    drafter, large = pair(causal)
    [live] = DivergenceLoss(forward_kl, 24, large).sums(drafter, whole_batch(causal))
    predicted = by_single_steps(large, causal)
    for k, low, high in ((23, 0.999, 1.001), (2, 0.0, 0.999)):
        [found] = DivergenceLoss(forward_kl, 24, None).sums(drafter, whole_batch(causal, stored=Stored(predicted, k)))
        assert low < found.item() / live.item() < high
    with pytest.raises(ValueError, match="no predictions of the large model"):
        DivergenceLoss(forward_kl, 24, None).sums(drafter, whole_batch(causal))


def test_ids_past_the_vocabulary_are_ignored() -> None:
    """Of a model that is padded with more rows, the softmax is over the tokenizer's ids alone."""
    drafter, large = pair(causal=False)
    [plain] = DivergenceLoss(forward_kl, 20, large).sums(drafter, whole_batch(False))
    with torch.no_grad():
        for model in (drafter, large):
            model.lm_head.weight[20:] += 3.0
    [padded] = DivergenceLoss(forward_kl, 20, large).sums(drafter, whole_batch(False))
    torch.testing.assert_close(padded, plain)


@CAUSAL
@LIVE
@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_draft_vocabulary_learns_p_given_that_the_token_is_in_it(loss: str, live: bool, causal: bool) -> None:
    """Each position counts by the probability of that; labels outside are left out. Stored are the top five tokens."""
    drafter, large = pair(causal)
    p, q = by_single_steps(large, causal), by_single_steps(drafter, causal)
    apart = divergence(loss, 0.3)
    batch = whole_batch(causal, weighted=True, stored=None if live else Stored(p, 5))
    prune_head(drafter, DRAFTED)
    distilled = DivergenceLoss(apart, 24, large if live else None)
    objective = Objective(drafter, TrainingSettings(precision="float32"), distilled)
    expected = count = 0.0
    for index, (target, weights) in enumerate(zip(TARGETS, WEIGHTS, strict=True)):
        for place, (token, weight) in enumerate(zip(target, weights, strict=True)):
            if token not in DRAFTED:
                continue
            here = p[index][place].exp()
            log_q = q[index][place][DRAFTED].log_softmax(-1)
            if live:
                share = here[DRAFTED].sum()
                divergence_here = apart((here[DRAFTED] / share).log(), log_q)
            else:
                known = [int(one) for one in here.topk(5).indices]
                share = 1 - here[[one for one in known if one not in DRAFTED]].sum()
                inside = [one for one in known if one in DRAFTED]
                p_inside, q_inside = here[inside] / share, log_q[[DRAFTED.index(one) for one in inside]].exp()
                divergence_here = apart(*(torch.cat([one, 1 - one.sum()[None]]).log() for one in (p_inside, q_inside)))
            expected += weight * float(share * divergence_here)
            count += weight
    assert objective.own_counts([batch]).tolist() == [pytest.approx(count)]
    assert objective.sums(batch).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("half", ["float32", "bfloat16"])
@CAUSAL
def test_cross_entropy_leaves_labels_outside_the_draft_vocabulary_out(causal: bool, half: str) -> None:
    drafter, _ = pair(causal)
    q = by_single_steps(drafter, causal)
    batch = whole_batch(causal)
    objective = Objective(drafter, TrainingSettings(precision=half))
    assert int(objective.target_tokens(batch)) == 11
    prune_head(drafter, DRAFTED)
    assert int(objective.target_tokens(batch)) == 8
    kept = [
        -float(rows[DRAFTED].log_softmax(-1)[DRAFTED.index(token)])
        for predicted, target in zip(q, TARGETS, strict=True)
        for rows, token in zip(predicted, target, strict=True)
        if token in DRAFTED
    ]
    counts = objective.own_counts([batch])
    assert counts.tolist() == [8.0]
    loss = objective(batch, counts)
    assert loss.item() == pytest.approx(sum(kept) / 8, rel=1e-4 if half == "float32" else 0.05)
    torch.autograd.backward(loss)
    assert all(bool(weight.grad.isfinite().all()) for weight in drafter.parameters() if weight.grad is not None)
