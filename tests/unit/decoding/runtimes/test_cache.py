"""After rewinding and reordering, a model with a cache predicts the same as from the whole prefix."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Decoder, Step
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.methods import LAYERED, SETTINGS, with_samplings
from tests.toys import VOCABULARY, Predict, PrefixDecoder, Toys, toy_sources, toy_t5, whole_runs


def assert_same(cached: Decoder, free: Decoder, steps: tuple[Step, Step]) -> None:
    assert cached.lengths == free.lengths
    assert steps[0].lengths == steps[1].lengths
    for row, count in enumerate(steps[0].lengths):
        torch.testing.assert_close(steps[0].logits[row, :count], steps[1].logits[row, :count], atol=1e-4, rtol=0)


def random_walk(model: Any, predict: Predict, seed: int, moves: int) -> set[str]:
    """Apply the same random operations to a decoder with a cache and one without; return which kinds occurred."""
    rng = random.Random(seed)
    cached, free = TransformersDecoder(model, "toy"), PrefixDecoder(predict)
    sources = toy_sources(4, seed)
    assert cached.start(cached.encode(sources)) == free.start(free.encode(sources))
    done = set()
    for _ in range(moves):
        rows = len(cached.lengths)
        kind = rng.choice(["forward", "forward", "rewind", "reorder"])
        if kind == "rewind":
            lengths = [rng.randint(max(0, length - 4), length) for length in cached.lengths]
            cached.rewind(lengths)
            free.rewind(lengths)
        elif kind == "reorder":
            chosen = [rng.randrange(rows) for _ in range(rng.randint(2, 4))]
            cached.reorder(chosen)
            free.reorder(chosen)
        else:
            counts = [rng.randint(0, 3) for _ in range(rows)]
            counts[rng.randrange(rows)] = rng.randint(1, 3)
            tokens = [[rng.randrange(2, VOCABULARY) for _ in range(count)] for count in counts]
            assert_same(cached, free, (cached.forward(tokens), free.forward(tokens)))
            kind += " ragged" if len(set(counts)) > 1 else ""
            kind += " with nothing new" if 0 in counts else ""
        assert cached.lengths == free.lengths
        done.add(kind)
    return done


@pytest.mark.parametrize("depths", [(1, 3, "relu"), (3, 1, "gated-gelu")])
def test_a_rewound_cache_equals_no_cache(depths: tuple[int, int, str]) -> None:
    model = toy_t5(7, *depths)
    predict = whole_runs(model)
    done = set().union(*(random_walk(model, predict, seed, moves=25) for seed in range(3)))
    assert {"rewind", "reorder", "forward ragged", "forward ragged with nothing new"} <= done


def test_a_cache_rewound_to_nothing_starts_over(toys: Toys) -> None:
    cached, free = toys.cached.large, toys.free.large
    sources = toy_sources(2)
    for decoder in (cached, free):
        decoder.start(decoder.encode(sources))
        decoder.forward([[0, 5, 6], [0]])
        decoder.rewind([0, 0])
    assert_same(cached, free, (cached.forward([[0, 9], [0, 8]]), free.forward([[0, 9], [0, 8]])))


def test_one_encoder_output_serves_two_decoders(toys: Toys) -> None:
    """Dropping rows of one decoder leaves the other's sources unchanged."""
    first, second, free = (TransformersDecoder(toys.large, "a"), TransformersDecoder(toys.large, "b"), toys.free.large)
    sources = toy_sources(3)
    encoder_output = first.encode(sources)
    for decoder in (first, second):
        decoder.start(encoder_output)
    free.start(free.encode(sources))
    first.forward([[0]] * 3)
    first.reorder([2])
    assert_same(second, free, (second.forward([[0, 4]] * 3), free.forward([[0, 4]] * 3)))


def test_last_positions_of_ragged_rows() -> None:
    logits = torch.arange(12.0).reshape(2, 3, 2)
    step = Step(logits, [3, 1])
    assert torch.equal(step.last([1, 1]), torch.stack([logits[0, 2:3], logits[1, 0:1]]))
    assert torch.equal(step.last([2, 1])[0], logits[0, 1:3])
    assert torch.equal(step.last([2, 1])[1, 0], logits[1, 0])
    assert torch.equal(Step(logits, [3, 3]).last([2, 2]), logits[:, 1:])


GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=0.7, top_k=12, top_p=0.95)


@pytest.mark.parametrize(("method", "sampling"), with_samplings(sorted(METHODS.keys() - LAYERED), GREEDY, SAMPLED))
def test_every_method_gives_the_same_with_and_without_a_cache(toys: Toys, method: str, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(5, seed=3), Request(12, sampling, seed=5)
    for settings in SETTINGS[method]:
        cached, free = (decode(method, settings, pair, sources, request) for pair in (toys.cached, toys.free))
        assert cached == free
        assert len({tuple(one.tokens) for one in cached}) > 3
