"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says, for each drafted token, with which probability it is kept and what to draw from where it is not; and what the
token after a fully kept draft comes from. The loop does the rest, the same for every rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.decoder import Keep
from tasks.decoding.distributions import Block, probability
from tasks.decoding.settings import BildSettings

_SMALLEST = torch.finfo(torch.float32).tiny


Law = Block | Tensor
"""What a token is drawn from at each position: a model's own `dist`, which need not be written out to take the likeliest
token from it, or a distribution (rows, positions, vocabulary)."""


def law_dist(law: Law) -> Tensor:
    """(rows, positions, vocabulary)."""
    return law.dist if isinstance(law, Block) else law


@dataclass(slots=True)
class Verdict:
    """What an acceptance rule decides on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is kept, given that all before it were; or bool, where it is certain."""
    otherwise: Law
    """What the token comes from that replaces the first one not kept."""

    @property
    def replacement(self) -> Tensor:
        """`otherwise`, written out: (rows, n, vocabulary); rows need not be normalised."""
        return law_dist(self.otherwise)


Judge = Callable[[Tensor, Block, Block], Verdict]
"""(drafted tokens (rows, n), q at those positions, p at those positions) to a verdict; n is at least 1."""

Target = Callable[[Block, Block], Law]
"""(q, p) at the same positions to what a token follows there."""


def large(q: Block, p: Block) -> Block:
    """The large model's own distribution."""
    return p


@dataclass(frozen=True)
class AcceptanceRule:
    """What is kept of a draft, and what follows it."""

    judge: Judge
    final: Target | None = large
    """Gives the token after a fully kept draft; where it is none, no token follows and the next draft begins."""
    final_reads_q: bool = False
    """Whether `final` needs the drafter's prediction after its last token: one more run of the drafter."""
    greedy: Keep | None = None
    """The same rule in numbers, for greedy decoding, where it has that form; a checked draft is followed by p's likeliest."""


def toward(target: Target, *, final_reads_q: bool = True) -> AcceptanceRule:
    """Keeps x with probability min(1, π(x)/q(x)), else draws from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).
    """

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        law = target(q, p)
        if law is p and p.sampling.greedy:  # one-hot both: what follows is `min(1, 1 / 1)` or 0, without the vocabulary
            return Verdict(p.best == tokens, p)
        wanted = law_dist(law)
        return Verdict(acceptance(wanted, q.dist, tokens), left_over(wanted - q.dist, wanted))

    return AcceptanceRule(judge, target, final_reads_q)


def acceptance(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def left_over(difference: Tensor, otherwise: Tensor) -> Tensor:
    """The positive part; where the two differ by rounding alone nothing is left, and `otherwise` itself is what was meant."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, otherwise)


speculative = dataclasses.replace(toward(large, final_reads_q=False), greedy=Keep(distance=-1.0, agreed=True))
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's argmax."""


def distance_rollback(settings: BildSettings) -> AcceptanceRule:
    """Keeps y while -log p(y) is at most the rollback threshold, else takes the large model's token (BiLD, section 3.4)."""

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        kept = -probability(p.scores, tokens).log() <= settings.rollback_threshold
        if settings.keep_agreed:
            kept |= p.best == tokens
        return Verdict(kept, p)

    return AcceptanceRule(judge, greedy=Keep(settings.rollback_threshold, settings.keep_agreed))


def _keep(tokens: Tensor, q: Block, p: Block) -> Verdict:
    return Verdict(torch.ones_like(tokens, dtype=torch.float32), p)


keep_all = AcceptanceRule(_keep, greedy=Keep(math.inf, agreed=False))
"""Nothing is checked; the token after the draft comes from the large model (SpecCascade, token cascades)."""
