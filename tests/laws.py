"""The distribution of each method's whole texts, as the papers describe the method, by recursion over the text.

Nothing here reads the code that is tested: probabilities come from `tests.distributions`, in float64.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import DiffOracleSettings, SequenceCascadeSettings, TokenCascadeSettings
from tests.distributions import SequenceDistribution, continued, dist, model_distribution, scores, sequence_distribution
from tests.toys import END, START, Predict, Prefix


@dataclass(frozen=True)
class Models:
    """Two models and how tokens are sampled from them."""

    small: Predict
    large: Predict
    sampling: SamplingSettings

    def q(self, text: Prefix) -> np.ndarray:
        return dist(self.small, text, self.sampling)

    def p(self, text: Prefix) -> np.ndarray:
        return dist(self.large, text, self.sampling)

    def q_scores(self, text: Prefix) -> np.ndarray:
        return scores(self.small, text)

    def p_scores(self, text: Prefix) -> np.ndarray:
        return scores(self.large, text)


Emit = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(q, p, scores of q, of p) at a drafted position to the probabilities that each token is accepted, and that it replaces."""


def leniently(lenience: float) -> Emit:
    """Lenience l (SD, A.5)."""
    return lambda q, p, *_: replaced(np.minimum(q, p / lenience), np.maximum(0, p - lenience * q))


def lossily(alpha: float, beta: Callable[[np.ndarray, np.ndarray], float]) -> Emit:
    """Lossy acceptance (SpecCascade, section 2)."""
    return lambda q, p, *_: replaced(np.minimum(q, p / (1 - alpha)), np.maximum(0, p / beta(q, p) - q))


def by_margin(margin: float) -> Emit:
    """Tokens that lose at most a margin of probability."""
    return lambda q, p, _, scores: replaced(q * (scores >= scores.max() - margin), p)


