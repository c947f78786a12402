"""Every architecture behind the same calls: what transformers generates, with a cache, without, alone and side by side."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, Rows, Runtime
from tasks.decoding.generation import total
from tasks.decoding.registry import Request, decode
from tasks.decoding.runtimes.cached import CachedDecoder
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.runtimes.per_row import PerRowDecoder
from tasks.decoding.settings import (
    BeamSettings,
    BildSettings,
    SamplingSettings,
    SpeculativeBeamSettings,
    SpeculativeSettings,
    VanillaSettings,
)
from tasks.errors import InputError
from tests.architectures import CAUSAL, NAMES, generated, models, over_runtimes, pair_of, whole_rows
from tests.toys import END, START, VOCABULARY, prefix_pair, toy_sources, toy_t5
from tests.unit.decoding.test_bild import algorithm_1, runs_of

LIMIT = 14
SOURCES = toy_sources(16)
every = over_runtimes(*NAMES)


def texts(name: str, runtime: Runtime, method: str, settings: Any, sources: Rows = SOURCES) -> Rows:
    return [one.tokens for one in decode(method, settings, pair_of(name, runtime), sources, Request(LIMIT))]


@every
def test_greedy_output_is_what_transformers_generates(name: str, runtime: Runtime) -> None:
    outputs = texts(name, runtime, "vanilla_large", VanillaSettings())
    assert outputs == [generated(models(name)[1], source, LIMIT) for source in SOURCES]
    assert len({tuple(output) for output in outputs}) > 4


@pytest.mark.parametrize("name", ["t5", "gpt2", "llama", "gemma2", "bart"])
def test_assisted_generation_of_transformers_gives_the_same(name: str) -> None:
    """Of T5, transformers assists only those with as many encoder layers as decoder layers; of FSMT, it is wrong."""
    small, large = (toy_t5(1, 1, 1), toy_t5(2, 3, 3)) if name == "t5" else models(name)
    outputs = decode("speculative", SpeculativeSettings(draft_length=4), open_pair(small, large), SOURCES[:10], Request(LIMIT))
    expected = [generated(large, source, LIMIT, assistant_model=small) for source in SOURCES[:10]]
    assert [one.tokens for one in outputs] == expected


@every
def test_beam_search_is_what_transformers_generates(name: str, runtime: Runtime) -> None:
    """Alone, and drafted for."""
    options = {"num_beams": 3, "length_penalty": 1.0, "early_stopping": False}
    expected = [generated(models(name)[1], source, LIMIT, **options) for source in SOURCES[:6]]
    assert texts(name, runtime, "beam_large", BeamSettings(beams=3), SOURCES[:6]) == expected
    assert texts(name, runtime, "speculative_beam", SpeculativeBeamSettings(beams=3, draft_beams=4), SOURCES[:6]) == expected


@every
@pytest.mark.parametrize("drafter", ["early_layer", "copy", "random"])
def test_other_drafters_change_no_token(name: str, runtime: Runtime, drafter: str) -> None:
    outputs = texts(name, runtime, "speculative", SpeculativeSettings(drafter=drafter))
    assert outputs == texts(name, runtime, "vanilla_large", VanillaSettings())


@every
@pytest.mark.parametrize("draft_length", [1, 4])
def test_speculative_output_is_vanilla(name: str, runtime: Runtime, draft_length: int) -> None:
    generations = decode(
        "speculative", SpeculativeSettings(draft_length=draft_length), pair_of(name, runtime), SOURCES, Request(LIMIT)
    )
    assert [one.tokens for one in generations] == texts(name, runtime, "vanilla_large", VanillaSettings())
    counts = total(generations)
    assert counts.accepted > 5
    assert counts.rollbacks > 5
    assert counts.large_calls < counts.tokens


@every
@pytest.mark.parametrize(
    "sampling", [SamplingSettings(), SamplingSettings(temperature=0.8, top_p=0.95)], ids=["greedy", "drawn"]
)
def test_side_by_side_is_one_at_a_time(name: str, runtime: Runtime, sampling: SamplingSettings) -> None:
    settings, request = (
        BildSettings(fallback_threshold=0.4, rollback_threshold=1.5, max_draft=4),
        Request(LIMIT, sampling, seed=3),
    )
    together = decode("bild", settings, pair_of(name, runtime), SOURCES, request)
    alone = [
        decode("bild", settings, pair_of(name, runtime), [source], request, [place])[0] for place, source in enumerate(SOURCES)
    ]
    assert together == alone


@every
def test_bild_is_algorithm_1_without_a_cache(name: str, runtime: Runtime) -> None:
    small, large = (whole_rows(model) for model in models(name))
    rollbacks = 0
    for fallback, rollback, max_draft in ((0.3, 1.0, 10), (0.5, 0.3, 3), (0.2, 3.0, 2)):
        settings = BildSettings(fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft)
        generations = decode("bild", settings, pair_of(name, runtime), SOURCES[:8], Request(LIMIT))
        assert runs_of(generations) == [algorithm_1(small, large, tuple(one), settings, LIMIT) for one in SOURCES[:8]]
        assert decode("bild", settings, prefix_pair(small, large), SOURCES[:8], Request(LIMIT)) == generations
        rollbacks += total(generations).rollbacks
    assert rollbacks > 5


class Walk:
    """A decoder to which random things are done, and what its rows must hold."""

    def __init__(self, name: str, runtime: Runtime, seed: int) -> None:
        self.chance = random.Random(seed)
        self.prompted = name in CAUSAL
        self.predict = whole_rows(models(name)[1])
        self.decoder = open_decoder(models(name)[1], "toy", runtime=runtime)
        self.sources = toy_sources(4, seed)
        self.starts = self.decoder.start(self.decoder.encode(self.sources))
        self.held: Rows = [[] for _ in self.starts]

    def rewind(self) -> None:
        self.held = [row[: self.chance.randint(max(0, len(row) - 4), len(row))] for row in self.held]
        self.decoder.rewind([len(row) for row in self.held])

    def reorder(self) -> None:
        rows = [self.chance.randrange(len(self.held)) for _ in range(self.chance.randint(2, 4))]
        self.decoder.reorder(rows)
        self.held = [self.held[row] for row in rows]
        self.starts = [self.starts[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def forward(self) -> None:
        """Some rows get nothing; the others what is missing of their start, and a few tokens."""
        counts = [self.chance.randint(0, 3) for _ in self.held]
        counts[self.chance.randrange(len(counts))] = self.chance.randint(1, 3)
        new = [
            start[len(kept) :] + [self.chance.randrange(2, VOCABULARY) for _ in range(count)] if count else []
            for start, kept, count in zip(self.starts, self.held, counts, strict=True)
        ]
        step = self.decoder.forward(new)
        self.held = [kept + more for kept, more in zip(self.held, new, strict=True)]
        for row, more in enumerate(new):
            # What follows the tokens of a start but its last is known, and may be left out.
            expected = self.expected(row, len(more))
            assert step.lengths[row] >= len(expected)
            for place, logits in enumerate(expected, start=step.lengths[row] - len(expected)):
                torch.testing.assert_close(step.logits[row, place], logits, atol=1e-4, rtol=0)

    def expected(self, row: int, count: int) -> list[torch.Tensor]:
        """What follows the row's last `count` tokens, by whole runs, from its start's end on."""
        text, start = self.held[row], len(self.starts[row])
        ends = range(max(start, len(text) - count + 1), len(text) + 1)
        prefixes = [[START, *text[start:end]] if self.prompted else text[:end] for end in ends]
        return [self.predict(tuple(self.sources[row]), tuple(prefix)) for prefix in prefixes]


@every
def test_a_wound_back_cache_equals_no_cache(name: str, runtime: Runtime) -> None:
    for seed in range(4):
        walk = Walk(name, runtime, seed)
        walk.forward()
        for _ in range(20):
            walk.chance.choice([walk.forward, walk.forward, walk.rewind, walk.reorder])()
            assert walk.decoder.lengths == [len(row) for row in walk.held]


@every
def test_hidden_states_are_what_the_head_reads(name: str, runtime: Runtime) -> None:
    model = models(name)[1]
    decoder = open_decoder(model, "toy", runtime=runtime)
    starts = decoder.start(decoder.encode(SOURCES[:3]))
    step = decoder.forward([[*row, *extra] for row, extra in zip(starts, ([5, 6], [7], [8, 9, 3]), strict=True)])
    head = model.model.decoder.output_projection if name == "fsmt" else model.get_output_embeddings()
    scale = model.config.d_model**-0.5 if getattr(model.config, "scale_decoder_outputs", False) else 1.0
    assert step.hidden is not None
    with torch.inference_mode():
        logits = head(step.hidden * scale)
    cap = getattr(model.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    for row, length in enumerate(step.lengths):
        torch.testing.assert_close(logits[row, :length], step.logits[row, :length], atol=1e-4, rtol=0)


@every
def test_ids_past_the_vocabulary_are_never_predicted(name: str, runtime: Runtime) -> None:
    decoder = open_decoder(models(name)[1], "toy", 20, runtime)
    [start] = decoder.start(decoder.encode(SOURCES[:1]))
    assert decoder.forward([start]).logits.shape[-1] == decoder.vocabulary == 20
    assert max(decoder.specials) < 20


def test_which_models_take_rows_side_by_side() -> None:
    alone = {name for name in NAMES if isinstance(open_decoder(models(name)[1], "toy", runtime=REFERENCE), PerRowDecoder)}
    assert alone == {"bart", "fsmt", "bloom"}
    assert all(isinstance(open_decoder(models(name)[1], "toy", runtime=REFERENCE), CachedDecoder) for name in {*NAMES} - alone)


def test_a_text_ends_at_every_end_token_that_a_generation_configuration_lists() -> None:
    small, large = models("llama")
    listed = [END, 5, 6, 7]
    kept = large.generation_config.eos_token_id
    large.generation_config.eos_token_id = listed
    try:
        pair = open_pair(small, large)
        assert pair.large.end_token == END
        assert pair.large.end_tokens == set(listed)
        expected = [generated(large, source, LIMIT) for source in SOURCES]
        for method, settings in (("vanilla_large", VanillaSettings()), ("speculative", SpeculativeSettings(draft_length=4))):
            assert [one.tokens for one in decode(method, settings, pair, SOURCES, Request(LIMIT))] == expected
    finally:
        large.generation_config.eos_token_id = kept
    assert {output[-1] for output in expected} > {END, 6, 7}


def test_models_that_cannot_be_wound_back_are_refused() -> None:
    from transformers import MambaConfig, MambaForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

    mamba = MambaForCausalLM(MambaConfig(vocab_size=24, hidden_size=8, state_size=2, num_hidden_layers=1, eos_token_id=1))
    with pytest.raises(InputError, match="the large model is of type mamba, with layers of linear_attention, and cannot be"):
        open_decoder(mamba, "large")
    first = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=24, n_embd=8, n_layer=1, n_head=1, eos_token_id=1))
    with pytest.raises(InputError, match="the small model is of type openai-gpt, with no cache of keys and values, and cannot"):
        open_decoder(first, "small")


def test_a_model_without_an_end_token_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1, eos_token_id=None, bos_token_id=None))
    with pytest.raises(InputError, match="the small model has no end token; set eos_token_id"):
        open_decoder(model, "small")
