"""Every method with settings that are small enough to enumerate, and the law of its texts."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.decoding.distributions import TokenSource
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods import cascades
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.speculative import (
    ConfidentSettings,
    LenientSettings,
    LossySettings,
    MarginSettings,
    SpeculativeSettings,
)
from tests import laws
from tests.distributions import SequenceDistribution, model_distribution
from tests.laws import Models

INFINITY = float("inf")
SAMPLINGS = {
    "plain": SamplingSettings(temperature=1.0),
    "top-k": SamplingSettings(temperature=0.8, top_k=2),
    "top-p": SamplingSettings(temperature=1.3, top_p=0.8),
    "all three": SamplingSettings(temperature=1.2, top_k=3, top_p=0.85),
}
Law = Callable[[Models, int], SequenceDistribution]


def of_large(models: Models, limit: int) -> SequenceDistribution:
    """The law of a lossless method."""
    return model_distribution(models.large, models.sampling, limit)


def of_small(models: Models, limit: int) -> SequenceDistribution:
    return model_distribution(models.small, models.sampling, limit)


@dataclass(frozen=True)
class Case:
    """A method, its settings and the law of its texts."""

    method: str
    settings: Any
    law: Law = of_large
    sampling: str = "plain"
    limit: int = 3
    drafting: SamplingSettings | None = None
    """How drafted tokens are chosen, if not as all."""

    def request(self, draws: TokenSource | None = None, seed: int = 0) -> Request:
        return Request(self.limit, SAMPLINGS[self.sampling], seed, draws, self.drafting)


def speculative(drafter: str, draft_length: int, sampling: str, limit: int = 3) -> Case:
    return Case("speculative", SpeculativeSettings(drafter=drafter, draft_length=draft_length), sampling=sampling, limit=limit)


def windows(emit: laws.Emit, draft_length: int) -> Law:
    return lambda models, limit: laws.by_windows(emit, models, draft_length, limit)


def bild(sampling: str = "plain", **given: Any) -> Case:
    settings = BildSettings(**given)
    return Case("bild", settings, functools.partial(laws.bild, settings), sampling, limit=4)


def cascade(rule: str, alpha: float, sampling: str, limit: int = 3) -> Case:
    settings = cascades.SpeculativeCascadeSettings(rule=rule, deferral_cost=alpha, draft_length=2)
    return Case("speculative_cascade", settings, functools.partial(laws.cascade, rule, alpha), sampling, limit)


def token_cascade(rule: str, cost: float, sampling: str) -> Case:
    settings = cascades.TokenCascadeSettings(rule=rule, deferral_cost=cost, max_draft=2)
    return Case("token_cascade", settings, functools.partial(laws.token_cascade, settings), sampling, limit=4)


def diff_oracle(rule: str, cost: float, sampling: str) -> Case:
    settings = cascades.DiffOracleSettings(rule=rule, deferral_cost=cost)
    return Case("diff_oracle", settings, functools.partial(laws.diff_oracle, settings), sampling, limit=4)


def sequential(confidence: str, cost: float) -> Case:
    settings = cascades.SequenceCascadeSettings(confidence=confidence, deferral_cost=cost)
    return Case("sequence_cascade", settings, functools.partial(laws.sequence_cascade, settings), "top-p")


CASES = {
    "vanilla_large": Case("vanilla_large", VanillaSettings(), sampling="all three"),
    "vanilla_small": Case("vanilla_small", VanillaSettings(), of_small, "all three"),
    **{f"speculative {name}": speculative("small", 2, name) for name in SAMPLINGS},
    "speculative, one": speculative("small", 1, "plain"),
    "speculative, three": speculative("small", 3, "all three", 4),
    "speculative, truncated drafts": dataclasses.replace(speculative("small", 2, "plain"), drafting=SAMPLINGS["top-k"]),
    "speculative, greedy drafts": dataclasses.replace(speculative("small", 2, "top-p"), drafting=SamplingSettings()),
    **{f"speculative {drafter}": speculative(drafter, 2, "top-p") for drafter in ("unigram", "bigram", "random")},
    "speculative copy": speculative("copy", 3, "plain", 4),
    "speculative suffix": speculative("suffix", 3, "plain", 4),
    "confident": Case("speculative_confident", ConfidentSettings(max_draft=3, stop_below=0.5), sampling="top-p", limit=4),
    "confident bigram": Case(
        "speculative_confident", ConfidentSettings(drafter="bigram", max_draft=3, stop_below=0.5), limit=4
    ),
    "lenient": Case(
        "speculative_lenient", LenientSettings(lenience=0.5, draft_length=2), windows(laws.leniently(0.5), 2), "top-p"
    ),
    "lossy": Case(
        "speculative_lossy", LossySettings(lossiness=0.4, draft_length=2), windows(laws.lossily(0.4, lambda q, p: 1.0), 2)
    ),
    "lossy, tuned": Case(
        "speculative_lossy",
        LossySettings(lossiness=0.6, tuned=True, draft_length=2),
        windows(laws.lossily(0.6, lambda q, p: laws.bisected(q, p, 0.6)), 2),
    ),
    "margin": Case("speculative_margin", MarginSettings(margin=0.15, draft_length=2), windows(laws.by_margin(0.15), 2)),
    "chow": cascade("chow", 0.4, "plain"),
    "chow_log": cascade("chow_log", 0.6, "top-p"),
    "diff": cascade("diff", 0.05, "all three"),
    "diff_log": cascade("diff_log", 0.1, "plain"),
    "opt": cascade("opt", 0.2, "top-p"),
    "opt_log": cascade("opt_log", 0.3, "plain"),
    "token_v1": cascade("token_v1", 0.2, "top-p"),
    "token_v2": cascade("token_v2", 0.2, "plain"),
    "token_v3": cascade("token_v3", 0.5, "all three"),
    "bild*": cascade("bild", 1.0, "top-p"),
    "bild": bild(fallback_threshold=0.5, rollback_threshold=1.0, max_draft=2),
    "bild, fixed window": bild("top-p", fallback_threshold=0.0, rollback_threshold=0.7, max_draft=3),
    "bild, no rollback": bild("all three", fallback_threshold=0.55, rollback_threshold=INFINITY, max_draft=2),
    "bild_oracle": Case("bild_oracle", BildOracleSettings(rollback_threshold=1.0), functools.partial(laws.bild_oracle, 1.0)),
    "token_cascade, chow": token_cascade("chow", 0.45, "top-p"),
    "token_cascade, chow_log": token_cascade("chow_log", 0.7, "all three"),
    "diff_oracle, diff": diff_oracle("diff", 0.05, "all three"),
    "diff_oracle, diff_log": diff_oracle("diff_log", 0.1, "top-p"),
    "sequence_cascade, mean": sequential("mean", 0.55),
    "sequence_cascade, sum": sequential("sum", 0.8),
}
_SAMPLED_IN_KERNEL = {
    *("vanilla_large", "vanilla_small", "bild", "speculative_cascade", "token_cascade", "sequence_cascade"),
    *("speculative", *(f"speculative_{one}" for one in ("lenient", "lossy", "margin", "confident"))),
}
IN_KERNEL = {
    name: case
    for name, case in CASES.items()
    if case.method in _SAMPLED_IN_KERNEL and getattr(case.settings, "drafter", "small") == "small"
}
"""Those whose drafter and rule the compiled kernel has."""
LONG_CASES = {
    name: dataclasses.replace(CASES[name], settings=dataclasses.replace(CASES[name].settings, **longer), limit=5, law=law)
    for name, longer, law in (
        ("speculative plain", {"draft_length": 4}, of_large),
        ("speculative bigram", {"draft_length": 4}, of_large),
        ("speculative random", {"draft_length": 3}, of_large),
        ("speculative suffix", {"draft_length": 4}, of_large),
        ("confident", {"max_draft": 4}, of_large),
        ("lenient", {"draft_length": 4}, windows(laws.leniently(0.5), 4)),
        ("margin", {"draft_length": 4}, windows(laws.by_margin(0.15), 4)),
        ("lossy", {"draft_length": 4}, windows(laws.lossily(0.4, lambda q, p: 1.0), 4)),
        ("opt", {"draft_length": 4}, CASES["opt"].law),
        ("token_v3", {"draft_length": 4}, CASES["token_v3"].law),
        ("bild", {}, CASES["bild"].law),
        ("token_cascade, chow_log", {}, CASES["token_cascade, chow_log"].law),
    )
}
NOT_ENUMERATED = {
    "beam_large": "it draws nothing; test_beams.py compares its tokens with a plain search",
    "speculative_beam": "it draws nothing; test_beams.py compares its tokens with beam search",
    "calm": "its law depends on hidden states of earlier exits; test_early_exit.py compares it with CALM without caches",
}
"""Methods without an enumeration, and why."""
WITH_T5 = ("early_layer", "heads")
"""Drafters that read a transformer's layers; a test of their own enumerates them."""
