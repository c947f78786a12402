"""Interleaved sampling: the drafter generates, and the large model replaces its unlikely tokens (Xu et al., 2024)."""

from __future__ import annotations

from torch import Tensor

from tasks.decoding.distributions import PredictionBlock, TokenSource, probability
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import SpeculativeSettings, fixed_window
from tasks.decoding.rules import AcceptanceResult, AcceptanceRule, BonusToken


def top_k_rule(top_k: int) -> AcceptanceRule:
    """Accept a token that is among the `top_k` most likely of p, ties included; otherwise draw a token from p.

    There is no bonus token: after a fully accepted draft, the drafter continues (speculative knowledge distillation, Xu et al.,
    2024, Algorithm 1). A token x thus has the probability q(x) if it is among the top k, plus p(x) times the mass that q gives
    to tokens outside them.
    """

    def apply(tokens: Tensor, _: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        least = p.logits.topk(min(top_k, p.logits.shape[-1]), dim=-1).values[..., -1]
        return AcceptanceResult(probability(p.logits, tokens) >= least, p)

    return AcceptanceRule(apply, bonus=BonusToken.NONE)


def interleaved(pair: Pair, request: Request, top_k: int) -> SpeculativeLoop:
    """Interleaved sampling as a `SpeculativeLoop`; the draft length affects speed, not the distribution."""
    source = TokenSource(request.seed)
    return fixed_window(pair, SpeculativeSettings(), top_k_rule(top_k), request.sampling, source)