def replaced(kept: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is kept of a drafted position, and the residual with the probability that is left."""
    return kept, (1 - kept.sum()) * residual / residual.sum() if kept.sum() < 1 - 1e-12 else 0 * residual


def bisected(q: np.ndarray, p: np.ndarray, alpha: float) -> float:
    """β by bisection of its inverse."""
    wanted = np.maximum(0, q - p / (1 - alpha)).sum()
    low, high = 0.0, 1 / (1 - alpha)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(0, middle * p - q).sum() < wanted else (low, middle)
    return 1 / high


def by_windows(emit: Emit, models: Models, draft_length: int, limit: int) -> SequenceDistribution:
    """Texts where `emit` decides on drafted tokens and p gives the bonus token."""

    distribution: SequenceDistribution = defaultdict(float)

    def branch(text: Prefix, probability: float, shares: np.ndarray, left: int | None) -> None:
        for longer, share in continued(text, shares):
            grow(longer, probability * share, left)

    def grow(text: Prefix, probability: float, left: int | None) -> None:
        room = limit - (len(text) - 1)
        if room == 0 or text[-1] == END:
            distribution[text[1:]] += probability
            return
        left = min(draft_length, room - 1) if left is None else left
        if left == 0:
            branch(text, probability, models.p(text), None)
            return
        kept, put = emit(models.q(text), models.p(text), models.q_scores(text), models.p_scores(text))
        branch(text, probability, kept, left - 1)
        branch(text, probability, put, None)

    grow((START,), 1.0, None)
    return distribution


def cascade_shares(rule: str, alpha: float, scores: Sequence[Any], dists: Sequence[Any]) -> np.ndarray:
    """π of a speculative cascade at one position as the paper writes it, token by token; (q, p) of scores and of dists."""
    (q, p), (q_dist, p_dist) = scores, dists
    tokens = range(len(q))
    mean_surprisal = sum(_times_surprisal(q[v], p[v]) for v in tokens)
    apart = sum(max(0.0, p_dist[v] - q_dist[v]) for v in tokens)
    whole = {
        "chow": max(q) < 1 - alpha,
        "chow_log": nats(q) > alpha,
        "diff": max(q) < max(p) - alpha,
        "diff_log": nats(p) < nats(q) - alpha,
        "opt": max(q) < max(p) - alpha * apart,
        "opt_log": nats(p) < nats(q) - alpha * apart,
        "bild": mean_surprisal > alpha,
    }
    if rule in whole:
        return np.array(p_dist if whole[rule] else q_dist)
    unfit = {
        "token_v1": [q[v] < max(p) - alpha for v in tokens],
        "token_v2": [p[v] < max(p) - alpha for v in tokens],
        "token_v3": [p[v] < (1 - alpha) * max(p) for v in tokens],
    }[rule]
    spread = sum(q_dist[v] for v in tokens if unfit[v])
    return np.array([(0 if unfit[v] else q_dist[v]) + p_dist[v] * spread for v in tokens])


def _times_surprisal(weight: float, probability: float) -> float:
    if weight == 0:
        return 0.0
    return -weight * math.log(probability) if probability > 0 else math.inf


def nats(probabilities: Any) -> float:
    """Entropy."""
    return -math.fsum(one * math.log(one) for one in probabilities if one > 0)


def cascade(rule: str, alpha: float, models: Models, limit: int) -> SequenceDistribution:
    """A speculative cascade: each token from π, wherever it stands in a draft."""

    @functools.cache
    def shares(text: Prefix) -> np.ndarray:
        both_scores, both = (models.q_scores(text), models.p_scores(text)), (models.q(text), models.p(text))
        return cascade_shares(rule, alpha, both_scores, both)

    return sequence_distribution(shares, limit)


def diff_oracle(settings: DiffOracleSettings, models: Models, limit: int) -> SequenceDistribution:
    """Algorithm 3: from p if δ = 1, otherwise from q; δ reads untruncated scores."""

    def shares(text: Prefix) -> np.ndarray:
        q, p, cost = models.q_scores(text), models.p_scores(text), settings.deferral_cost
        deferred = {"diff": q.max() < p.max() - cost, "diff_log": nats(p) < nats(q) - cost}[settings.rule]
        return models.p(text) if deferred else models.q(text)

    return sequence_distribution(shares, limit)


def bild_oracle(threshold: float, models: Models, limit: int) -> SequenceDistribution:
    """A token of q that is too unlikely under p is replaced by a draw from p."""

    def shares(text: Prefix) -> np.ndarray:
        q, replaced = models.q(text), models.p_scores(text) < math.exp(-threshold)
        return np.asarray(np.where(replaced, 0, q) + q[replaced].sum() * models.p(text))

    return sequence_distribution(shares, limit)


def token_cascade(settings: TokenCascadeSettings, models: Models, limit: int) -> SequenceDistribution:
    """The small model until it is unsure or has written `max_draft` tokens in a row, then one token of the large one."""

    @functools.cache
    def waiting(text: Prefix) -> int:
        """Number of small tokens since the last large one."""
        return 0 if len(text) == 1 or asks_large(text[:-1]) else waiting(text[:-1]) + 1

    def asks_large(text: Prefix) -> bool:
        q, cost = models.q_scores(text), settings.deferral_cost
        unsure = {"chow": q.max() < 1 - cost, "chow_log": nats(q) > cost}[settings.rule]
        return bool(unsure or waiting(text) == settings.max_draft)

    return sequence_distribution(lambda text: models.p(text) if asks_large(text) else models.q(text), limit)


def sequence_cascade(settings: SequenceCascadeSettings, models: Models, limit: int) -> SequenceDistribution:
    """Texts of q that are confident enough; the remaining mass is distributed as p, independently of q."""
    first = model_distribution(models.small, models.sampling, limit)
    anew = model_distribution(models.large, models.sampling, limit)

    def sure(text: Prefix) -> bool:
        logs = np.log([models.q_scores((START, *text[:position]))[token] for position, token in enumerate(text)])
        total = {"sum": logs.sum(), "mean": logs.mean()}
        return bool(math.exp(total[settings.confidence]) >= 1 - settings.deferral_cost)

    kept = {text: probability for text, probability in first.items() if sure(text)}
    deferred = 1 - sum(kept.values())
    return {text: kept.get(text, 0.0) + deferred * anew.get(text, 0.0) for text in kept.keys() | anew.keys()}


def bild(settings: BildSettings, models: Models, limit: int) -> SequenceDistribution:
    """BiLD's Algorithm 1 if all draws are independent."""
    distribution: SequenceDistribution = defaultdict(float)

    def branch(text: Prefix, probability: float, unchecked: int, shares: np.ndarray) -> None:
        for longer, share in continued(text, shares):
            grow(longer, probability * share, unchecked)

    def rejected(text: Prefix, token: int) -> bool:
        with np.errstate(divide="ignore"):
            return bool(-np.log(models.p_scores(text)[token]) > settings.rollback_threshold)

    def grow(text: Prefix, probability: float, unchecked: int) -> None:
        if len(text) - 1 == limit or text[-1] == END:
            distribution[text[1:]] += probability
            return
        confident = models.q_scores(text).max() > settings.fallback_threshold
        if confident and len(text) - unchecked < settings.max_draft:
            branch(text, probability, unchecked, models.q(text))
            return
        for position in range(unchecked, len(text)):
            if rejected(text[:position], text[position]):
                branch(text[:position], probability, position + 1, models.p(text[:position]))
                return
        branch(text, probability, len(text) + 1, models.p(text))

    grow((START,), 1.0, 1)
    return distribution
