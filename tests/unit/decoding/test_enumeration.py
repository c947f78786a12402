"""Every sampled method writes each text with the probability of its law: all its random choices, enumerated by its own code."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.decoding.method import Pair
from tasks.decoding.registry import METHODS
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.settings import (
    CASCADE_RULES,
    DRAFTERS,
    TABLES,
    AdaptiveSettings,
    BildAuthorsSettings,
    BildOracleSettings,
    BildSettings,
    BlockSettings,
    ConfidentSettings,
    DiffOracleSettings,
    LenientSettings,
    LossySettings,
    MarginSettings,
    SamplingSettings,
    SequenceCascadeSettings,
    SpeculativeCascadeSettings,
    SpeculativeSettings,
    TokenCascadeSettings,
    TypicalSettings,
    VanillaSettings,
)
from tasks.models.extras import add_heads
from tests import laws
from tests.branching import BranchingSource, OpenNumber, enumerated, total_variation
from tests.distributions import SOURCE, SequenceDistribution, model_distribution
from tests.laws import Models
from tests.toys import END, START, Predict, Prefix, prefix_pair, random_table, whole_runs

INFINITY = float("inf")
PROMPT = (2, 3, 2, END)
TEXTS = [[2, 3, 2, END], [3, 2, 2, END], [2, 2, 3, 3, END]]
"""The calibration set of the table drafters."""
EXACT, SINGLE = 1e-10, 1e-6
"""Largest total variation from the law in float64 and in float32."""
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


def speculative(drafter: str, draft_length: int, sampling: str, limit: int = 3) -> Case:
    return Case("speculative", SpeculativeSettings(drafter=drafter, draft_length=draft_length), sampling=sampling, limit=limit)


def windows(emit: laws.Emit, draft_length: int) -> Law:
    return lambda models, limit: laws.by_windows(emit, models, draft_length, limit)


def bild(sampling: str = "plain", **given: Any) -> Case:
    settings = BildSettings(**given)
    return Case("bild", settings, functools.partial(laws.bild, settings), sampling, limit=4)


def cascade(rule: str, alpha: float, sampling: str, limit: int = 3) -> Case:
    settings = SpeculativeCascadeSettings(rule=rule, deferral_cost=alpha, draft_length=2)
    return Case("speculative_cascade", settings, functools.partial(laws.cascade, rule, alpha), sampling, limit)


def sequential(confidence: str, cost: float) -> Case:
    settings = SequenceCascadeSettings(confidence=confidence, quantile=0.3, deferral_cost=cost)
    return Case("sequence_cascade", settings, functools.partial(laws.sequence_cascade, settings), "top-p")


AUTHORS = BildAuthorsSettings(fallback_threshold=0.5, rollback_threshold=0.3, max_draft=2)
CASCADE = TokenCascadeSettings(deferral_cost=0.45, max_draft=2)
ORACLE = DiffOracleSettings(deferral_cost=0.05)
CASES = {
    "vanilla_large": Case("vanilla_large", VanillaSettings(), sampling="all three"),
    "vanilla_small": Case("vanilla_small", VanillaSettings(), of_small, "all three"),
    **{f"speculative {name}": speculative("small", 2, name) for name in SAMPLINGS},
    "speculative, one": speculative("small", 1, "plain"),
    "speculative, three": speculative("small", 3, "all three", 4),
    **{f"speculative {drafter}": speculative(drafter, 2, "top-p") for drafter in ("unigram", "bigram", "random")},
    "speculative copy": speculative("copy", 3, "plain", 4),
    "confident": Case("speculative_confident", ConfidentSettings(max_draft=3, stop_below=0.5), sampling="top-p", limit=4),
    "adaptive": Case("speculative_adaptive", AdaptiveSettings(max_draft=3, cost_ratio=0.2), sampling="top-k", limit=4),
    **{
        f"block {name}, {length}": Case("speculative_block", BlockSettings(draft_length=length), sampling=name, limit=limit)
        for name, length, limit in (("plain", 1, 3), ("plain", 2, 3), ("top-p", 2, 3), ("all three", 3, 4), ("plain", 3, 4))
    },
    "block copy": Case("speculative_block", BlockSettings(drafter="copy", draft_length=3), limit=4),
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
    "typical": Case(
        "speculative_typical",
        TypicalSettings(min_score=0.45, typicality=0.8, draft_length=2),
        windows(laws.typically(0.45, 0.8), 2),
        "top-p",
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
    "bild, large first": bild(fallback_threshold=0.5, rollback_threshold=0.5, max_draft=2, large_first=True, keep_agreed=True),
    "bild_authors": Case("bild_authors", AUTHORS, functools.partial(laws.bild_authors, AUTHORS), limit=4),
    "bild_oracle": Case("bild_oracle", BildOracleSettings(rollback_threshold=1.0), functools.partial(laws.bild_oracle, 1.0)),
    "token_cascade": Case("token_cascade", CASCADE, functools.partial(laws.token_cascade, CASCADE), "top-p", limit=4),
    "diff_oracle": Case("diff_oracle", ORACLE, functools.partial(laws.diff_oracle, ORACLE), "all three", limit=4),
    "sequence_cascade, mean": sequential("mean", 0.55),
    "sequence_cascade, sum": sequential("sum", 0.8),
    "sequence_cascade, quantile": sequential("quantile", 0.5),
}
LONG_CASES = {
    name: dataclasses.replace(CASES[name], settings=dataclasses.replace(CASES[name].settings, **longer), limit=5, law=law)
    for name, longer, law in (
        ("speculative plain", {"draft_length": 4}, of_large),
        ("speculative bigram", {"draft_length": 4}, of_large),
        ("speculative random", {"draft_length": 3}, of_large),
        ("confident", {"max_draft": 4}, of_large),
        ("adaptive", {"max_draft": 4}, of_large),
        ("lenient", {"draft_length": 4}, windows(laws.leniently(0.5), 4)),
        ("typical", {"draft_length": 4}, windows(laws.typically(0.45, 0.8), 4)),
        ("margin", {"draft_length": 4}, windows(laws.by_margin(0.15), 4)),
        ("lossy", {"draft_length": 4}, windows(laws.lossily(0.4, lambda q, p: 1.0), 4)),
        ("opt", {"draft_length": 4}, CASES["opt"].law),
        ("token_v3", {"draft_length": 4}, CASES["token_v3"].law),
        ("bild", {}, CASES["bild"].law),
        ("token_cascade", {}, CASES["token_cascade"].law),
    )
}
NOT_ENUMERATED = {
    "beam_large": "it draws nothing; test_beam.py compares its tokens with a plain search",
    "speculative_beam": "it draws nothing; test_speculative_beam.py compares its tokens with beam search",
    "calm": "its law depends on hidden states of earlier exits; test_early_exit.py compares it with CALM without caches",
}
"""Methods without an enumeration, and why."""
WITH_T5 = ("early_layer", "heads")
"""Drafters that read a transformer's layers; a test of their own enumerates them."""


