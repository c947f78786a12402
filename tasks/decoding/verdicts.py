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

from tasks.decoding.decoder import Keep
from tasks.decoding.distributions import Block, probability
from tasks.decoding.readings import Reading
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


Stays = Callable[[Any, Reading, Reading], Any]
"""(drafted tokens, q, p) to whether each stays: tensors (rows, n) of blocks, or one token and two noted readings."""


def large(q: Block, p: Block) -> Block:
    """The large model's own distribution."""
    return p


def likeliest(q: Reading, p: Reading) -> int:
    """The large model's own token."""
    token: int = p.best
    return token


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
    stays: Stays | None = None
    """The same rule for greedy decoding, whatever its form; the first token that does not stay gives way to p's likeliest."""
    follows: Callable[[Reading, Reading], int] = likeliest
    """`final` for greedy decoding: the token itself, from the readings of one position."""


def certain(stays: Stays, final: Target | None = large, greedy: Keep | None = None) -> AcceptanceRule:
    """A rule that leaves nothing to chance: what does not stay gives way to a token of p."""
    return AcceptanceRule(lambda tokens, q, p: Verdict(stays(tokens, q, p), p), final, greedy=greedy, stays=stays)


def toward(
    target: Target,
    *,
    final_reads_q: bool = True,
    stays: Stays | None = None,
    follows: Callable[[Reading, Reading], int] | None = None,
    greedy: Keep | None = None,
) -> AcceptanceRule:
    """Keeps x with probability min(1, π(x)/q(x)), else draws from norm(max(0, π - q)) (SpecCascade, Algorithm 4).

    The emitted token follows π = T(q, p) exactly; with π = p this is speculative sampling (SD, Algorithm 1 and A.1).

    Args:
        target: T(q, p).
        final_reads_q: Whether it reads q, so that the token after a whole draft costs one more run of the drafter.
        stays: What keeping comes to where q and p are one-hot; no distribution is written out then.
        follows: The token after a whole draft, from the readings, where that is not p's own.
        greedy: The rule in numbers, where it has that form.
    """

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        if stays is not None and p.sampling.greedy:
            return Verdict(stays(tokens, q, p), p)
        wanted = law_dist(target(q, p))
        return Verdict(acceptance(wanted, q.dist, tokens), left_over(wanted - q.dist, wanted))

    return AcceptanceRule(judge, target, final_reads_q, greedy, stays, likeliest if follows is None else follows)


def acceptance(wanted: Tensor, drafted: Tensor, tokens: Tensor) -> Tensor:
    """min(1, wanted(x) / drafted(x)) of the tokens x, which were drawn from `drafted`: (rows, n)."""
    return (probability(wanted, tokens) / probability(drafted, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)


def left_over(difference: Tensor, otherwise: Tensor) -> Tensor:
    """The positive part; where the two differ by rounding alone nothing is left, and `otherwise` itself is what was meant."""
    residual = difference.clamp_min(0.0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, otherwise)


def _agreed(tokens: Any, q: Reading, p: Reading) -> Any:
    return p.best == tokens


speculative = toward(large, final_reads_q=False, stays=_agreed, greedy=Keep(distance=-1.0, agreed=True))
"""Speculative sampling: the emitted token follows p; with one-hot distributions it is the large model's argmax."""


def distance_rollback(settings: BildSettings, final: Target | None = large) -> AcceptanceRule:
    """Keeps y while -log p(y) is at most the rollback threshold, else takes the large model's token (BiLD, section 3.4)."""

    def stays(tokens: Any, q: Reading, p: Reading) -> Any:
        near = p.surprisal(tokens) <= settings.rollback_threshold
        return near | (p.best == tokens) if settings.keep_agreed else near

    return certain(stays, final, Keep(settings.rollback_threshold, settings.keep_agreed))


keep_all = certain(lambda tokens, q, p: tokens == tokens, greedy=Keep(math.inf, agreed=False))
"""Nothing is checked; the token after the draft comes from the large model (SpecCascade, token cascades)."""
