"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says with which probability each drafted token is accepted, what to draw from in place of the first rejected one (the
residual), and what the bonus token after a fully accepted draft comes from. The loop does the rest, the same for every rule.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance, Pardon
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.settings import BildAuthorsSettings, BildSettings
from tasks.decoding.token_statistics import CachedStatistics, Mask, TokenIds, TokenStatistics

_SMALLEST = torch.finfo(torch.float32).tiny

TokenDistribution = PredictionBlock | Tensor
"""What a token is drawn from at each position: a model's own `dist`, which need not be written out to take its likeliest
token, or a distribution (rows, positions, vocabulary)."""


def token_probabilities(distribution: TokenDistribution) -> Tensor:
    """Return the distribution written out: (rows, positions, vocabulary)."""
    return distribution.dist if isinstance(distribution, PredictionBlock) else distribution


@dataclass(slots=True)
class AcceptanceResult:
    """A rule's decision on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is accepted, given that all before it were; or bool, where it is certain."""
    residual: TokenDistribution
    """The distribution of the token that replaces the first rejected one."""

    @property
    def residual_probabilities(self) -> Tensor:
        """`residual` written out: (rows, n, vocabulary); rows need not be normalised."""
        return token_probabilities(self.residual)


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
    """The rule's distribution T(q, p)."""


def target_distribution(q: PredictionBlock, p: PredictionBlock) -> PredictionBlock:
    """T(q, p) = p: the target model's own distribution."""
    return p


def target_argmax(q: CachedStatistics, p: CachedStatistics) -> int:
    """Return the target model's likeliest token."""
    return p.best


@dataclass(frozen=True, slots=True)
class GreedyDeferral:
    """A cascade's greedy deferral rule in numbers: a position defers to p where one of these bounds is crossed.

    A draft's tokens are accepted where their position does not defer, or where they are p's likeliest.
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


@dataclass(frozen=True)
class AcceptanceRule:
    """What is accepted of a draft, and what follows it."""

    apply: AcceptanceFunction
    bonus: BonusToken = BonusToken.TARGET
    target: TargetFunction = target_distribution
    """T(q, p), which the bonus token is drawn from where `bonus` is `RULE`."""
    bonus_reads_q: bool = False
    """Whether `target` needs the drafter's prediction after its last token: one more run of the drafter."""
    greedy: GreedyAcceptance | None = None
    """The rule for greedy decoding in numbers, where it has that form."""
    accept_mask: AcceptMask | None = None
    """The rule for greedy decoding in any form; the first rejected token gives way to p's likeliest."""
    greedy_bonus: Callable[[CachedStatistics, CachedStatistics], int] = target_argmax
    """The bonus token of greedy decoding, from the statistics of its position."""
    deferral: GreedyDeferral | None = None
    """A cascade's rule for greedy decoding in numbers; `bonus` is then `RULE`, and `bonus_reads_q` holds."""
    joint: bool = False
    """Whether the decision on a token depends on those behind it, so that `apply` takes drafts of one length at a time."""
    first_only: bool = False
    """Whether `accept_mask` decides by the first token that it rejects: where p's likeliest is that token, all stay."""
    pardon: Pardon | None = None
    """Which tokens stay although `apply` rejects them."""


def deterministic_rule(
    accept_mask: AcceptMask,
    bonus: BonusToken = BonusToken.TARGET,
    greedy: GreedyAcceptance | None = None,
    *,
    first_only: bool = False,
) -> AcceptanceRule:
    """Return a rule that draws nothing to decide; a token drawn from p replaces the first rejected one."""

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        result = masked(accept_mask, tokens, q, p)
        if first_only:
            result.accept = result.accept | first_rejected_agrees(result.accept, p.best == tokens)
        return result

    return AcceptanceRule(apply, bonus, greedy=greedy, accept_mask=accept_mask, first_only=first_only)


