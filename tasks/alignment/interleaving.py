"""Interleaved sampling: the drafter writes, and the large model replaces what it holds too unlikely (Xu et al., 2024)."""

from __future__ import annotations

from torch import Tensor

from tasks.decoding.acceptance_rules import AcceptanceResult, AcceptanceRule, BonusToken
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import fixed_window
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SpeculativeSettings


def top_k_rule(top_k: int) -> AcceptanceRule:
    """Keeps a token while it is among the `top_k` likeliest of p, of equals each; else draws one from p in its place.

    No token of p's follows a draft that is kept whole: the drafter goes on by itself (speculative knowledge distillation,
    Xu et al., 2024, Algorithm 1). A token x so has the probability q(x) where it is among them, and p(x) times what q gives
    to all others is added to it.
    """

    def apply(tokens: Tensor, _: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        least = p.logits.topk(min(top_k, p.logits.shape[-1]), dim=-1).values[..., -1]
        return AcceptanceResult(probability(p.logits, tokens) >= least, p)

    return AcceptanceRule(apply, bonus=BonusToken.NONE)


def interleaved(pair: Pair, request: Request, top_k: int) -> SpeculativeLoop:
    """Interleaved sampling as a method of the one loop; how long its drafts are changes only how soon it is done."""
    source = TokenSource(request.seed)
    return fixed_window(pair, SpeculativeSettings(), request.sampling, source, top_k_rule(top_k))
