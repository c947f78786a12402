"""Every sampled method writes each text with the probability of its law: all its random choices, enumerated by its own code."""

import dataclasses
import functools
import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tasks.decoding import native_loop
from tasks.decoding.decoder import Decoder, Runtime
from tasks.decoding.distributions import TokenSource
from tasks.decoding.loop import SpeculativeLoop, executor_for
from tasks.decoding.method import DRAFTERS, DecodingMethod, Pair, Request, SamplingSettings
from tasks.decoding.methods.cascades import CASCADE_RULES
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS
from tasks.decoding.runtimes.choose import open_decoders
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.models.extras import add_heads
from tests.architectures import whole_rows
from tests.branching import BranchingSource, enumerated, total_variation
from tests.cases import CASES, IN_KERNEL, LONG_CASES, NOT_ENUMERATED, SAMPLINGS, WITH_T5, Case, of_large, of_small
from tests.distributions import SOURCE, model_distribution
from tests.laws import Models
from tests.toys import END, START, Predict, Prefix, prefix_pair, random_table

PROMPT = (2, 3, 2, END)
TEXTS = [[2, 3, 2, END], [3, 2, 2, END], [2, 2, 3, 3, END]]
"""The calibration set, of which tables and trees are made."""
SINGLE_TABLES = ("unigram", "bigram")
"""Drafters whose probabilities are float32 in any world."""
EXACT, SINGLE = 1e-10, 1e-6
"""Largest total variation from the law in float64 and in float32."""


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


def distance(world: World, case: Case, dtype: torch.dtype) -> float:
    """Return the total variation between what the method writes in a world and its law."""
    models = world.models(SAMPLINGS[case.sampling], dtype)
    calibration = [[token % world.vocabulary for token in text] for text in TEXTS]
    pair = dataclasses.replace(prefix_pair(models.small, models.large), calibration=calibration)

    def build(draws: TokenSource) -> DecodingMethod:
        return METHODS[case.method].make(case.settings, pair, case.request(draws))

    found = enumerated(build, PROMPT, case.limit, BranchingSource())
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    return total_variation(found, case.law(models, case.limit))


def bound(case: Case, dtype: torch.dtype) -> float:
    return SINGLE if dtype is torch.float32 or getattr(case.settings, "drafter", "") in SINGLE_TABLES else EXACT


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_method_follows_its_law(case: Case) -> None:
    # Where three transforms truncate, few tokens tell an acceptance by what is truncated from one by what is not.
    for world in (CROSSWISE, NARROW) if case.sampling == "all three" else (CROSSWISE,):
        assert distance(world, case, torch.float64) < bound(case, torch.float64)
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
    add_heads(model, 2, seed=0)
    model.double()
    large, sampling = TransformersDecoder(model, "large"), SamplingSettings(temperature=1.1, top_k=2)
    settings = SpeculativeSettings(drafter=drafter, draft_length=2)

    def build(draws: TokenSource) -> DecodingMethod:
        return METHODS["speculative"].make(settings, Pair(large, large), Request(3, sampling, draws=draws))

    law = model_distribution(whole_rows(model), sampling, 3)
    assert total_variation(enumerated(build, SOURCE, 3), law) < EXACT


def tiny_t5(seed: int = 3, vocabulary: int = 6) -> Any:
    """An untrained T5 of few tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_heads": 2, "num_layers": 1, "num_decoder_layers": 2}
    tokens = {"vocab_size": vocabulary, "pad_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    config = T5Config(**shape, **tokens, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
        torch.nn.init.normal_(model.lm_head.weight)
    return model.eval()


@functools.cache
def tiny_native_pair() -> Pair:
    return open_decoders(tiny_t5(3, 4), tiny_t5(5, 4), runtime=Runtime("native"))


def native_table(decoder: Decoder) -> Predict:
    """The logits of a decoder, one prefix at a time."""

    @functools.cache
    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        decoder.start(decoder.encode([list(PROMPT)]))
        return decoder.forward([list(prefix)]).last([1])[0, 0].clone()

    return predict


@pytest.mark.parametrize("case", IN_KERNEL.values(), ids=IN_KERNEL)
def test_every_method_follows_its_law_in_the_kernel(case: Case) -> None:
    """Each number that the kernel draws is the branching's: it is asked with the kernel's own weights."""
    pair = tiny_native_pair()
    models = Models(native_table(pair.small), native_table(pair.large), SAMPLINGS[case.sampling])

    def build(draws: TokenSource) -> DecodingMethod:
        method = METHODS[case.method].make(case.settings, pair, case.request(draws))
        assert not isinstance(method, SpeculativeLoop) or executor_for(method, 1) is native_loop.generate
        return method

    found = enumerated(build, PROMPT, case.limit)
    assert total_variation(found, case.law(models, case.limit)) < SINGLE


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_KERNEL.values(), ids=IN_KERNEL)
def test_a_hundred_thousand_texts_that_the_kernel_draws_are_of_their_law(case: Case) -> None:
    """By its own numbers. A G-test of the texts, those expected fewer than five times as one; Bonferroni over rules."""
    pair, (batch, batches) = tiny_native_pair(), (1000, 100)
    models = Models(native_table(pair.small), native_table(pair.large), SAMPLINGS[case.sampling])
    method = METHODS[case.method].make(case.settings, pair, case.request(seed=5))
    found = Counter[Prefix]()
    for number in range(batches):
        examples = range(number * batch, (number + 1) * batch)
        found.update(tuple(text.tokens) for text in method.run([list(PROMPT)] * batch, examples, case.limit))
    law = case.law(models, case.limit)
    assert found.keys() <= law.keys(), "no impossible text"
    often = {text: batch * batches * share for text, share in law.items() if batch * batches * share >= 5}
    cells = [(found[text], expected) for text, expected in often.items()]
    cells.append((found.total() - sum(count for count, _ in cells), max(1e-9, batch * batches - sum(often.values()))))
    g = 2 * sum(count * math.log(count / expected) for count, expected in cells if count)
    assert stats.chi2.sf(g, len(cells) - 1) > 0.01 / len(IN_KERNEL)


def test_each_method_drafter_and_rule_is_enumerated_or_says_why_not() -> None:
    assert {case.method for case in CASES.values()} | NOT_ENUMERATED.keys() == METHODS.keys()
    assert not {case.method for case in CASES.values()} & NOT_ENUMERATED.keys()
    assert all(NOT_ENUMERATED.values())
    exact = [case for case in CASES.values() if case.method == "speculative"]
    assert {case.settings.drafter for case in exact} | set(WITH_T5) == set(DRAFTERS)
    rules = {case.settings.rule for case in CASES.values() if case.method == "speculative_cascade"}
    assert rules == set(CASCADE_RULES)
    assert all((case.law is of_large) == METHODS[case.method].lossless for case in CASES.values())
