"""The drafter that reads the large model's states: it computes what its training computed, in batches and in every runtime."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.alignment.features import chain_logits
from tasks.decoding.decoder import Runtime
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.drafters.features import FeaturesDrafter
from tasks.decoding.generation import total
from tasks.decoding.loop import SpeculativeLoop, make_drafter
from tasks.decoding.method import GREEDY, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.replay import replay_pair
from tasks.decoding.runtimes.choose import open_decoders
from tasks.errors import InputError
from tasks.evaluation.acceptance import Drafting, measure_acceptance, write_texts
from tasks.models.checkpoints import load_model
from tasks.models.extras import add_features, features_of, save_extras
from tasks.training.data import TokenDataset
from tests.architectures import models
from tests.toys import START, toy_sources

RUNTIMES = [Runtime("reference"), Runtime("native")]
CHAIN = 4


def reading(name: str = "llama", seed: int = 1) -> tuple[Any, Any]:
    """A small model with a random projection of the large one's states, and the large one."""
    small, large = models(name)
    small = type(small)(small.config)
    torch.manual_seed(seed)
    for weight in small.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    add_features(small, large.config.hidden_size)
    torch.nn.init.normal_(small.feature_projection.weight, std=0.5)
    return small.eval(), large


@pytest.fixture(scope="module", params=RUNTIMES, ids=lambda one: one.name)
def pair(request: pytest.FixtureRequest) -> Pair:
    return open_decoders(*reading(), runtime=request.param)


def test_a_draft_is_what_training_computes(pair: Pair) -> None:
    """The i-th token of a chain that begins at any position is predicted by the i-th pass over the text."""
    small, large = reading()
    sources, texts = toy_sources(3, seed=2), [[5, 6, 7, 2, 3, 4, 6], [3, 3, 5, 2], [7, 6, 5, 4, 3, 2]]
    batch = TokenDataset(sources, texts, START, decoder_only=True).batch(range(3))
    with torch.inference_mode():
        passes = [torch.split(part, [len(text) for text in texts]) for part in chain_logits(small, large, batch, CHAIN)]
    compared = 0
    for row, (source, text) in enumerate(zip(sources, texts, strict=True)):
        for begin in range(len(text)):
            drafter = FeaturesDrafter(pair.small, pair.large, GREEDY, TokenSource(0))
            drafter.start(pair.large.encode([source + text[:begin]]), [source + text[:begin]])
            for ahead in range(min(CHAIN, len(text) - begin)):
                logits = drafter.next_logits([source + text[:begin]], [text[begin : begin + ahead]], [True])[0, 0]
                torch.testing.assert_close(logits, passes[ahead][row][begin + ahead], rtol=0, atol=2e-4)
                compared += 1
    assert compared > 40


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=0.9)], ids=["greedy", "sampled"])
def test_a_batch_equals_single_rows_and_keeps_reading_the_large_states(pair: Pair, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(7, seed=9), Request(12, sampling, seed=2)
    for name, settings in {
        "speculative": SpeculativeSettings(draft_length=3),
        "bild": BildSettings(fallback_threshold=0.06, rollback_threshold=2.0),
    }.items():
        alone = [decode(name, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
        assert decode_all(name, settings, pair, sources, request, 3) == alone
        counts = total(alone)
        assert counts.drafted > counts.accepted + counts.rollbacks / 2 and counts.rollbacks > 0


def test_greedy_texts_are_the_large_models(pair: Pair) -> None:
    sources, request = [[5], *toy_sources(12, seed=3)], Request(16)
    drafted = decode_all("speculative", SpeculativeSettings(draft_length=4), pair, sources, request, 5)
    vanilla = decode_all("vanilla_large", VanillaSettings(), pair, sources, request, 5)
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]


def test_each_draft_begins_with_the_large_models_states(pair: Pair) -> None:
    """Whatever was kept of the drafts before, a draft in mid-text is that of a drafter which begins there."""
    source = toy_sources(1, seed=5)[0]
    drafter = FeaturesDrafter(pair.small, pair.large, GREEDY, TokenSource(0))
    first = dict[int, torch.Tensor]()
    next_logits = drafter.next_logits

    def noted(tokens: Any, drafted: Any, going: Any) -> torch.Tensor:
        logits = next_logits(tokens, drafted, going)
        if not drafted[0]:
            first.setdefault(len(tokens[0]), logits[0, 0].clone())
        return logits

    drafter.next_logits = noted  # type: ignore[method-assign]
    settings = SpeculativeSettings(draft_length=2)
    loop = METHODS["speculative"].make(settings, pair, Request(14))
    assert isinstance(loop, SpeculativeLoop)
    [found] = dataclasses.replace(loop, drafter=drafter).run([source], [0], 14)
    assert len(first) > 3
    for length, logits in first.items():
        text = (source + found.tokens)[:length]
        fresh = FeaturesDrafter(pair.small, pair.large, GREEDY, TokenSource(0))
        fresh.start(pair.large.encode([text]), [text])
        torch.testing.assert_close(logits, fresh.next_logits([text], [[]], [True])[0, 0], rtol=0, atol=2e-4)


def test_what_it_reads_is_saved_with_the_model(tmp_path: Path) -> None:
    small, _ = reading()
    small.save_pretrained(tmp_path, state_dict={k: v for k, v in small.state_dict().items() if "feature" not in k})
    save_extras(small, tmp_path)
    found = features_of(load_model(tmp_path))
    assert found is not None and torch.equal(found.weight, small.feature_projection.weight)


def test_it_is_neither_replayed_nor_run_without_states_where_a_runtime_shows_none() -> None:
    pair = open_decoders(*reading(), runtime=Runtime("native"))
    cache = PredictionCache(pair)
    with pytest.raises(InputError, match="the small model reads states of the large model, which its runtime does not show"):
        make_drafter("small", replay_pair(pair, cache), GREEDY, TokenSource(0))
    with pytest.raises(InputError, match="the fused runtime does not run models that read another one's states"):
        open_decoders(*reading(), runtime=Runtime("fused"))
    plain = open_decoders(*models("llama"))
    assert isinstance(make_drafter("small", plain, GREEDY, TokenSource(0)), ModelDrafter)


def test_acceptance_is_that_of_its_drafts(pair: Pair) -> None:
    """Of the first token of each draft, which is drafted along the large model's texts at γ = 1."""
    sources, request = toy_sources(8, seed=6), Request(10)
    texts = write_texts(pair, sources, request, 3)
    [rate] = measure_acceptance([Drafting()], pair, sources, request, texts).values()
    drafter, kept, tokens = make_drafter("small", pair, GREEDY, TokenSource(0)), 0, 0
    for chosen, written in texts:
        for number, text in zip(chosen, written, strict=True):
            for length, token in enumerate(text):
                row = sources[number] + text[:length]
                drafter.start(pair.large.encode([row]), [row])
                kept += drafter.draft([row], [0], [1], DraftRule(window=1)).tokens == [[token]]
                tokens += 1
    assert rate.tokens == tokens and rate.rate == pytest.approx(kept / tokens)
    assert 0 < kept < tokens
