"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says with which probability each drafted token is accepted, what to draw from in place of the first rejected one (the
residual), and what the bonus token after a fully accepted draft comes from. The loop does the rest, the same for every rule.

Greedy decoding knows certainties alone: there a rule is a mask of accepted tokens, and the large model's argmax replaces the
first one that is rejected. Bounds on scores (`GreedyAcceptance`) are such a mask and what the compiled kernel applies,
written once.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.distributions import Mask, PredictionBlock, TokenIds, TokenStatistics, probability

_SMALLEST = torch.finfo(torch.float32).tiny

TokenDistribution = PredictionBlock | Tensor
"""What a token is drawn from at each position: a model's own `dist`, which need not be written out to take its argmax, or a
distribution (rows, positions, vocabulary)."""


def token_probabilities(distribution: TokenDistribution) -> Tensor:
    """Return the distribution written out: (rows, positions, vocabulary)."""
    return distribution.dist if isinstance(distribution, PredictionBlock) else distribution


@dataclass(slots=True)
class AcceptanceResult:
    """A rule's decision on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is accepted, given that all before it were; or bool, where it is certain."""
    residual: TokenDistribution
    """The distribution of the token that replaces the first rejected one; rows need not be normalised."""


AcceptanceFunction = Callable[[Tensor, PredictionBlock, PredictionBlock], AcceptanceResult]
"""(drafted tokens (rows, n), q at those positions, p at those positions) to the decision; n is at least 1."""

TargetFunction = Callable[[PredictionBlock, PredictionBlock], TokenDistribution]
"""T(q, p): from both models' predictions at the same positions to the distribution that the tokens there are to follow."""

AcceptMask = Callable[[TokenIds, TokenStatistics, TokenStatistics], Mask]
"""(drafted tokens, q, p) to whether each is accepted: tensors (rows, n) of blocks, or one token and two cached positions."""


class BonusToken(enum.Enum):
    """What the token after a fully accepted draft comes from."""

    NONE = "none"
    """No token follows; the next draft begins."""
    TARGET = "target"
    """The target model's own distribution p."""
    RULE = "rule"
    """The rule's distribution T(q, p), which takes one more prediction of the drafter."""


def target_distribution(q: PredictionBlock, p: PredictionBlock) -> PredictionBlock:
    """T(q, p) = p: the target model's own distribution."""
    return p


@dataclass(frozen=True, slots=True)
class GreedyDeferral:
    """A cascade's greedy deferral rule in numbers: a position defers to p where one of these bounds is crossed.

    A draft's tokens are accepted where their position does not defer, or where they are p's argmax.
    """

    min_confidence: float = 0.0
    """Defer where max q is under this."""
    max_entropy: float = math.inf
    """Defer where the entropy of q, in nats, is above this."""
    max_gain: float = math.inf
    """Defer where max p - max q is above this."""
    max_entropy_gain: float = math.inf
    """Defer where entropy(q) - entropy(p) is above this."""
    max_surprisal: float = math.inf
    """Defer where -log p(argmax q) is above this."""
    max_gap: float = math.inf
    """Defer where max p - p(argmax q) is above this."""
    min_share: float = 0.0
    """Defer where p(argmax q) is under this share of max p."""


SAMPLED_RULES = ("bounds", "lenient", "lossy", "tuned", "cascade")
"""Forms of a rule of sampling, in the order of the kernel's `SampledRule`."""


@dataclass(frozen=True, slots=True)
class SampledRule:
    """A rule of sampling as the compiled kernel takes it."""

    form: str
    """One of `SAMPLED_RULES`; `bounds`: what `GreedyAcceptance` says, without a draw."""
    value: float = 1.0
    """Lenience, lossiness or a cascade's α."""
    cascade: int = 0
    """The number of a cascade's rule among `cascades.RULES`."""


