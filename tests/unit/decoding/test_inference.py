"""The Python surface: one call opens a pair, one generates; the same texts as the registry's, in every way of asking."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TextIteratorStreamer

import tasks.decoding as surface
from tasks.decoding import DecodingPair, TextSettings, load_pair
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import GREEDY_ONLY, METHODS, configure_method, decode
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.settings import ModelSettings
from tests.calibration import SOURCES, TEXT, saved, tiny
from tests.pair_folders import letter_tokenizer

POINT = configure_method("bild", {"fallback_threshold": 0.02, "rollback_threshold": 3.0, "max_draft": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair whose large model drafts for itself, with an acceptance head."""
    models = tmp_path_factory.mktemp("models") / "large"
    tokenizer = saved("t5", models)
    save_model(tiny("t5")[0], tokenizer, models)
    rows = tokenizer(SOURCES[:8])["input_ids"]
    text = dataclasses.replace(TEXT, max_target_tokens=10)
    return write_pair_folder(models.parent / "pair", PairManifest(POINT, text), models, models, SOURCES[:4], rows)


@pytest.fixture(scope="module")
def pair(folder: Path) -> DecodingPair:
    return load_pair(folder, threads=1)


def expected(pair: DecodingPair, method: str, settings: object, sampling: SamplingSettings, seed: int = 0) -> list[list[int]]:
    """Tokens of the registry's own function."""
    request = Request(10, sampling, seed)
    found = decode(method, settings, pair.decoders, pair.encode(SOURCES[:3]), request)
    return [one.tokens for one in found]


def test_the_operating_point_decodes_by_default(pair: DecodingPair) -> None:
    outputs = pair.generate(SOURCES[:3])
    assert [one.tokens for one in outputs] == expected(pair, "bild", POINT.settings, SamplingSettings())
    for one in outputs:
        assert one.text == pair.tokenizer.decode(one.tokens, skip_special_tokens=True)
        assert one.counts.tokens == len(one.tokens) == len(one.proposers) <= 10
        assert one.counts.drafted > 0


@pytest.mark.parametrize("method", sorted({"vanilla_large", "speculative", "speculative_cascade"} - set(GREEDY_ONLY)))
def test_sampling_takes_the_names_of_transformers(method: str, pair: DecodingPair) -> None:
    drawn = [
        one.tokens
        for one in pair.generate(SOURCES[:3], method=method, do_sample=True, temperature=0.7, top_k=9, top_p=0.9, seed=5)
    ]
    settings = METHODS[method].settings()
    assert drawn == expected(pair, method, settings, SamplingSettings(temperature=0.7, top_k=9, top_p=0.9), 5)
    assert drawn != expected(pair, method, settings, SamplingSettings(temperature=0.7, top_k=9, top_p=0.9), 6)


def test_without_do_sample_decoding_is_greedy(pair: DecodingPair) -> None:
    one, other = (pair.generate(SOURCES[0], temperature=temperature, seed=seed) for temperature, seed in ((0.7, 1), (1.3, 2)))
    assert one[0].tokens == other[0].tokens


def test_settings_and_lengths_are_taken(pair: DecodingPair) -> None:
    [whole] = pair.generate(SOURCES[0], method="speculative", settings={"draft_length": 2})
    [short] = pair.generate(SOURCES[0], method="speculative", settings={"draft_length": 2}, max_new_tokens=4)
    assert short.tokens == whole.tokens[:4]
    assert max(drafted for drafted, _ in whole.counts.kept) == 2


@pytest.mark.parametrize("method", ["speculative", "bild", "vanilla_small", "sequence_cascade", "beam_large"])
def test_a_streamer_of_transformers_receives_the_text(method: str, pair: DecodingPair) -> None:
    streamer = TextIteratorStreamer(pair.tokenizer, skip_prompt=True, skip_special_tokens=True)
    [output] = pair.generate(SOURCES[1], method=method, streamer=streamer)
    assert "".join(streamer) == output.text


def test_a_streamer_receives_turn_by_turn(pair: DecodingPair) -> None:
    turns = MagicMock()
    [output] = pair.generate(SOURCES[1], method="speculative", settings={"draft_length": 2}, streamer=turns)
    given = [put.args[0] for put in turns.put.call_args_list]
    assert {(value.dim(), value.dtype) for value in given} == {(1, torch.int64)}
    prompt, *middle = (value.tolist() for value in given)
    assert (prompt, turns.mock_calls[-1]) == ([pair.tokenizer.pad_token_id], call.end())
    assert [token for turn in middle for token in turn] == output.tokens
    assert len(middle) == output.counts.large_calls > 1
    with pytest.raises(InputError, match="a streamer takes one text, but there are 2"):
        pair.generate(SOURCES[:2], streamer=turns)
    assert pair.generate([]) == []


