"""The baselines do the same work as decoding here and generate the same tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bench import contenders
from tasks.bench.contenders import END, Shape, assisted, generate, new_tokens, random_model, random_sources
from tasks.decoding.decoder import REFERENCE, Rows, find_mismatches, widest_margin
from tasks.decoding.method import Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder, open_decoders

CPU = torch.device("cpu")
LIMIT = 12
SOURCES = random_sources(96, 6, 12)
LARGE, SMALL = Shape("t5", 64, 3, 96, 4, 4, 96), Shape("t5", 64, 1, 96, 4, 4, 96)


def vanilla(model: Any, sources: Rows = SOURCES) -> Rows:
    done = decode("vanilla_large", VanillaSettings(), open_decoders(model, model), sources, Request(LIMIT))
    return [one.tokens for one in done]


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return random_model(LARGE, CPU, 0), random_model(SMALL, CPU, 1)


@pytest.fixture(scope="module")
def ours(models: tuple[Any, Any]) -> Rows:
    return vanilla(models[0])


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_random_models_generate_varied_texts_that_never_end(family: str) -> None:
    model = random_model(Shape(family, 64, 3, 96, 4, 2 if family == "llama" else 4, 96), CPU, 1)
    assert all(source[-1] == END and 6 <= len(source) <= 12 for source in SOURCES)
    assert all(len(text) == LIMIT and END not in text and len({*text}) > 5 for text in vanilla(model))


def test_a_shape_makes_the_same_model_each_time_and_a_pair_agrees(models: tuple[Any, Any]) -> None:
    large, small = models
    again = random_model(LARGE, CPU, 0)
    assert all(torch.equal(one, other) for one, other in zip(large.parameters(), again.parameters(), strict=True))
    done = decode("speculative", SpeculativeSettings(draft_length=3), open_decoders(small, large), SOURCES, Request(LIMIT))
    assert sum(one.counts.accepted for one in done) > 0.5 * sum(one.counts.drafted for one in done)


@pytest.mark.parametrize("static", [False, True])
def test_generate_gives_our_tokens(models: tuple[Any, Any], ours: Rows, static: bool) -> None:
    from tests.toys import toy_sources, toy_t5

    assert new_tokens(models[0], generate(models[0], SOURCES, LIMIT, static=static), SOURCES) == ours
    deep, sources = toy_t5(3, encoder_layers=1, decoder_layers=3), toy_sources(4)
    deep.config.decoder_layers = 3  # as in every model that was trained here
    assert new_tokens(deep, generate(deep, sources, LIMIT, static=static), sources) == vanilla(deep, sources)


@pytest.mark.parametrize("length", [None, 3])
def test_assisted_generation_gives_our_tokens(models: tuple[Any, Any], ours: Rows, length: int | None) -> None:
    large, small = models
    assert [new_tokens(large, assisted(large, small, one, LIMIT, length), [one])[0] for one in SOURCES] == ours


def test_all_end_a_text_at_the_same_token(ours: Rows, tmp_path: Path) -> None:
    large = random_model(LARGE, CPU, 0)
    with torch.no_grad():  # the end token replaces a token of the texts
        head = large.get_output_embeddings().weight
        head[END] = 1.2 * head[ours[0][LIMIT // 2]]
    texts = vanilla(large)
    assert {len(text) for text in texts} != {LIMIT}, "no text ends"
    contenders.convert(large, tmp_path)
    taken = [
        contenders.translate(contenders.Converted(tmp_path, 1), SOURCES, LIMIT, batched=batched) for batched in (False, True)
    ]
    assert all(seconds > 0 for seconds, _ in taken)
    reference = open_decoder(large, "large", runtime=REFERENCE)
    for theirs in (*(found for _, found in taken), new_tokens(large, generate(large, SOURCES, LIMIT), SOURCES)):
        assert widest_margin(find_mismatches(reference, SOURCES, texts, theirs)) < 1e-4


def test_a_model_that_does_not_open_is_reported(tmp_path: Path) -> None:
    with contenders.all_environments() as processes, pytest.raises(RuntimeError, match="nowhere"):
        processes["MKL"].submit(contenders.translate, contenders.Converted(tmp_path / "nowhere", 1), SOURCES, 4).result()
