"""Interleaved sampling: the drafter writes, and the large model replaces what it holds too unlikely (Xu et al., 2024)."""

from __future__ import annotations

from torch import Tensor

from tasks.decoding.distributions import Block, probability
from tasks.decoding.loop import Method
from tasks.decoding.methods.speculative import fixed_window
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SpeculativeSettings
from tasks.decoding.strategy import Pair, Request
from tasks.decoding.verdicts import AcceptanceRule, Verdict


def top_k_rule(top_k: int) -> AcceptanceRule:
    """Keeps a token while it is among the `top_k` likeliest of p, of equals each; else draws one from p in its place.

    No token of p's follows a draft that is kept whole: the drafter goes on by itself (speculative knowledge distillation,
    Xu et al., 2024, Algorithm 1). A token x so has the probability q(x) where it is among them, and p(x) times what q gives
    to all others is added to it.
    """

    def judge(tokens: Tensor, _: Block, p: Block) -> Verdict:
        least = p.logits.topk(min(top_k, p.logits.shape[-1]), dim=-1).values[..., -1]
        return Verdict(probability(p.logits, tokens) >= least, p)

    return AcceptanceRule(judge, final=None)


def interleaved(pair: Pair, request: Request, top_k: int) -> Method:
    """Interleaved sampling as a method of the one loop; how long its drafts are changes only how soon it is done."""
    source = TokenSource(request.seed)
    return fixed_window(pair, SpeculativeSettings(), request.sampling, source, top_k_rule(top_k))