def test_a_pair_is_one_line_and_texts_have_some_text(pair: DecodingPair) -> None:
    assert re.fullmatch(r"<pair of two models: bild drafter=small [^\n]*; native, float32, cpu>", repr(pair))
    wrong: list[Any] = [None, "", " ", ["red", ""], [None]]
    for texts in wrong:
        with pytest.raises(InputError, match="a text is missing or empty; give one, or a list of some"):
            pair.generate(texts)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"method": "bold"}, "method is bold; it must be one of"),
        ({"settings": {"draft_length": 2}}, "the setting draft_length needs a method"),
        ({"method": "bild", "settings": {"draft_length": 2}}, "bild: unknown setting draft_length"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1; it must be at least 2"),
        ({"do_sample": True, "temperature": 0.0}, "temperature is 0, which is greedy; leave out do_sample"),
        ({"method": "beam_large", "do_sample": True}, "beam"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: dict[str, object], line: str, pair: DecodingPair) -> None:
    with pytest.raises(InputError, match=line):
        pair.generate(SOURCES[0], **arguments)  # type: ignore[arg-type]


def test_each_model_opens_alone_in_transformers(folder: Path, pair: DecodingPair) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "drafter")
    inputs = tokenizer(SOURCES[:1], return_tensors="pt")
    for name in ("large", "drafter"):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / name)
        tokens = model.generate(**inputs, max_new_tokens=10, do_sample=False)[0, 1:].tolist()
        [output] = pair.generate(SOURCES[0], method="vanilla_large")
        assert tokens == output.tokens


def test_the_two_models_keep_their_places(folder: Path, tmp_path: Path) -> None:
    smaller = initial_model(ModelSettings(d_model=16, d_ff=16, d_kv=8, heads=2, decoder_layers=1, encoder_layers=1), 64, 0, 1)
    save_model(smaller, AutoTokenizer.from_pretrained(folder / "large"), tmp_path / "small")
    found = load_pair(write_pair_folder(tmp_path / "pair", PairManifest(POINT, TEXT), folder / "large", tmp_path / "small", []))
    own = load_pair(large=folder / "large", drafter=tmp_path / "small", text=TEXT)
    for one in (found, own):
        widths = {name: model.config.d_model for name, model in one.models.items()}
        assert widths == {"large": 32, "small": 16}


def test_tables_are_counted_from_the_folder(folder: Path, pair: DecodingPair) -> None:
    settings = {"drafter": "bigram", "draft_length": 2}
    [output] = pair.generate(SOURCES[0], method="speculative", settings=settings)
    [vanilla] = pair.generate(SOURCES[0], method="vanilla_large")
    assert output.tokens == vanilla.tokens
    own = load_pair(large=folder / "large", drafter=folder / "drafter", text=TEXT)
    with pytest.raises(InputError, match="drafter is bigram, which reads a calibration set, and this pair has none"):
        own.generate(SOURCES[0], method="speculative", settings=settings)


def test_a_pair_of_ones_own_is_lossless_by_default(folder: Path) -> None:
    own = load_pair(large=folder / "large", drafter=folder / "drafter", text=TextSettings(max_target_tokens=10))
    assert own.manifest.point == configure_method("speculative", {})
    assert own.generate(SOURCES[0])[0].tokens == own.generate(SOURCES[0], method="vanilla_large")[0].tokens
    assert own.device == ("cuda" if torch.cuda.is_available() else "cpu")
    eight = load_pair(folder, drafter_dtype="int8", device="cpu")
    assert "drafts native, int8" in repr(eight)
    assert eight.generate(SOURCES[0], method="speculative")[0].tokens == own.generate(SOURCES[0])[0].tokens


def test_what_is_missing_or_too_much_is_said(folder: Path) -> None:
    with pytest.raises(InputError, match="drafter is missing; give the folder of a pair, or both large and drafter"):
        load_pair(large=folder / "large")
    with pytest.raises(InputError, match="leave out large, drafter and text"):
        load_pair(folder, drafter=folder / "drafter")
    with pytest.raises(InputError, match="dtype is 'int4'; it must be one of"):
        load_pair(folder, dtype="int4")


def test_two_models_of_different_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    letter_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=rf"^{tmp_path} has 24 tokens but {folder / 'large'} has 64; a pair needs one tokenizer"
    ):
        load_pair(large=folder / "large", drafter=tmp_path)


def test_the_surface_loads_when_it_is_used() -> None:
    """The settings of the package are read by commands that must not wait for torch."""
    code = "import sys, tasks.decoding, tasks.decoding.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert all(getattr(surface, name) is not None for name in surface.__all__)
    with pytest.raises(AttributeError, match="no attribute 'load_pears'"):
        _ = surface.load_pears
