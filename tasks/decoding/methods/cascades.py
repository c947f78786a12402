"""Cascades and speculative cascades (Narasimhan et al., 2024): who answers, by a deferral rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import BLOCK, LONGEST, NATS, SHARES, Builder, DecodingMethod, Pair, Request, method, preset
from tasks.decoding.methods.baselines import SmallModelMethod, single_model_method
from tasks.decoding.methods.speculative import SpeculativeSettings, fixed_window
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Rows

INFINITY = float("inf")
CASCADE_BOUNDS = {
    "chow": (-1.0, 1.0),
    "chow_log": (-INFINITY, INFINITY),
    "diff": (-1.0, 1.0),
    "diff_log": (-INFINITY, INFINITY),
    "opt": (-INFINITY, INFINITY),
    "opt_log": (-INFINITY, INFINITY),
    "token_v1": (-1.0, 1.0),
    "token_v2": (-1.0, 1.0),
    "token_v3": (-1.0, 1.0),
    "bild": (0.0, INFINITY),
}
"""Smallest and largest α of each deferral rule: rules compare probabilities, entropies or (bild) a distance in nats.

At its smallest α a rule defers everywhere, which is speculative decoding. The paper varies α from 0 to 1 where probabilities
are compared (E.1); at 0 most of these rules still keep tokens of the small model. OPT multiplies α by D_TV, which may be small.
"""
CASCADE_RULES = tuple(CASCADE_BOUNDS)
_FIT = "-1 to 1 where probabilities are compared, any number where entropies are, in nats (_log)"


class _Deferring:
    """What the settings of all deferral rules check."""

    rule: str
    deferral_cost: float

    def validate(self) -> None:
        least, most = CASCADE_BOUNDS[self.rule]
        broken = f"deferral_cost is {self.deferral_cost}; with the rule {self.rule} it must be"
        if not self.deferral_cost >= least:
            raise ValueError(f"{broken} at least {least:g}")
        if not self.deferral_cost <= most:
            raise ValueError(f"{broken} at most {most:g}")


@settings
class SequenceCascadeSettings:
    """The small model answers; where it is not confident, the large model answers again (SpecCascade, equation 1)."""

    confidence: str = setting(
        "How the log-probabilities of the small model's tokens are combined.",
        default="mean",
        choices=("sum", "mean"),
    )
    deferral_cost: float = setting(
        "α: the large model answers where the confidence, as a probability, is below 1 - α.", default=0.5, ge=0, le=1
    )


@settings
class TokenCascadeSettings(_Deferring):
    """The small model while it is confident, then one large-model token; no verification (SpecCascade, Algorithm 2)."""

    rule: str = setting(
        "What the large model is asked by: chow, a top probability under 1 - α, or chow_log, an entropy above α.",
        default="chow",
        choices=("chow", "chow_log"),
    )
    deferral_cost: float = setting(
        f"α of the rule: {_FIT}. At the smallest the large model writes all.", default=0.5, infinite=True
    )
    max_draft: int = setting("Most small-model tokens in a row.", default=10, unit="tokens", ge=1, le=64)


@settings
class DiffOracleSettings(_Deferring):
    """Both models at every step; defer where the large one is more confident by more than α (SpecCascade, Algorithm 3)."""

    rule: str = setting(
        "How confidence is compared: diff, by top probabilities, max q < max p - α; diff_log, by entropies, H(p) < H(q) - α.",
        default="diff",
        choices=("diff", "diff_log"),
    )
    deferral_cost: float = setting(f"α of the rule: {_FIT}. The smallest always defers.", default=0.1, infinite=True)


@settings
class SpeculativeCascadeSettings(_Deferring, SpeculativeSettings):
    """Speculative cascades: speculative execution of a deferral rule (SpecCascade, Algorithm 5)."""

    rule: str = setting("The deferral rule T(q, p).", default="opt", choices=CASCADE_RULES)
    deferral_cost: float = setting(
        "α of the rule: -1 to 1 where it compares probabilities, at least 0 for bild, any number for opt and for entropies "
        "(_log). The smallest is speculative decoding; the paper varies probabilities from 0 to 1.",
        default=0.1,
        infinite=True,
    )


def sequence_confidence(log_probabilities: Sequence[float], settings: SequenceCascadeSettings) -> float:
    """Return the confidence in a whole answer: exp of the sum or mean of its tokens' log-probabilities (in nats).

    The sum is equation 1, q(x_m … x_{m+n}); the mean gives the geometric mean over tokens, independent of length.
    """
    total = math.fsum(log_probabilities)
    return math.exp(total / len(log_probabilities) if settings.confidence == "mean" else total)


@dataclass(frozen=True)
class SequenceCascade:
    """The small model answers every source; where it is not confident, the large model answers again (equation 1)."""

    small: DecodingMethod
    large: DecodingMethod
    settings: SequenceCascadeSettings

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one answer for each source; a large model's answer also counts the small model's runs and one fallback."""
        # 1. The small model answers every source, and records the log-probability of each of its tokens.
        first = self.small.run(sources, examples, limit)
        sure = [sequence_confidence(one.log_probabilities, self.settings) for one in first]
        deferred = [index for index, confidence in enumerate(sure) if confidence < 1 - self.settings.deferral_cost]
        answers = [Generation(one.tokens, one.proposers, one.counts) for one in first]
        if deferred:
            # 2. The large model answers again where the confidence is below 1 - α.
            again = self.large.run([sources[index] for index in deferred], [examples[index] for index in deferred], limit)
            for index, one in zip(deferred, again, strict=True):
                tried = Counts(small_steps=first[index].counts.small_steps, fallbacks=1)
                answers[index] = Generation(one.tokens, one.proposers, one.counts + tried)
        return answers


