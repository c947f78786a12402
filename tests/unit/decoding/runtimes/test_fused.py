"""The fused runtime gives the reference's tokens, with recorded graphs and without, through every change of its caches."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, BrokenLogitsError, Runtime, StopRule
from tasks.decoding.generation import total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import ConfidentSettings, SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, FusedDecoder, SyncPolicy
from tasks.errors import InputError
from tasks.models.layers import shares_encoder
from tests.architectures import models
from tests.toys import VOCABULARY, toy_sources, toy_t5
from tests.unit.decoding.runtimes.fused_decoders import assert_same, every, fused, recorded_or_not

LIMIT = 14
GREEDY: list[tuple[str, Any]] = [
    ("vanilla_large", VanillaSettings()),
    ("vanilla_small", VanillaSettings()),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=0.2, max_draft=4)),
    ("speculative", SpeculativeSettings(draft_length=4)),
    ("speculative_confident", ConfidentSettings(max_draft=4, stop_below=0.5)),
    ("beam_large", BeamSettings(beams=3)),
    ("speculative_beam", SpeculativeBeamSettings(beams=2, draft_beams=4, draft_length=2)),
]


# Every method recorded and not, on two architectures; every architecture both ways, with two methods.
COVERING = [
    *(("t5", True, *case) for case in GREEDY),
    *(("llama", False, *case) for case in GREEDY),
    *(
        (name, recorded, *GREEDY[method])
        for name, recorded in (("t5", False), ("llama", True), ("mt5", True), ("gpt2", True), ("gpt2", False))
        for method in (2, 6)
    ),
]


def fused_pair(name: str, *, recorded: bool, sync_policy: SyncPolicy) -> Pair:
    small, large = (fused(model, recorded=recorded, sync_policy=sync_policy) for model in models(name))
    return Pair(small, large, shares_encoder=shares_encoder(*models(name)))


def reference_pair(name: str) -> Pair:
    return open_pair(*models(name), runtime=REFERENCE)


def llama_with_biases() -> Any:
    """A Llama with four query heads on two key heads, with biases and without tied weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True}
    shape = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    config = LlamaConfig(**heads, **shape, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = LlamaForCausalLM(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    return model


@pytest.mark.parametrize(("name", "recorded", "method", "settings"), COVERING)
def test_tokens_and_counts_are_the_references(name: str, recorded: bool, method: str, settings: Any) -> None:
    sources = toy_sources(4)
    ours = fused_pair(name, recorded=recorded, sync_policy=ONE_AHEAD if recorded else EACH_STEP)
    expected = decode(method, settings, reference_pair(name), sources, Request(LIMIT))
    assert decode(method, settings, ours, sources, Request(LIMIT)) == expected
    alone = [decode(method, settings, ours, [source], Request(LIMIT), [example])[0] for example, source in enumerate(sources)]
    assert alone == expected
    if method in ("bild", "speculative"):
        assert total(expected).rollbacks > 2


@every
def test_drawn_tokens_are_the_references(name: str) -> None:
    request = Request(LIMIT, SamplingSettings(temperature=0.8, top_p=0.95), seed=3)
    settings = SpeculativeSettings(draft_length=3)
    ours = fused_pair(name, recorded=True, sync_policy=ONE_AHEAD)
    expected = decode("speculative", settings, reference_pair(name), toy_sources(6), request)
    assert [one.tokens for one in decode("speculative", settings, ours, toy_sources(6), request)] == [
        one.tokens for one in expected
    ]


def walk(model: Any, decoder: FusedDecoder, seed: int, moves: int, kept: int = 60) -> set[str]:
    """Apply the same random operations to a fused decoder and the reference; return which kinds occurred."""
    rng, other = random.Random(seed), open_decoder(model, "toy", runtime=REFERENCE)
    sources = toy_sources(3, seed)
    starts = decoder.start(decoder.encode(sources))
    assert other.start(other.encode(sources)) == starts
    assert_same(decoder.forward(starts), other.forward(starts))
    done = set()
    for _ in range(moves):
        rows = len(decoder.lengths)
        kind = rng.choice(["forward", "forward", "forward", "rewind", "reorder"])
        if kind == "rewind" or max(decoder.lengths) > kept - 20:
            lengths = [rng.randint(max(1, length - 4 - 20 * (kind != "rewind")), length) for length in decoder.lengths]
            decoder.rewind(lengths)
            other.rewind(lengths)
        elif kind == "reorder":
            chosen = [rng.randrange(rows) for _ in range(rng.randint(1, 6))]
            kind += " with a row twice" if len(set(chosen)) < len(chosen) else ""
            decoder.reorder(chosen)
            other.reorder(chosen)
        else:
            counts = [rng.choice((0, 1, 1, 2, 3)) for _ in range(rows)]
            counts[rng.randrange(rows)] = rng.choice((1, 2, 3, 18))
            tokens = [[rng.randrange(2, VOCABULARY) for _ in range(count)] for count in counts]
            assert_same(decoder.forward(tokens), other.forward(tokens))
            kind += " with nothing new in a row" if 0 in counts else ""
        assert decoder.lengths == other.lengths
        done.add(kind)
    return done


@every
@recorded_or_not
def test_a_rewound_cache_is_the_references(name: str, recorded: bool) -> None:
    model = models(name)[1]
    decoder = fused(model, recorded=recorded)
    done = set().union(*(walk(model, decoder, seed, moves=25) for seed in range(2)))
    assert {"forward with nothing new in a row", "rewind", "reorder with a row twice"} <= done


@recorded_or_not
def test_grouped_heads_and_biases(recorded: bool) -> None:
    model = llama_with_biases()
    walk(model, fused(model, recorded=recorded), 1, moves=25)


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu", "gated-silu"])
def test_feed_forwards(feed_forward: str) -> None:
    model = toy_t5(3, 2, 2, feed_forward)
    walk(model, fused(model), 2, moves=12)


@pytest.mark.parametrize(("name", "recorded"), [("t5", True), ("llama", True), ("llama", False)])
def test_caches_grow_past_what_was_allocated(name: str, recorded: bool) -> None:
    """Sources longer than those recorded, texts beyond 64 and 128 positions, and rows that are duplicated."""
    model = models(name)[1]
    decoder = fused(model, recorded=recorded)
    other = open_decoder(model, "toy", runtime=REFERENCE)
    rng = random.Random(0)
    for length in (5, 70):
        sources = [[rng.randrange(2, VOCABULARY) for _ in range(length)]]
        starts = decoder.start(decoder.encode(sources))
        assert other.start(other.encode(sources)) == starts
        assert_same(decoder.forward(starts), other.forward(starts))
        for _ in range(12):
            tokens = [[rng.randrange(2, VOCABULARY) for _ in range(12)] for _ in decoder.lengths]
            assert_same(decoder.forward(tokens), other.forward(tokens))
        for rows in ([0, 0, 0], [2, 1, 0, 0, 1], [4]):
            decoder.reorder(rows)
            other.reorder(rows)
            tokens = [[rng.randrange(2, VOCABULARY)] for _ in rows]
            assert_same(decoder.forward(tokens), other.forward(tokens))


@every
def test_bfloat16_is_close(name: str) -> None:
    """Its distance from float32 is at most 1.5 times that of the reference in bfloat16."""
    exact = models(name)[1]
    model = copy.deepcopy(exact).bfloat16()
    sources = toy_sources(8)
    steps = []
    for decoder in (fused(exact), fused(model), open_decoder(model, "toy", runtime=REFERENCE)):
        starts = decoder.start(decoder.encode(sources))
        steps.append(decoder.forward([[*row, 4, 5, 6] for row in starts]).logits[:, -3:].float())
    ours, theirs = ((steps[0] - other).norm() / steps[0].norm() for other in steps[1:])
    assert 0 < ours < max(2e-2, 1.5 * float(theirs))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@recorded_or_not
def test_broken_logits_are_named(value: float, recorded: bool) -> None:
    model = toy_t5(3, 1, 1)
    decoder = fused(model, recorded=recorded)
    embedding = model.shared.weight
    before = embedding[7].clone()
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    with torch.no_grad():
        embedding[7] = value
    decoder.forward(starts)
    with pytest.raises(BrokenLogitsError, match="the toy model gave NaN, \\+infinity or no finite logit at step 2"):
        decoder.forward([[7]])
    decoder.start(decoder.encode([[2, 3, 1]]))
    with pytest.raises(BrokenLogitsError, match="step 1"):
        decoder.continue_greedily([0, 7], 3, StopRule())
    with torch.no_grad():
        embedding[7] = before
    # No broken value remains in the caches.
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    assert bool(torch.isfinite(decoder.forward(starts).logits).all())


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_layers_can_be_compiled(name: str) -> None:
    """One compilation serves all layers, changes no token, and can be undone."""
    model = models(name)[1]
    decoder, other = fused(model), fused(model)
    [source] = toy_sources(1)
    [start] = decoder.start(decoder.encode([source]))
    other.start(other.encode([source]))
    graphs: list[object] = []
    torch.compiler.reset()

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for wrap in (lambda block: torch.compile(block, dynamic=False, backend=count), None):
        decoder.wrap_layers(wrap)
        assert_same(decoder.forward([start]), other.forward([start]))
        decoder.rewind([0])
        other.rewind([0])
    assert len(graphs) == 1


def test_a_cut_vocabulary_and_unknown_ids() -> None:
    decoder = fused(models("gpt2")[1], vocabulary=20)
    starts = decoder.start(decoder.encode(toy_sources(2)))
    assert decoder.forward(starts).logits.shape[-1] == decoder.vocabulary == 20
    with pytest.raises(IndexError, match="the toy model has 24 tokens, and was given 24 to 24"):
        decoder.forward([[3], [24]])
    with pytest.raises(IndexError, match="-1 to 4"):
        decoder.continue_greedily([-1, 4], 2, StopRule())


def test_a_text_longer_than_the_positions_is_refused() -> None:
    decoder = fused(models("gpt2")[1])
    decoder.start(decoder.encode([[2] * 60]))
    decoder.forward([[2] * 60])
    # The padding of the row without new tokens lies past the last position, and is not refused.
    decoder.reorder([0, 0])
    assert decoder.forward([[3, 3, 3, 3], []]).lengths == [4, 0]
    with pytest.raises(ValueError, match="a text of 65 tokens, but the model has 64 positions"):
        decoder.forward([[3], []])


def test_which_models_the_fused_runtime_takes() -> None:
    model = models("llama")[1]
    assert isinstance(open_decoder(model, "large", runtime=Runtime("fused")), FusedDecoder)
    assert not isinstance(open_decoder(model, "large"), FusedDecoder)
    with pytest.raises(InputError, match="the fused runtime does not know models of type bloom configured like the large one"):
        open_decoder(models("bloom")[1], "large", runtime=Runtime("fused"))
    with pytest.raises(InputError, match="the fused runtime takes float32 and bfloat16, not float16; set"):
        open_decoder(copy.deepcopy(model).half(), "large", runtime=Runtime("fused"))
