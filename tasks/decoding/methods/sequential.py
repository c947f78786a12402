"""Cascades without verification, and their oracle (Narasimhan et al., 2024, sections 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tasks.decoding.acceptance_rules import AcceptanceRule, BonusToken, accept_all, deterministic_rule
from tasks.decoding.cascade_rules import DEFERRALS, Deferral
from tasks.decoding.decoder import Rows
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.methods.vanilla import SmallModelMethod, single_model_method, small_model_method
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import DiffOracleSettings, SamplingSettings, SequenceCascadeSettings, TokenCascadeSettings
from tasks.decoding.turn import DraftRule


def sequence_confidence(log_probabilities: Sequence[float], settings: SequenceCascadeSettings) -> float:
    """Return the confidence in a whole answer: exp of the sum, mean or quantile of its tokens' log-probabilities (in nats).

    The sum is equation 1, q(x_m … x_{m+n}); the mean gives the geometric mean over tokens, independent of length; quantiles,
    interpolated between two tokens, are those of Gupta et al. (2024).
    """
    if settings.confidence == "quantile":
        return math.exp(np.quantile(log_probabilities, settings.quantile))
    total = math.fsum(log_probabilities)
    return math.exp(total / len(log_probabilities) if settings.confidence == "mean" else total)


@dataclass(frozen=True)
class SequenceCascade:
    """The small model answers every source; where it is not confident, the large model answers again (equation 1)."""

    small: SmallModelMethod
    large: DecodingMethod
    settings: SequenceCascadeSettings

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one answer for each source; a large model's answer also counts the small model's runs and one fallback."""
        first = self.small.run(sources, examples, limit)
        sure = [sequence_confidence(one.log_probabilities, self.settings) for one in first]
        deferred = [index for index, confidence in enumerate(sure) if confidence < 1 - self.settings.deferral_cost]
        answers = [Generation(one.tokens, one.proposers, one.counts) for one in first]
        if deferred:
            again = self.large.run([sources[index] for index in deferred], [examples[index] for index in deferred], limit)
            for index, one in zip(deferred, again, strict=True):
                tried = Counts(small_steps=first[index].counts.small_steps, fallbacks=1)
                answers[index] = Generation(one.tokens, one.proposers, one.counts + tried)
        return answers


class _SecondSource(TokenSource):
    """Independent draws: a deferred answer must not be sampled with the numbers whose result caused the deferral."""

    def __init__(self, source: TokenSource) -> None:
        super().__init__(source.seed)
        self._source = source

    def uniform(self, example: int, position: int, purpose: str) -> float:
        return self._source.uniform(example, position, f"deferred {purpose}")

    def draw(self, dist: Tensor, keys: Sequence[tuple[int, int, str]]) -> list[int]:
        return self._source.draw(dist, [(example, position, f"deferred {purpose}") for example, position, purpose in keys])


def _sequence_cascade(
    pair: Pair, settings: SequenceCascadeSettings, sampling: SamplingSettings, source: TokenSource
) -> DecodingMethod:
    small = small_model_method(pair, sampling, source, scored=True)
    return SequenceCascade(small, single_model_method(pair.large, sampling, _SecondSource(source)), settings)


def _token_cascade(
    pair: Pair, settings: TokenCascadeSettings, sampling: SamplingSettings, source: TokenSource
) -> DecodingMethod:
    cost = settings.deferral_cost
    if settings.rule == "chow":
        # A draft stops at or under its threshold, the cascade only under 1 - α: the next number below is the same bound.
        under = math.nextafter(1 - cost, -math.inf)
        rule = DraftRule(window=settings.max_draft, fallback_threshold=under, ends_unverified=True)
    else:
        rule = DraftRule(window=settings.max_draft, max_entropy=cost, entropy_falls_back=True, ends_unverified=True)
    return SpeculativeLoop(pair.large, accept_all, sampling, source, make_drafter("small", pair, sampling, source), rule)


def oracle(deferral: Deferral, alpha: float) -> AcceptanceRule:
    """Return the rule that draws from p where `deferral` defers, else from q: (1 - δ) q + δ p (Algorithm 3)."""

    return deterministic_rule(lambda tokens, q, p: deferral(q, p, alpha) ^ True, bonus=BonusToken.NONE)


def _diff_oracle(pair: Pair, settings: DiffOracleSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter, rule = make_drafter("small", pair, sampling, source), oracle(DEFERRALS[settings.rule], settings.deferral_cost)
    return SpeculativeLoop(pair.large, rule, sampling, source, drafter, DraftRule(window=1))


SPECS = (
    MethodSpec("sequence_cascade", "Narasimhan et al., 2024, equation 1", False, _sequence_cascade),
    MethodSpec("token_cascade", "Narasimhan et al., 2024, Algorithm 2 and Table 3", False, _token_cascade),
    MethodSpec("diff_oracle", "Narasimhan et al., 2024, Algorithm 3 and Table 3", False, _diff_oracle),
)
