"""The reference runtime: every architecture equals transformers, with a cache and without, and a batch equals single rows."""

import copy
import functools
import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import AUTO, REFERENCE, EncoderOutput, Rows, Runtime, Step
from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.decoding.runtimes.reference import CachedDecoder, PerRowDecoder, TransformersDecoder
from tasks.errors import InputError
from tests.architectures import CAUSAL, NAMES, generated, models, over_runtimes, pair_of, predictions, slow_but
from tests.methods import GREEDY_ONLY, LAYERED, SETTINGS
from tests.toys import END, START, VOCABULARY, PrefixDecoder, Toys, toy_sources, toy_t5

LIMIT = 12
SOURCES = toy_sources(8)
SAMPLED = SamplingSettings(temperature=0.7, top_k=12, top_p=0.95)
every = pytest.mark.parametrize("name", NAMES)
either = over_runtimes(*NAMES)


def decoded(name: str, method: str, settings: Any, sources: Rows = SOURCES) -> list[Generation]:
    return decode(method, settings, pair_of(name, REFERENCE), sources, Request(LIMIT))


def texts(generations: list[Generation]) -> Rows:
    return [one.tokens for one in generations]


@functools.cache
def vanilla(name: str) -> Rows:
    return texts(decoded(name, "vanilla_large", VanillaSettings()))


@every
def test_greedy_output_is_what_transformers_generates(name: str) -> None:
    assert vanilla(name)[:3] == [generated(models(name)[1], source, LIMIT) for source in SOURCES[:3]]
    assert len({tuple(output) for output in vanilla(name)}) > 2


@pytest.mark.parametrize("name", slow_but(("t5", "gpt2", "bloom"), NAMES))
def test_beam_search_is_what_transformers_generates(name: str) -> None:
    """Plain and speculative, on caches of each kind: of an encoder-decoder, of prompts, of single rows."""
    sources, options = SOURCES[:2], {"num_beams": 3, "length_penalty": 1.0, "early_stopping": False}
    expected = [generated(models(name)[1], source, LIMIT, **options) for source in sources]
    assert texts(decoded(name, "beam_large", BeamSettings(beams=3), sources)) == expected
    assert texts(decoded(name, "speculative_beam", SpeculativeBeamSettings(beams=3, draft_beams=4), sources)) == expected


@every
def test_speculative_output_is_vanilla(name: str) -> None:
    generations = decoded(name, "speculative", SpeculativeSettings(draft_length=3))
    assert texts(generations) == vanilla(name)
    counts = total(generations)
    assert counts.accepted > 5
    assert counts.rollbacks > 5
    assert counts.large_calls < counts.tokens


class Walk:
    """A decoder under random operations, and the tokens that each of its rows must have cached."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.prompted = name in CAUSAL
        self.predict = predictions(name)[1]
        self.decoder = open_decoder(models(name)[1], "toy", runtime=REFERENCE)
        self.sources = toy_sources(4, seed)
        self.starts = self.decoder.start(self.decoder.encode(self.sources))
        self.cached: Rows = [[] for _ in self.starts]

    def rewind(self) -> None:
        self.cached = [row[: self.rng.randint(max(0, len(row) - 4), len(row))] for row in self.cached]
        self.decoder.rewind([len(row) for row in self.cached])

    def reorder(self) -> None:
        rows = [self.rng.randrange(len(self.cached)) for _ in range(self.rng.randint(2, 4))]
        self.decoder.reorder(rows)
        self.cached = [self.cached[row] for row in rows]
        self.starts = [self.starts[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def forward(self) -> None:
        """Feed nothing to some rows, and to the others the uncached part of their prompt and a few tokens."""
        counts = [self.rng.randint(0, 3) for _ in self.cached]
        counts[self.rng.randrange(len(counts))] = self.rng.randint(1, 3)
        new = [
            start[len(kept) :] + [self.rng.randrange(2, VOCABULARY) for _ in range(count)] if count else []
            for start, kept, count in zip(self.starts, self.cached, counts, strict=True)
        ]
        step = self.decoder.forward(new)
        self.cached = [kept + more for kept, more in zip(self.cached, new, strict=True)]
        for row, more in enumerate(new):
            # Predictions inside a prompt are not needed and may be left out.
            expected = self.expected(row, len(more))
            assert step.lengths[row] >= len(expected)
            for position, logits in enumerate(expected, start=step.lengths[row] - len(expected)):
                torch.testing.assert_close(step.logits[row, position], logits, atol=1e-4, rtol=0)

    def expected(self, row: int, count: int) -> list[torch.Tensor]:
        """Predictions after each of the row's last `count` tokens that lie behind its prompt, by whole runs."""
        text, start = self.cached[row], len(self.starts[row])
        ends = range(max(start, len(text) - count + 1), len(text) + 1)
        prefixes = [[START, *text[start:end]] if self.prompted else text[:end] for end in ends]
        return [self.predict(tuple(self.sources[row]), tuple(prefix)) for prefix in prefixes]