def first_rejected_agrees(accept: Tensor, agrees: Tensor) -> Tensor:
    """Return whether the first token that is not accepted agrees with p: bool (rows, 1), of two bool (rows, n)."""
    rejected = accept.logical_not()
    first = rejected & (rejected.cumsum(-1) == 1)
    return (first & agrees).any(-1, keepdim=True)


def next_accepted(accept: Tensor, window: int) -> Tensor:
    """Return whether the next `window` tokens behind each are there and accepted: bool (n,), of bool (n,)."""
    found = torch.zeros_like(accept)
    count = torch.nn.functional.pad(accept.long().cumsum(0), (1, 0))
    if len(accept) > window:
        found[:-window] = count[1 + window :] - count[1:-window] == window
    return found


def masked(accept_mask: AcceptMask, tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
    """Apply a mask to a block of tokens (rows, n); a token from p replaces the first rejected one."""
    return AcceptanceResult(cast(Tensor, accept_mask(tokens, q, p)), p)


def match_target(
    target: TargetFunction,
    *,
    bonus: BonusToken = BonusToken.RULE,
    bonus_reads_q: bool = True,
    accept_mask: AcceptMask | None = None,
    greedy_bonus: Callable[[CachedStatistics, CachedStatistics], int] = target_argmax,
    greedy: GreedyAcceptance | None = None,
) -> AcceptanceRule:
    """Accept x with probability min(1, π(x)/q(x)), else draw from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).

    Args:
        target: T(q, p).
        bonus: What the token after a fully accepted draft comes from.
        bonus_reads_q: Whether T reads q, so that this token costs one more run of the drafter.
        accept_mask: The rule where q and p are one-hot; greedy decoding then writes out no distribution.
        greedy_bonus: The bonus token of greedy decoding, where it is not p's likeliest.
        greedy: The rule in numbers, where it has that form.
    """

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        if accept_mask is not None and p.sampling.greedy:
            return masked(accept_mask, tokens, q, p)
        wanted = token_probabilities(target(q, p))
        return AcceptanceResult(acceptance_probability(wanted, q.dist, tokens), positive_residual(wanted - q.dist, wanted))

    return AcceptanceRule(apply, bonus, target, bonus_reads_q, greedy, accept_mask, greedy_bonus)


def acceptance_probability(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """Return min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def positive_residual(difference: Tensor, fallback: Tensor) -> Tensor:
    """Return the positive part of `difference`, or `fallback` where rounding leaves nothing positive."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, fallback)


def _is_target_argmax(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
    return p.best == tokens


speculative_sampling = match_target(
    target_distribution,
    bonus=BonusToken.TARGET,
    bonus_reads_q=False,
    accept_mask=_is_target_argmax,
    greedy=GreedyAcceptance(max_surprisal=-1.0, keep_agreed=True),
)
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's likeliest."""


def distance_rollback(settings: BildSettings, bonus: BonusToken = BonusToken.TARGET) -> AcceptanceRule:
    """Accept y while -log p(y) is at most the rollback threshold, else take the large model's token (BiLD, section 3.4)."""

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        near = p.surprisal(tokens) <= settings.rollback_threshold
        return near | (p.best == tokens) if settings.keep_agreed else near

    return deterministic_rule(accept_mask, bonus, GreedyAcceptance(settings.rollback_threshold, settings.keep_agreed))


def first_distance_rollback(settings: BildAuthorsSettings) -> AcceptanceRule:
    """Examine the first token with -log p(y) above the threshold alone, and keep the whole draft where p's likeliest is y.

    This is the rule of the authors' code of BiLD; Algorithm 1 examines every token of the draft.
    """

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return p.surprisal(tokens) <= settings.rollback_threshold

    numbers = GreedyAcceptance(settings.rollback_threshold, keep_agreed=False, first_only=True)
    return deterministic_rule(accept_mask, greedy=numbers, first_only=True)


accept_all = deterministic_rule(lambda tokens, q, p: tokens == tokens, greedy=GreedyAcceptance(math.inf, keep_agreed=False))
"""Every drafted token is accepted; the token after the draft comes from the large model (SpecCascade, token cascades)."""
