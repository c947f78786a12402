"""Greedy acceptance in numbers, as its fields are documented, one token at a time."""

import random

import torch
from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance


def often_top(logits: Tensor, other: int, share: float, rng: random.Random) -> int:
    """Return the top-1 token of logits (vocabulary,) with probability `share`, else one of the next four or `other`."""
    chosen = rng.random()
    if chosen >= (1 + share) / 2:
        return other
    return int(logits.float().topk(5).indices[0 if chosen < share else rng.randrange(1, 5)])


def kept_by(logits: Tensor, drafted: list[int], rule: GreedyAcceptance) -> int:
    """Return how many drafted tokens a rule keeps; `logits` (draft and one more, vocabulary)."""
    scores = torch.softmax(logits.float(), -1)
    for position, (row, token) in enumerate(zip(scores, drafted, strict=False)):
        if not (keeps(row, token, rule) or (rule.keep_agreed and int(row.argmax()) == token)):
            return position
    return len(drafted)


def keeps(scores: Tensor, token: int, rule: GreedyAcceptance) -> bool:
    """Return whether a bound of the rule keeps a token at a position with these scores (vocabulary,)."""
    score, top = float(scores[token]), float(scores.max())
    surprisal = -float(scores[token].log())
    return surprisal <= rule.max_surprisal or score >= rule.min_share * top or top - score <= rule.max_gap
