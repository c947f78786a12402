"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says, for each drafted token, with which probability it is kept and what to draw from where it is not; and what the
token after a fully kept draft comes from. The loop does the rest, the same for every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.distributions import Block, probability
from tasks.decoding.settings import BildSettings

_SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Verdict:
    """What an acceptance rule decides on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is kept, given that all before it were."""
    replacement: Tensor
    """(rows, n, vocabulary): drawn from where the first token is not kept; rows need not be normalised."""


Judge = Callable[[Tensor, Block, Block], Verdict]
"""(drafted tokens (rows, n), q at those positions, p at those positions) to a verdict; n is at least 1."""

Target = Callable[[Block, Block], Tensor]
"""(q, p) at the same positions to the distribution that a token follows: (rows, positions, vocabulary)."""


def large(q: Block, p: Block) -> Tensor:
    """The large model's own distribution."""
    return p.dist


@dataclass(frozen=True)
class AcceptanceRule:
    """What is kept of a draft, and what follows it."""

    judge: Judge
    final: Target | None = large
    """Gives the token after a fully kept draft; where it is none, no token follows and the next draft begins."""
    final_reads_q: bool = False
    """Whether `final` needs the drafter's prediction after its last token: one more run of the drafter."""


def toward(target: Target, *, final_reads_q: bool = True) -> AcceptanceRule:
    """Keeps x with probability min(1, π(x)/q(x)), else draws from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).
    """

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        wanted = target(q, p)
        return Verdict(acceptance(wanted, q.dist, tokens), left_over(wanted - q.dist, wanted))

    return AcceptanceRule(judge, target, final_reads_q)


def acceptance(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def left_over(difference: Tensor, otherwise: Tensor) -> Tensor:
    """The positive part; where the two differ by rounding alone nothing is left, and `otherwise` itself is what was meant."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, otherwise)


speculative = toward(large, final_reads_q=False)
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's argmax."""


def distance_rollback(settings: BildSettings) -> AcceptanceRule:
    """Keeps y while -log p(y) is at most the rollback threshold, else takes the large model's token (BiLD, section 3.4)."""

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        kept = -probability(p.scores, tokens).log() <= settings.rollback_threshold
        if settings.keep_agreed:
            kept |= p.scores.argmax(-1) == tokens
        return Verdict(kept.float(), p.dist)

    return AcceptanceRule(judge)


def _keep(tokens: Tensor, q: Block, p: Block) -> Verdict:
    # The replacement is never read, so its softmax over the whole draft is saved.
    return Verdict(torch.ones_like(tokens, dtype=torch.float32), p.logits)


keep_all = AcceptanceRule(_keep)
"""Nothing is checked; the token after the draft comes from the large model (SpecCascade, token cascades)."""
