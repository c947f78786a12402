"""Decoder-only models: prompts, padded vocabularies, and every method with and without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.decoding.decoder import AUTO, REFERENCE, EncoderOutput, Rows, Runtime
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.errors import InputError
from tests.architectures import CAUSAL, FAMILIES, models, over_runtimes, pair_of, predictions
from tests.methods import GREEDY_ONLY, LAYERED, SETTINGS, with_samplings
from tests.toys import END, START, VOCABULARY, Predict, Prefix, PrefixDecoder, toy_sources

SOURCES = toy_sources(5, seed=1)
SAMPLED = SamplingSettings(temperature=0.9)
every = over_runtimes(*CAUSAL)
either = pytest.mark.parametrize("runtime", [AUTO, REFERENCE], ids=["auto", "reference"])


class PromptDecoder(PrefixDecoder):
    """A decoder without a cache whose rows begin with the source, as those of a decoder-only model do."""

    def start(self, encoder_output: EncoderOutput) -> Rows:
        super().start(encoder_output)
        return [list(source) for source in self._sources]


def over_rows(predict: Predict) -> Predict:
    """Predict from a row that contains its source."""

    def over_row(source: Prefix, row: Prefix) -> torch.Tensor:
        inside = min(len(source), len(row))
        return predict(row[:inside], (START, *row[inside:]))

    return over_row


@every
def test_an_empty_prompt_is_refused(name: str, runtime: Runtime) -> None:
    for method in ("vanilla_large", "speculative"):
        with pytest.raises(InputError, match="source 2 is empty; the large model is decoder-only and needs a prompt") as caught:
            decode(method, SETTINGS[method][0], pair_of(name, runtime), [[5, END], [], [6]], Request(4))
        assert "\n" not in str(caught.value)


def test_a_prompt_of_one_token_is_enough() -> None:
    [one] = decode("vanilla_large", VanillaSettings(), pair_of("llama"), [[END]], Request(4))
    assert len(one.tokens) == 4 or one.tokens[-1] == END


@either
def test_an_encoder_output_is_no_prompt(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="the toy model is decoder-only"):
        open_decoder(models("gpt2")[0], "toy", runtime=runtime).start(EncoderOutput(torch.zeros(1, 3, 8), torch.ones(1, 3)))


@over_runtimes("gpt2", "llama", "gemma2")
def test_prompts_are_run_once_and_predict_once(name: str, runtime: Runtime) -> None:
    """The first run reads the prompts, and returns no predictions inside the shortest prompt."""
    decoder = open_decoder(models(name)[1], "toy", runtime=runtime)
    prompts = [[5, 6, 7, 8, END], [9, 4, END], [3, 2, 9, 8, 7, 6, END]]
    starts = decoder.start(decoder.encode(prompts))
    assert starts == prompts
    assert all(one is not other for one, other in zip(starts, prompts, strict=True))
    step = decoder.forward(starts)
    assert decoder.lengths == [5, 3, 7]
    # Predictions begin after the third token: those of the second prompt, which ends there.
    assert step.lengths == [3, 1, 5]
    assert step.logits.shape == (3, 5, VOCABULARY)
    _, predict = predictions(name)
    for row, prompt in enumerate(prompts):
        expected = predict(tuple(prompt), (0,))
        torch.testing.assert_close(step.last([1, 1, 1])[row, 0], expected, atol=1e-4, rtol=0)
    assert decoder.forward([[5], [], [6, 7]]).logits.shape == (3, 2, VOCABULARY)


# Every method on one architecture, and every architecture with methods that differ in how they use the cache.
COVERING = [
    *(("llama", REFERENCE, *case) for case in with_samplings(sorted(METHODS.keys() - LAYERED), SamplingSettings(), SAMPLED)),
    *(
        (name, runtime, method, sampling)
        for name, runtime in (("llama", AUTO), ("gpt2", AUTO), ("gpt2", REFERENCE), ("gemma2", AUTO), ("bloom", AUTO))
        for method, sampling in (("bild", SAMPLED), ("speculative_beam", SamplingSettings()), ("speculative_cascade", SAMPLED))
    ),
]


@pytest.mark.parametrize(("name", "runtime", "method", "sampling"), COVERING)
def test_every_method_gives_the_same_with_and_without_a_cache(
    name: str, runtime: Runtime, method: str, sampling: SamplingSettings
) -> None:
    small, large = (PromptDecoder(over_rows(predict)) for predict in predictions(name))
    pairs = pair_of(name, runtime), Pair(small, large)
    for settings in SETTINGS[method]:
        cached, uncached = (decode(method, settings, pair, SOURCES, Request(10, sampling, 5)) for pair in pairs)
        assert cached == uncached


def widened(name: str, layers: int, vocabulary: int) -> Any:
    """The toy with embeddings and head padded to `vocabulary` tokens; the added tokens have the largest logits."""
    model = models(name)[0 if layers == 1 else 1]
    wide = type(model)(type(model.config)(**{**model.config.to_dict(), "vocab_size": vocabulary})).eval()
    with torch.no_grad():
        for key, weight in wide.state_dict().items():
            known = model.state_dict()[key]
            if weight.shape == known.shape:
                weight.copy_(known)
            else:
                weight[: len(known)] = known
                weight[len(known) :] = 100.0 * known.mean(0) if weight.dim() > 1 else 100.0
    return wide


@pytest.mark.parametrize(("name", "runtime"), [("gpt2", AUTO), ("llama", REFERENCE)], ids=["gpt2", "llama by reference"])
def test_padded_vocabularies_of_unequal_size_are_cut(name: str, runtime: Runtime) -> None:
    """Tokens past the common vocabulary are never chosen and have no probability."""
    padded = open_pair(widened(name, 1, 32), widened(name, 3, 40), VOCABULARY, runtime=runtime)
    plain_pair = pair_of(name, runtime)
    assert padded.small.vocabulary == padded.large.vocabulary == VOCABULARY
    for method in ("speculative", "speculative_cascade", "bild", "beam_large"):
        request = Request(12, SamplingSettings() if method in GREEDY_ONLY else SAMPLED)
        outputs, plain = (decode(method, SETTINGS[method][0], pair, SOURCES, request) for pair in (padded, plain_pair))
        assert outputs == plain


def test_pairs_of_decoder_only_models_share_no_encoder() -> None:
    assert not any(pair_of(name).shares_encoder for name in CAUSAL)
    assert {*CAUSAL} < {*FAMILIES}


def test_a_drafter_may_be_of_another_family() -> None:
    """Only the vocabularies have to agree."""
    pair = Pair(open_decoder(models("gpt2")[0], "small"), pair_of("llama").large)
    vanilla = decode("vanilla_large", VanillaSettings(), pair, SOURCES, Request(12))
    drafted = decode("speculative", SpeculativeSettings(draft_length=3), pair, SOURCES, Request(12))
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]