@dataclass(frozen=True)
class World:
    """What the two models' tables look like."""

    name: str
    vocabulary: int
    least: int
    """Fewest tokens that are possible after a prefix."""
    most: int

    def models(self, sampling: SamplingSettings, dtype: torch.dtype) -> Models:
        return Models(self.table("small", dtype), self.table("large", dtype), sampling)

    def table(self, model: str, dtype: torch.dtype) -> Predict:
        """Random logits for each prefix, some of them -infinity; the source changes nothing."""
        logits_of = random_table(f"{self.name} {model}", agreement=0.6, sharpness=2.0, vocabulary=self.vocabulary)

        @functools.cache
        def predict(source: Prefix, prefix: Prefix) -> Tensor:
            seed = int.from_bytes(hashlib.blake2b(f"{self.name} {model} {prefix}".encode(), digest_size=8).digest(), "big")
            rng = np.random.default_rng(seed)
            possible = rng.permutation(self.vocabulary)[: rng.integers(self.least, self.most + 1)]
            logits = torch.full((self.vocabulary,), -torch.inf, dtype=dtype)
            logits[possible] = logits_of((), prefix)[possible].to(dtype)
            return logits

        return predict


CROSSWISE, SPARSE, NARROW = World("crosswise", 4, 2, 3), World("sparse", 5, 1, 3), World("narrow", 3, 2, 3)
WORLDS = (CROSSWISE, SPARSE, NARROW)
LONG = (World("long", 3, 1, 2), World("long", 5, 1, 2))
"""Few enough possible tokens for texts of five tokens and drafts of four."""


def distance(world: World, case: Case, dtype: torch.dtype, source: type[BranchingSource] = BranchingSource) -> float:
    """Return the total variation between what the method writes in a world and its law."""
    models = world.models(SAMPLINGS[case.sampling], dtype)
    calibration = [[token % world.vocabulary for token in text] for text in TEXTS]
    pair = dataclasses.replace(prefix_pair(models.small, models.large), calibration=calibration)
    build = functools.partial(METHODS[case.method].build, pair, case.settings, models.sampling)
    found = enumerated(build, PROMPT, case.limit, source())
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    return total_variation(found, case.law(models, case.limit))