@dataclass(frozen=True)
class AcceptanceRule:
    """What is accepted of a draft, and what follows it."""

    accept_mask: AcceptMask
    """The rule for greedy decoding, on blocks and on cached positions; the first rejected token gives way to p's argmax."""
    decide: AcceptanceFunction | None = None
    """The decision when sampling; none where `accept_mask` makes it too, without a draw."""
    bonus: BonusToken = BonusToken.TARGET
    target: TargetFunction = target_distribution
    """T(q, p), which the bonus token is drawn from where `bonus` is `RULE`."""
    greedy: GreedyAcceptance | None = None
    """The same in numbers, where it has that form."""
    deferral: GreedyDeferral | None = None
    """The same of a cascade, whose `bonus` is `RULE`."""
    sampled: SampledRule | None = None
    """What `decide` does in numbers, where the kernel can do it."""

    @property
    def in_numbers(self) -> SampledRule | None:
        """The rule of sampling for the kernel; none where it has no such form."""
        bounded = self.decide is None and self.greedy is not None
        return SampledRule("bounds") if bounded else self.sampled

    def apply(self, tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        """Decide on drafted tokens (rows, n), given the predictions of both models at their positions; n is at least 1."""
        if self.decide is None or p.sampling.greedy:
            return AcceptanceResult(cast(Tensor, self.accept_mask(tokens, q, p)), p)
        return self.decide(tokens, q, p)


def within_bounds(bounds: GreedyAcceptance) -> AcceptMask:
    """Return the mask of a rule in numbers: a token is accepted where one of its bounds accepts it."""
    # A bound that accepts nothing is not asked.
    tests: list[AcceptMask] = []
    if bounds.keep_agreed:
        tests.append(lambda tokens, q, p: p.argmax == tokens)
    if bounds.max_surprisal >= 0:
        tests.append(lambda tokens, q, p: p.surprisal(tokens) <= bounds.max_surprisal)
    if bounds.min_share < math.inf:
        tests.append(lambda tokens, q, p: p.of(tokens) >= bounds.min_share * p.top)
    if bounds.max_gap >= 0:
        tests.append(lambda tokens, q, p: p.top - p.of(tokens) <= bounds.max_gap)

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return functools.reduce(operator.or_, [test(tokens, q, p) for test in tests])

    return accept_mask


def bounded_rule(bounds: GreedyAcceptance, bonus: BonusToken = BonusToken.TARGET) -> AcceptanceRule:
    """Return the rule of these bounds, which draws nothing to decide."""
    return AcceptanceRule(within_bounds(bounds), bonus=bonus, greedy=bounds)


# Speculative sampling and what it is made of.


def acceptance_probability(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """Return min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def positive_residual(difference: Tensor, fallback: Tensor) -> Tensor:
    """Return the positive part of `difference`, or `fallback` where rounding leaves nothing positive."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, fallback)


def match_target(target: TargetFunction, accept_mask: AcceptMask, bonus: BonusToken = BonusToken.RULE) -> AcceptanceRule:
    """Accept x with probability min(1, π(x)/q(x)), else draw from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).

    Args:
        target: T(q, p).
        accept_mask: The rule where q and p are one-hot; greedy decoding writes out no distribution.
        bonus: What the token after a fully accepted draft comes from.
    """

    def decide(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        wanted = token_probabilities(target(q, p))  # π: (rows, n, vocabulary)
        return AcceptanceResult(acceptance_probability(wanted, q.dist, tokens), positive_residual(wanted - q.dist, wanted))

    return AcceptanceRule(accept_mask, decide, bonus, target)


_ARGMAX = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=True)

speculative_sampling = dataclasses.replace(
    match_target(target_distribution, within_bounds(_ARGMAX), BonusToken.TARGET),
    greedy=_ARGMAX,
    sampled=SampledRule("lenient"),
)
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's argmax."""

accept_all = AcceptanceRule(lambda tokens, q, p: tokens == tokens, greedy=GreedyAcceptance(math.inf, keep_agreed=False))
"""Every drafted token is accepted; the token after the draft comes from the large model (SpecCascade, token cascades)."""


# Lenience (SD, A.5) and lossy acceptance (SpecCascade, section 2): the token after a fully accepted draft comes from p, as in
# the exact algorithm.


def lenient(lenience: float) -> AcceptanceRule:
    """Return the rule with lenience l, 0 < l ≤ 1 (SD, A.5); 1 is the exact rule.

    Sampling accepts x with probability min(1, p(x)/(l q(x))), else draws from norm(max(0, p - l q)), and emits no token with
    probability above p(x)/l. Greedy decoding accepts x where p(x) ≥ l max p, read from scores.
    """
    if lenience == 1:
        return speculative_sampling

    def decide(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        return AcceptanceResult(
            acceptance_probability(p.dist / lenience, q.dist, tokens), positive_residual(p.dist - lenience * q.dist, p.dist)
        )

    bounds = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=False, min_share=lenience)
    return AcceptanceRule(within_bounds(bounds), decide, greedy=bounds, sampled=SampledRule("lenient", lenience))


def lossy(alpha: float, *, tuned: bool) -> AcceptanceRule:
    """Accept x with probability min(1, p/((1 - α) q)), 0 ≤ α < 1, else draw from norm(max(0, p/β - q)).

    β is 1 or `tuned_beta`. A drafted position emits min(q, p/(1 - α)) + R norm(max(0, p/β - q)), where R = Σ max(0, q -
    p/(1 - α)) is how often it rejects; with tuned β this is π = max(min(q, p/(1 - α)), p/β) (Lemma 2). Where nothing can
    be rejected, R = 0, it emits q. Greedy decoding is exact.
    """

    def decide(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        beta = tuned_beta(q.dist, p.dist, alpha)[..., None].to(p.dist.dtype) if tuned else 1.0  # (rows, n, 1)
        return AcceptanceResult(
            acceptance_probability(p.dist / (1 - alpha), q.dist, tokens), positive_residual(p.dist / beta - q.dist, q.dist)
        )

    return dataclasses.replace(speculative_sampling, decide=decide, sampled=SampledRule("tuned" if tuned else "lossy", alpha))


def tuned_beta(q: Tensor, p: Tensor, alpha: float) -> Tensor:
    """Return β ≥ 1 - α with Σ max(0, q - p/(1 - α)) = Σ max(0, p/β - q) (SpecCascade, E.6); infinity where only that gives 0.

    The right side is piecewise linear and increasing in 1/β, with a corner at each token's q/p. Between the two corners that
    enclose the left side's value, the root is exact.

    Args:
        q: The small model's distribution, (..., vocabulary).
        p: The large model's, of the same shape.
        alpha: The lossiness α, 0 ≤ α < 1.

    Returns:
        float64, (...).
    """
    q, p = q.double(), p.double()
    # 1. The left side: (..., 1).
    rejected = (q - p / (1 - alpha)).clamp_min(0.0).sum(-1, keepdim=True)
    # 2. The corners of the right side in rising order, and its value at each: corner · Σ p - Σ q of the tokens below it.
    corners, order = torch.where(p > 0, q / p, torch.inf).sort(dim=-1)
    q_below, p_below = q.gather(-1, order).cumsum(-1), p.gather(-1, order).cumsum(-1)
    # 3. The last corner under the root. Tokens that p rules out are never reached: their corner is at infinity.
    reached = (corners.isfinite() & (corners * p_below - q_below <= rejected)).sum(-1, keepdim=True)
    last = (reached - 1).clamp_min(0)
    # 4. The root between that corner and the next: β = Σ p / (left side + Σ q).
    beta = p_below.gather(-1, last) / (rejected + q_below.gather(-1, last))
    return beta.squeeze(-1).clamp_min(1 - alpha)


# Acceptance of tokens that the large model finds good enough, whatever the drafter thought of them. None of it is lossless.


def distance_rollback(threshold: float, bonus: BonusToken = BonusToken.TARGET) -> AcceptanceRule:
    """Accept y while -log p(y) is at most the rollback threshold, else take the large model's token (BiLD, section 3.4).

    Args:
        threshold: The rollback threshold, in nats.
        bonus: What follows a fully accepted draft.
    """
    return bounded_rule(GreedyAcceptance(threshold, keep_agreed=False), bonus)


def within_margin(margin: float) -> AcceptanceRule:
    """Accept x where p(x) ≥ max p - m, 0 ≤ m < 1: the large model would lose at most m of probability by it.

    Greedy decoding is the speculative cascade with the deferral rule TokenV2, except for the bonus token.
    """
    return bounded_rule(GreedyAcceptance(-1.0, keep_agreed=True, max_gap=margin))
