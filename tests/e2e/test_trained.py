"""Exactness on trained models: hundreds of inputs, every drafter."""

from pathlib import Path

import pytest

from tasks.corpora.example import read_jsonl
from tasks.decoding.method import DRAFTERS, Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode_all
from tasks.decoding.runtimes.choose import open_decoders
from tasks.models.checkpoints import load_model
from tasks.models.prompting import encode
from tasks.models.tokenizers import load_tokenizer

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


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_speculative_decoding_is_vanilla_token_for_token(trained: Trained, drafter: str) -> None:
    pair, sources = trained
    vanilla = decode_all("vanilla_large", VanillaSettings(), pair, sources, REQUEST, 150)
    drafted = decode_all("speculative", SpeculativeSettings(drafter=drafter, draft_length=4), pair, sources, REQUEST, 150)
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]
    assert len({tuple(one.tokens) for one in vanilla}) > 20