_E1 = "SpecCascade, E.1: α from 0 to 1; steps ours"
_TABLE_3 = "SpecCascade, Table 3 (appendix A); range and steps ours, in nats"


def _one_preset_a_rule(build: Builder) -> Builder:
    """Give the method below a preset of each deferral rule, by the rule's name."""
    # From the last to the first: `preset` puts each before those that are there.
    for rule in reversed(CASCADE_RULES):
        costs = NATS if rule == "bild" or rule.endswith("_log") else SHARES
        source = _E1 if costs is SHARES else "SpecCascade, E.1: α from 0 to 10 nats; steps ours" if rule == "bild" else _TABLE_3
        preset(rule, source, rule=(rule,), deferral_cost=costs, draft_length=BLOCK)(build)
    return build


@method("sequence_cascade", SequenceCascadeSettings, "Narasimhan et al., 2024, equation 1")
@preset("paper", "SpecCascade, equation 1 and E.1: α from 0 to 1; steps ours", confidence=("sum",), deferral_cost=SHARES)
@preset("mean", "ours: the same with the geometric mean over the tokens", confidence=("mean",), deferral_cost=SHARES)
def sequence_cascade(pair: Pair, settings: SequenceCascadeSettings, request: Request) -> DecodingMethod:
    again = dataclasses.replace(request, draws=request.source.deferred())
    small = SmallModelMethod(single_model_method(pair.small, request, scored=True))
    return SequenceCascade(small, single_model_method(pair.large, again), settings)


@method("token_cascade", TokenCascadeSettings, "Narasimhan et al., 2024, Algorithm 2 and Table 3")
@preset("paper", _E1, rule=("chow",), deferral_cost=SHARES, max_draft=LONGEST)
@preset("chow_log", _TABLE_3, rule=("chow_log",), deferral_cost=NATS, max_draft=LONGEST)
def token_cascade(pair: Pair, settings: TokenCascadeSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.loop import speculative_loop
    from tasks.decoding.rules import accept_all

    cost = settings.deferral_cost
    if settings.rule == "chow":
        # A draft stops at or under its threshold, the cascade only under 1 - α: the next number below is the same bound.
        under = math.nextafter(1 - cost, -math.inf)
        rule = DraftRule(window=settings.max_draft, fallback_threshold=under, ends_unverified=True)
    else:
        # ChowLog: defer before the token at whose position H(q) > α.
        rule = DraftRule(window=settings.max_draft, max_entropy=cost, ends_unverified=True)
    return speculative_loop(pair, "small", accept_all, rule, request)


@method("diff_oracle", DiffOracleSettings, "Narasimhan et al., 2024, Algorithm 3 and Table 3", oracle=True)
@preset("paper", "SpecCascade, Figure 1 and E.1: α from 0 to 1; steps ours", rule=("diff",), deferral_cost=SHARES)
@preset("diff_log", _TABLE_3, rule=("diff_log",), deferral_cost=NATS)
def diff_oracle(pair: Pair, settings: DiffOracleSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.cascades import oracle
    from tasks.decoding.loop import speculative_loop

    # γ = 1 and no bonus token: each turn asks both models for the same position.
    rule = oracle(settings.rule, settings.deferral_cost)
    return speculative_loop(pair, "small", rule, DraftRule(window=1), request)


@method("speculative_cascade", SpeculativeCascadeSettings, "Narasimhan et al., 2024, Algorithms 4 to 6")
@_one_preset_a_rule
def speculative_cascade(pair: Pair, settings: SpeculativeCascadeSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.cascades import cascade_rule

    return fixed_window(pair, settings, cascade_rule(settings.rule, settings.deferral_cost), request)