@every
def test_a_rewound_cache_equals_no_cache(name: str) -> None:
    walk = Walk(name, seed=0)
    walk.forward()
    for _ in range(20):
        walk.rng.choice([walk.forward, walk.forward, walk.rewind, walk.reorder])()
        assert walk.decoder.lengths == [len(row) for row in walk.cached]


@either
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


@either
def test_ids_past_the_vocabulary_are_never_predicted(name: str, runtime: Runtime) -> None:
    decoder = open_decoder(models(name)[1], "toy", 20, runtime)
    [start] = decoder.start(decoder.encode(SOURCES[:1]))
    assert decoder.forward([start]).logits.shape[-1] == decoder.vocabulary == 20
    assert max(decoder.specials) < 20


def test_which_models_take_batches() -> None:
    alone = {name for name in NAMES if isinstance(open_decoder(models(name)[1], "toy", runtime=REFERENCE), PerRowDecoder)}
    assert alone == {"bart", "fsmt", "bloom"}
    assert all(isinstance(open_decoder(models(name)[1], "toy", runtime=REFERENCE), CachedDecoder) for name in {*NAMES} - alone)


def test_a_text_ends_at_every_end_token_that_a_generation_configuration_lists() -> None:
    small, large = models("llama")
    listed, sources = [END, 5, 6, 7], toy_sources(16)
    kept = large.generation_config.eos_token_id
    large.generation_config.eos_token_id = listed
    try:
        pair = open_decoders(small, large)
        assert pair.large.end_token == END
        assert pair.large.end_tokens == set(listed)
        expected = [generated(large, source, LIMIT) for source in sources]
        for method, settings in (("vanilla_large", VanillaSettings()), ("speculative", SpeculativeSettings(draft_length=4))):
            assert [one.tokens for one in decode(method, settings, pair, sources, Request(LIMIT))] == expected
    finally:
        large.generation_config.eos_token_id = kept
    assert {output[-1] for output in expected} > {END, 6, 7}


def test_models_that_cannot_be_rewound_are_refused() -> None:
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


def test_one_encoder_output_serves_two_decoders() -> None:
    """Dropping rows of one decoder leaves the other's sources unchanged."""
    first, second, third = (TransformersDecoder(toy_t5(2, 1, 3), name) for name in "abc")
    encoder_output = first.encode(toy_sources(3))
    for decoder in (first, second, third):
        decoder.start(encoder_output)
    first.forward([[0]] * 3)
    first.reorder([2])
    assert torch.equal(second.forward([[0, 4]] * 3).logits, third.forward([[0, 4]] * 3).logits)


def test_last_positions_of_ragged_rows() -> None:
    logits = torch.arange(12.0).reshape(2, 3, 2)
    step = Step(logits, [3, 1])
    assert torch.equal(step.last([1, 1]), torch.stack([logits[0, 2:3], logits[1, 0:1]]))
    assert torch.equal(step.last([2, 1])[0], logits[0, 1:3])
    assert torch.equal(step.last([2, 1])[1, 0], logits[1, 0])
    assert torch.equal(Step(logits, [3, 3]).last([2, 2]), logits[:, 1:])


