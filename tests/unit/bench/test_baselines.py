"""The baselines do the same work as decoding here and generate the same tokens."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bench import ctranslate
from tasks.bench.baselines import assisted, generate, new_tokens
from tasks.bench.shapes import Shape, random_pair, random_sources
from tasks.decoding.decoder import REFERENCE, Decoder, Rows
from tasks.decoding.registry import Request, decode
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.settings import SpeculativeSettings, VanillaSettings
from tasks.evaluation.mismatches import find_mismatches, widest_margin

SHAPE = Shape(3, 32, 2, small_layers=1, vocabulary=60)
LIMIT = 12
SOURCES = random_sources(SHAPE, 6)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return random_pair(SHAPE)


@pytest.fixture(scope="module")
def reference(models: tuple[Any, Any]) -> Decoder:
    return open_decoder(models[0], "large", runtime=REFERENCE)


@pytest.fixture(scope="module")
def ours(models: tuple[Any, Any]) -> Rows:
    large, small = models
    done = decode("vanilla_large", VanillaSettings(), open_pair(small, large), SOURCES, Request(LIMIT))
    return [one.tokens for one in done]


def test_texts_have_full_length_and_variety(ours: Rows) -> None:
    assert [len(text) for text in ours] == [LIMIT] * len(SOURCES)
    assert len({tuple(text) for text in ours}) > 1
    assert max(len(set(text)) for text in ours) > 2


def test_a_shape_makes_the_same_model_each_time(models: tuple[Any, Any]) -> None:
    again, _small = random_pair(SHAPE)
    assert all(torch.equal(one, other) for one, other in zip(models[0].parameters(), again.parameters(), strict=True))


def test_the_small_model_agrees_with_the_large_one(models: tuple[Any, Any]) -> None:
    large, small = models
    done = decode("speculative", SpeculativeSettings(draft_length=3), open_pair(small, large), SOURCES, Request(LIMIT))
    assert sum(one.counts.accepted for one in done) > 0.5 * sum(one.counts.drafted for one in done)


@pytest.mark.parametrize("static", [False, True])
def test_generate_gives_our_tokens(models: tuple[Any, Any], ours: Rows, static: bool) -> None:
    large, _small = models
    assert new_tokens(large, generate(large, SOURCES, LIMIT, static=static), SOURCES) == ours


@pytest.mark.parametrize("static", [False, True])
def test_generate_takes_a_decoder_deeper_than_its_encoder(models: tuple[Any, Any], static: bool) -> None:
    from tests.toys import toy_sources, toy_t5

    model, sources = toy_t5(3, encoder_layers=1, decoder_layers=3), toy_sources(4)
    done = decode("vanilla_large", VanillaSettings(), open_pair(model, model), sources, Request(LIMIT))
    assert new_tokens(model, generate(model, sources, LIMIT, static=static), sources) == [one.tokens for one in done]


@pytest.mark.parametrize("length", [None, 3])
def test_assisted_generation_gives_our_tokens(models: tuple[Any, Any], ours: Rows, length: int | None) -> None:
    large, small = models
    assert [new_tokens(large, assisted(large, small, one, LIMIT, length), [one])[0] for one in SOURCES] == ours


def test_ctranslate2_gives_our_tokens(models: tuple[Any, Any], reference: Decoder, ours: Rows, tmp_path: Path) -> None:
    large, _small = models
    ctranslate.convert(large, tmp_path)
    translator = ctranslate.open_translator(str(tmp_path), 1)
    for batched in (False, True):
        seconds, texts = ctranslate.translate(translator, SOURCES, LIMIT, batched=batched)
        assert seconds > 0
        assert widest_margin(find_mismatches(reference, SOURCES, ours, texts)) < 1e-4


def test_ctranslate2_ends_a_text_at_the_same_token(ours: Rows, tmp_path: Path) -> None:
    large, _small = random_pair(SHAPE)
    with torch.no_grad():  # the end token replaces a token of the texts
        large.shared.weight[1] = 1.2 * large.shared.weight[ours[0][LIMIT // 2]]
    done = decode("vanilla_large", VanillaSettings(), open_pair(large, large), SOURCES, Request(LIMIT))
    texts = [one.tokens for one in done]
    assert {len(text) for text in texts} != {LIMIT}, "no text ends"
    ctranslate.convert(large, tmp_path)
    translated = ctranslate.translate(ctranslate.open_translator(str(tmp_path), 1), SOURCES, LIMIT, batched=False)[1]
    reference = open_decoder(large, "large", runtime=REFERENCE)
    assert widest_margin(find_mismatches(reference, SOURCES, texts, translated)) < 1e-4
    generated = new_tokens(large, generate(large, SOURCES, LIMIT), SOURCES)
    assert widest_margin(find_mismatches(reference, SOURCES, texts, generated)) < 1e-4


def test_the_process_answers_line_by_line(models: tuple[Any, Any], tmp_path: Path) -> None:
    ctranslate.convert(models[0], tmp_path)
    request = {"folder": str(tmp_path), "sources": SOURCES[:2], "limit": 4, "threads": 1, "batched": True}
    formats = ("float32", "float32", "int8")
    answers = io.StringIO()
    ctranslate.serve(io.StringIO("".join(f"{json.dumps({**request, 'number_format': one})}\n" for one in formats)), answers)
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [len(line["texts"]) for line in lines] == [2, 2, 2]
    assert lines[0]["texts"] == lines[1]["texts"]


def test_a_process_that_ends_is_reported(tmp_path: Path) -> None:
    with ctranslate.translator_process({}) as process, pytest.raises(RuntimeError, match="ended with status"):
        process.run(tmp_path / "nowhere", SOURCES, 4, 1)


def test_a_mismatch_is_found_with_its_margin(models: tuple[Any, Any], reference: Decoder, ours: Rows) -> None:
    large, _small = models
    changed = [list(text) for text in ours]
    changed[2][5] = (changed[2][5] + 1) % 60
    found = find_mismatches(reference, SOURCES, ours, changed)
    assert [(one.example, one.position) for one in found] == [(2, 5)]
    start = torch.tensor([[0, *ours[2][:5]]])
    with torch.inference_mode():
        logits = large(input_ids=torch.tensor([SOURCES[2]]), decoder_input_ids=start).logits[0, -1]
    first, second = logits.topk(2).values.tolist()
    assert found[0].margin == pytest.approx(first - second)
    assert widest_margin(found) == found[0].margin
    assert widest_margin(find_mismatches(reference, SOURCES, ours, [[*text, 1] for text in ours])) == 0
