"""A drafter over a draft vocabulary: masked logits, equal decisions in every runtime, outputs that stay the large model's."""

import copy
import functools
import math
from typing import Any

import pytest
import torch

from tasks.decoding import loop
from tasks.decoding.decoder import REFERENCE, Decoder, Runtime
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import total
from tasks.decoding.loop import SpeculativeLoop, executor_for
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.replay import replay_pair
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.decoding.runtimes.native import NativeDecoder
from tasks.models.pruned_head import prune_head
from tests.architectures import models
from tests.executors import same_in_the_kernel
from tests.methods import DECODED_ONLY, LAYERED, NUMERIC, SETTINGS
from tests.toys import END, toy_sources

TOKENS = [END, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 20, 23]
SOURCES = toy_sources(5, seed=2)
NATIVE, FUSED = Runtime("native"), Runtime("fused")


@functools.cache
def pruned(name: str, dtype: torch.dtype = torch.float32) -> Any:
    small = copy.deepcopy(models(name)[0])
    prune_head(small, TOKENS)
    return small.to(dtype)


@functools.cache
def pruned_pair(name: str, runtime: Runtime = NATIVE) -> Pair:
    return open_decoders(pruned(name), models(name)[1], runtime=runtime)


def logits_of(decoder: Decoder, texts: list[list[int]]) -> torch.Tensor:
    starts = decoder.start(decoder.encode(SOURCES[: len(texts)]))
    return decoder.forward([start + text for start, text in zip(starts, texts, strict=True)]).last([3] * len(texts))


@pytest.mark.parametrize("runtime", [NATIVE, FUSED, REFERENCE, Runtime("native", int8=True)], ids=str)
@pytest.mark.parametrize("name", ["t5", "llama", "gpt2"])
def test_logits_are_those_of_the_whole_head_and_a_mask(name: str, runtime: Runtime) -> None:
    whole, few = (open_decoder(model, "small", None, runtime) for model in (models(name)[0], pruned(name)))
    expected, found = (logits_of(decoder, [[3, 4, 7], [5, 10, 2]]) for decoder in (whole, few))
    outside = torch.ones(expected.shape[-1], dtype=torch.bool)
    outside[TOKENS] = False
    tolerance = 0 if runtime.name == "native" else 1e-5
    torch.testing.assert_close(found, expected.masked_fill(outside, -torch.inf), atol=tolerance, rtol=0)


def test_a_continuation_names_tokens_and_their_confidence() -> None:
    """The kernel's argmax outputs are turned into tokens, before they are fed and compared with end tokens."""
    native, reference = pruned_pair("llama").small, pruned_pair("llama", REFERENCE).small
    for source in SOURCES:
        [prompt] = native.start(native.encode([source]))
        assert isinstance(native, NativeDecoder)
        found = native.continue_greedily(prompt, 6, DraftRule(fallback_threshold=0.2))
        reference.start(reference.encode([source]))
        pending = prompt
        for index, (token, confidence) in enumerate(zip(found.tokens, found.confidence, strict=True)):
            step = reference.forward([pending]).last([1])[0, 0]
            assert token == int(step.argmax())
            assert confidence == pytest.approx(float(step.softmax(-1).max()), abs=1e-5)
            torch.testing.assert_close(found.logits[0, index], step, atol=1e-4, rtol=0)
            pending = [token]


@pytest.mark.parametrize(("name", "runtime"), [("t5", NATIVE), ("llama", NATIVE), ("t5", FUSED), ("llama", REFERENCE)], ids=str)
def test_greedy_speculative_output_is_the_large_model_s(name: str, runtime: Runtime) -> None:
    pair = pruned_pair(name, runtime)
    sources = toy_sources(12, seed=4)
    expected = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, Request(14))]
    assert {token for text in expected for token in text} - set(TOKENS)
    found = [decode("speculative", SpeculativeSettings(draft_length=3), pair, [source], Request(14))[0] for source in sources]
    assert [one.tokens for one in found] == expected
    counts = total(found)
    assert 20 < counts.accepted < counts.drafted
    drafted = [token for one in found for token, by in zip(one.tokens, one.proposers, strict=True) if by == "s"]
    assert set(drafted) <= set(TOKENS)


MASKED = [NUMERIC[2], *(one for one in NUMERIC if one[0] in ("speculative_confident", "speculative_cascade"))]


@pytest.mark.parametrize(("method", "settings"), MASKED)
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_the_native_loop_equals_the_general_loop(name: str, method: str, settings: Any) -> None:
    one = METHODS[method].make(settings, pruned_pair(name), Request(14))
    assert isinstance(one, SpeculativeLoop)
    same_in_the_kernel(one, SOURCES, 14)


def test_a_target_with_a_draft_vocabulary_runs_in_the_general_loop() -> None:
    twins = Pair(pruned_pair("llama").small, open_decoder(pruned("llama"), "large", None, NATIVE))
    one = METHODS["speculative"].make(SpeculativeSettings(), twins, Request(9))
    assert isinstance(one, SpeculativeLoop)
    assert executor_for(one, 1) is loop.generate
    found = one.run([SOURCES[0]], [0], 9)[0]
    assert found.counts.rollbacks == 0
    assert found.tokens == decode("vanilla_small", VanillaSettings(), twins, SOURCES[:1], Request(9))[0].tokens


@pytest.mark.parametrize("method", sorted(SETTINGS.keys() - LAYERED))
def test_every_method_decides_as_on_the_reference_and_in_a_replay(method: str) -> None:
    request = Request(12)
    for settings in SETTINGS[method]:
        natively, expected, *replayed = (
            decode(method, settings, pair, SOURCES, request)
            for pair in (
                pruned_pair("t5"),
                pruned_pair("t5", REFERENCE),
                *([] if method in DECODED_ONLY else [replay_pair(pruned_pair("t5"), PredictionCache(pruned_pair("t5")))]),
            )
        )
        for found in (natively, *replayed):
            assert [(one.tokens, one.counts) for one in found] == [(one.tokens, one.counts) for one in expected]
            for one in found:
                assert all(map(math.isfinite, one.log_probabilities))