@over_runtimes(*CAUSAL)
def test_an_empty_prompt_and_an_encoder_output_are_refused(name: str, runtime: Runtime) -> None:
    for method in ("vanilla_large", "speculative"):
        with pytest.raises(InputError, match="source 2 is empty; the large model is decoder-only and needs a prompt"):
            decode(method, SETTINGS[method][0], pair_of(name, runtime), [[5, END], [], [6]], Request(4))
    with pytest.raises(ValueError, match="model is decoder-only"):
        pair_of(name, runtime).large.start(EncoderOutput(torch.zeros(1, 3, 8), torch.ones(1, 3)))


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
    padded = open_decoders(widened(name, 1, 32), widened(name, 3, 40), VOCABULARY, runtime=runtime)
    plain_pair = pair_of(name, runtime)
    assert padded.small.vocabulary == padded.large.vocabulary == VOCABULARY
    for method in ("speculative", "speculative_cascade", "bild", "beam_large"):
        request = Request(12, SamplingSettings() if method in GREEDY_ONLY else SAMPLED)
        outputs, plain = (decode(method, SETTINGS[method][0], pair, SOURCES[:5], request) for pair in (padded, plain_pair))
        assert outputs == plain


def test_pairs_of_decoder_only_models_share_no_encoder() -> None:
    assert not any(pair_of(name).shares_encoder for name in CAUSAL)


WARM = SamplingSettings(temperature=0.9, top_p=0.95)
ALIKE = {"bild_oracle", "diff_oracle", "speculative_lenient", "speculative_lossy", "speculative_margin", "vanilla_small"}
"""Methods of which others have all but the rule, which reads one position of one row."""
DRAWING = sorted(METHODS.keys() - LAYERED - GREEDY_ONLY)
PACED = [
    *((name, SamplingSettings()) for name in sorted(GREEDY_ONLY)),
    *(pytest.param(name, WARM, marks=pytest.mark.slow if name in ALIKE else ()) for name in DRAWING),
    # Greedy texts of these are compared between two runtimes, each with caches of its own, in `test_native`.
    *(pytest.param(name, SamplingSettings(), marks=pytest.mark.slow) for name in DRAWING),
]


@pytest.fixture(scope="module")
def ragged(toys: Toys) -> tuple[Pair, Pair]:
    """The toys with caches and without, with two more end tokens, so that the rows of a batch end at different lengths."""
    small, large = copy.deepcopy(toys.small), copy.deepcopy(toys.large)
    for model in (small, large):
        model.generation_config.eos_token_id = [END, 5, 9]
    drafter, target = map(PrefixDecoder, toys.predicts)
    drafter.end_tokens = target.end_tokens = frozenset((END, 5, 9))
    return Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large")), Pair(drafter, target)


@pytest.mark.parametrize(("method", "sampling"), PACED)
def test_a_batch_equals_single_rows_without_caches(ragged: tuple[Pair, Pair], method: str, sampling: SamplingSettings) -> None:
    """The fourth row is a batch of its own."""
    (cached, free), sources, request = ragged, toy_sources(4, seed=3), Request(12, sampling, seed=5)
    for settings in SETTINGS[method]:
        alone = [decode(method, settings, free, [source], request, [number])[0] for number, source in enumerate(sources)]
        assert len({tuple(one.tokens) for one in alone}) > 2
        assert len({len(one.tokens) for one in alone}) > 1
        assert decode_all(method, settings, cached, sources, request, 3) == alone


def test_draws_are_keyed_by_the_example_not_by_its_row(toys: Toys) -> None:
    sources, request = toy_sources(6, seed=1), Request(12, WARM, seed=0)
    settings = SpeculativeSettings(draft_length=3)
    whole = decode("speculative", settings, toys.cached, sources, request)
    order = [4, 1, 5]
    some = decode("speculative", settings, toys.cached, [sources[number] for number in order], request, order)
    assert some == [whole[number] for number in order]
    twins = decode("speculative", settings, toys.cached, [sources[0]] * 4, request)
    assert len({tuple(one.tokens) for one in twins}) > 1