def bound(case: Case, dtype: torch.dtype) -> float:
    """Tables are float32 in any world."""
    return SINGLE if dtype is torch.float32 or getattr(case.settings, "drafter", "") in TABLES else EXACT


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_method_follows_its_law(case: Case) -> None:
    assert distance(CROSSWISE, case, torch.float64) < bound(case, torch.float64)
    assert distance(NARROW, case, torch.float64) < bound(case, torch.float64)
    assert distance(SPARSE, case, torch.float32) < SINGLE


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_method_follows_its_law_in_every_world(case: Case, world: World, dtype: torch.dtype) -> None:
    assert distance(world, case, dtype) < bound(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("world", LONG, ids=lambda world: f"{world.vocabulary} tokens")
@pytest.mark.parametrize("case", LONG_CASES.values(), ids=LONG_CASES)
def test_texts_of_five_tokens_follow_their_law(case: Case, world: World, dtype: torch.dtype) -> None:
    assert distance(world, case, dtype) < bound(case, dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_laws_tell_methods_apart(case: Case) -> None:
    """A lossless method's law is not the small model's, and any other method's is neither model's."""
    apart = []
    for world in WORLDS:
        models = world.models(SAMPLINGS[case.sampling], torch.float64)
        law = case.law(models, case.limit)
        others = {of_large, of_small} - {case.law}
        apart.append(min(total_variation(law, other(models, case.limit)) for other in others))
    assert max(apart) > 0.02


@pytest.mark.parametrize("drafter", WITH_T5)
def test_drafters_that_read_a_transformer(drafter: str) -> None:
    """In float64, with a cache of keys and values in a batch of all runs."""
    model = tiny_t5()
    large, sampling = TransformersDecoder(model, "large"), SamplingSettings(temperature=1.1, top_k=2)
    settings = SpeculativeSettings(drafter=drafter, draft_length=2)
    build = functools.partial(METHODS["speculative"].build, Pair(large, large), settings, sampling)
    law = model_distribution(whole_runs(model), sampling, 3)
    assert total_variation(enumerated(build, SOURCE, 3), law) < EXACT


def tiny_t5() -> Any:
    """An untrained T5 of 5 tokens with two heads, in float64."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=6,
        d_model=8,
        d_ff=8,
        d_kv=4,
        num_heads=2,
        num_layers=1,
        num_decoder_layers=2,
        pad_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = T5ForConditionalGeneration(config)
        torch.nn.init.normal_(model.lm_head.weight)
    add_heads(model, 2, seed=0)
    return model.double().eval()


def test_each_method_drafter_and_rule_is_enumerated_or_says_why_not() -> None:
    assert {case.method for case in CASES.values()} | NOT_ENUMERATED.keys() == METHODS.keys()
    assert not {case.method for case in CASES.values()} & NOT_ENUMERATED.keys()
    assert all(NOT_ENUMERATED.values())
    exact = [case for case in CASES.values() if case.method == "speculative"]
    assert {case.settings.drafter for case in exact} | set(WITH_T5) == set(DRAFTERS)
    rules = {case.settings.rule for case in CASES.values() if case.method == "speculative_cascade"}
    assert rules == set(CASCADE_RULES)
    assert all((case.law is of_large) == METHODS[case.method].lossless for case in CASES.values())


class Forgetful(BranchingSource):
    """Wrong: a number is known by its first word, so that what is drafted or answered again meets the same one."""

    def uniform(self, example: int, position: int, purpose: str) -> OpenNumber:
        return super().uniform(example, position, purpose.removeprefix("deferred ").split()[0])


class OneForAll(BranchingSource):
    """Wrong: what is drafted with a number is accepted and replaced with it."""

    def uniform(self, example: int, position: int, purpose: str) -> OpenNumber:
        return super().uniform(example, position, "")


@pytest.mark.parametrize("name", ["bild", "sequence_cascade, mean"])
def test_a_number_that_is_used_again_is_noticed(name: str) -> None:
    assert distance(CROSSWISE, CASES[name], torch.float64, Forgetful) > 1e-3


@pytest.mark.parametrize("name", ["speculative plain", "lenient", "token_v2"])
def test_one_number_for_draft_and_decision_is_noticed(name: str) -> None:
    assert distance(CROSSWISE, CASES[name], torch.float64, OneForAll) > 1e-3
