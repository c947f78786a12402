"""Exactness on trained models: hundreds of inputs, every drafter."""

import shutil
from pathlib import Path

import pytest

from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import load_pair
from tasks.decoding.method import DRAFTERS, Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode_all
from tasks.decoding.runtimes.choose import open_decoders
from tasks.files import seal
from tasks.models.checkpoints import load_model
from tasks.models.prompting import encode
from tasks.models.settings import TextSettings, TokenizerSettings
from tasks.models.tokenizers import load_tokenizer, train_tokenizer

Trained = tuple[Pair, list[list[int]]]
REQUEST = Request(24)


@pytest.fixture(scope="module")
def trained(finished: Path) -> Trained:
    """The large model and the aligned drafter of the finished run, and the sources of its training split."""
    models = finished / "models/translation"
    tokenizer = load_tokenizer(models / "large")
    examples = read_jsonl(finished / "data/translation/corpus/train.jsonl")[:200]
    targets = encode(tokenizer, [example.references[0] for example in examples], 24)
    pair = open_decoders(load_model(models / "aligned" / "1"), load_model(models / "large"), calibration=targets)
    return pair, encode(tokenizer, [example.source for example in examples], 64)


@pytest.mark.parametrize("drafter", [drafter for drafter in DRAFTERS if drafter != "retokenized"])
def test_greedy_speculative_decoding_is_vanilla_token_for_token(trained: Trained, drafter: str) -> None:
    pair, sources = trained
    vanilla = decode_all("vanilla_large", VanillaSettings(), pair, sources, REQUEST, 150)
    drafted = decode_all("speculative", SpeculativeSettings(drafter=drafter, draft_length=4), pair, sources, REQUEST, 150)
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]
    assert len({tuple(one.tokens) for one in vanilla}) > 20


@pytest.mark.parametrize("drafter", ["small", "retokenized"])
def test_greedy_speculative_is_vanilla_across_tokenizers(
    finished: Path, trained: Trained, tmp_path: Path, drafter: str
) -> None:
    """The drafter gets a tokenizer of its own, in which it was not trained: what it drafts is odd, what is kept is not."""
    pair, sources = trained
    folder = shutil.copytree(finished / "models/translation/aligned/1", tmp_path / "small")
    text = [example.source for example in read_jsonl(finished / "data/translation/corpus/train.jsonl")]
    train_tokenizer(text, TokenizerSettings(vocabulary=390)).save_pretrained(folder)
    seal(folder)
    large = finished / "models/translation/large"
    translated = load_pair(large=large, drafter=folder, text=TextSettings(), device="cpu", threads=1).decoders
    settings = SpeculativeSettings(drafter=drafter, draft_length=4)
    drafted = decode_all("speculative", settings, translated, sources, REQUEST, 150)
    vanilla = decode_all("vanilla_large", VanillaSettings(), pair, sources, REQUEST, 150)
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]
    assert sum(one.counts.drafted for one in drafted) > sum(one.counts.accepted for one in drafted) > 0
