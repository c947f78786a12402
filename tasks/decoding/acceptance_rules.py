"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says, for each drafted token, with which probability it is kept and what to draw from where it is not; and what the
token after a fully kept draft comes from. The loop does the rest, the same for every rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.settings import BildSettings
from tasks.decoding.token_statistics import TokenStatistics

_SMALLEST = torch.finfo(torch.float32).tiny


TokenDistribution = PredictionBlock | Tensor
"""What a token is drawn from at each position: a model's own `dist`, which need not be written out to take the likeliest
token from it, or a distribution (rows, positions, vocabulary)."""


def token_probabilities(law: TokenDistribution) -> Tensor:
    """(rows, positions, vocabulary)."""
    return law.dist if isinstance(law, PredictionBlock) else law


@dataclass(slots=True)
class AcceptanceResult:
    """What an acceptance rule decides on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is kept, given that all before it were; or bool, where it is certain."""
    residual: TokenDistribution
    """What the token comes from that replaces the first one not kept."""

    @property
    def residual_probabilities(self) -> Tensor:
        """`otherwise`, written out: (rows, n, vocabulary); rows need not be normalised."""
        return token_probabilities(self.residual)


AcceptanceFunction = Callable[[Tensor, PredictionBlock, PredictionBlock], AcceptanceResult]
"""(drafted tokens (rows, n), q at those positions, p at those positions) to a verdict; n is at least 1."""

TargetFunction = Callable[[PredictionBlock, PredictionBlock], TokenDistribution]
"""(q, p) at the same positions to what a token follows there."""


AcceptMask = Callable[[Any, TokenStatistics, TokenStatistics], Any]
"""(drafted tokens, q, p) to whether each stays: tensors (rows, n) of blocks, or one token and two noted readings."""


def target_distribution(q: PredictionBlock, p: PredictionBlock) -> PredictionBlock:
    """The large model's own distribution."""
    return p


def target_argmax(q: TokenStatistics, p: TokenStatistics) -> int:
    """The large model's own token."""
    token: int = p.best
    return token


@dataclass(frozen=True)
class AcceptanceRule:
    """What is kept of a draft, and what follows it."""

    apply: AcceptanceFunction
    bonus: TargetFunction | None = target_distribution
    """Gives the token after a fully kept draft; where it is none, no token follows and the next draft begins."""
    bonus_reads_q: bool = False
    """Whether `final` needs the drafter's prediction after its last token: one more run of the drafter."""
    greedy: GreedyAcceptance | None = None
    """The same rule in numbers, for greedy decoding, where it has that form; a checked draft is followed by p's likeliest."""
    accept_mask: AcceptMask | None = None
    """The same rule for greedy decoding, whatever its form; the first token that does not stay gives way to p's likeliest."""
    greedy_bonus: Callable[[TokenStatistics, TokenStatistics], int] = target_argmax
    """`final` for greedy decoding: the token itself, from the readings of one position."""


def deterministic_rule(
    accept_mask: AcceptMask, bonus: TargetFunction | None = target_distribution, greedy: GreedyAcceptance | None = None
) -> AcceptanceRule:
    """A rule that leaves nothing to chance: what does not stay gives way to a token of p."""
    return AcceptanceRule(
        lambda tokens, q, p: AcceptanceResult(accept_mask(tokens, q, p), p), bonus, greedy=greedy, accept_mask=accept_mask
    )


def match_target(
    target: TargetFunction,
    *,
    bonus_reads_q: bool = True,
    accept_mask: AcceptMask | None = None,
    greedy_bonus: Callable[[TokenStatistics, TokenStatistics], int] | None = None,
    greedy: GreedyAcceptance | None = None,
) -> AcceptanceRule:
    """Keeps x with probability min(1, π(x)/q(x)), else draws from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).

    Args:
        target: T(q, p).
        bonus_reads_q: Whether it reads q, so that the token after a whole draft costs one more run of the drafter.
        stays: What keeping comes to where q and p are one-hot; no distribution is written out then.
        follows: The token after a whole draft, from the readings, where that is not p's own.
        greedy: The rule in numbers, where it has that form.
    """

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        if accept_mask is not None and p.sampling.greedy:
            return AcceptanceResult(accept_mask(tokens, q, p), p)
        wanted = token_probabilities(target(q, p))
        return AcceptanceResult(acceptance_probability(wanted, q.dist, tokens), positive_residual(wanted - q.dist, wanted))

    return AcceptanceRule(
        apply, target, bonus_reads_q, greedy, accept_mask, target_argmax if greedy_bonus is None else greedy_bonus
    )


def acceptance_probability(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def positive_residual(difference: Tensor, fallback: Tensor) -> Tensor:
    """The positive part; where the two differ by rounding alone nothing is left, and `fallback` itself is what was meant."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, fallback)


def _agreed(tokens: Any, q: TokenStatistics, p: TokenStatistics) -> Any:
    return p.best == tokens


speculative_sampling = match_target(
    target_distribution, bonus_reads_q=False, accept_mask=_agreed, greedy=GreedyAcceptance(max_surprisal=-1.0, keep_agreed=True)
)
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's argmax."""


def distance_rollback(settings: BildSettings, bonus: TargetFunction | None = target_distribution) -> AcceptanceRule:
    """Keeps y while -log p(y) is at most the rollback threshold, else takes the large model's token (BiLD, section 3.4)."""

    def accept_mask(tokens: Any, q: TokenStatistics, p: TokenStatistics) -> Any:
        near = p.surprisal(tokens) <= settings.rollback_threshold
        return near | (p.best == tokens) if settings.keep_agreed else near

    return deterministic_rule(accept_mask, bonus, GreedyAcceptance(settings.rollback_threshold, settings.keep_agreed))


accept_all = deterministic_rule(lambda tokens, q, p: tokens == tokens, greedy=GreedyAcceptance(math.inf, keep_agreed=False))
"""Nothing is checked; the token after the draft comes from the large model (SpecCascade, token cascades)."""
