"""What is measured during training: quality by greedy texts, which equal decoding, and the size of evaluation batches."""

import itertools
from typing import Any

import pytest
import torch

from tasks.corpora.example import Example
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode_all
from tasks.decoding.runtimes.choose import open_decoder
from tasks.models.checkpoints import initial_model
from tasks.models.prompting import encode
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.loop import HeldOutQuality, evaluation_batch

TEXT = TextSettings(max_source_tokens=20, max_target_tokens=12)
SHAPE: dict[str, Any] = {"d_model": 32, "d_ff": 48, "d_kv": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 3}


WORDS = ["red", "blue", "green", "black", "white", "brown"]
SOURCES = [" ".join(chosen) for count in (4, 1, 2) for chosen in itertools.islice(itertools.permutations(WORDS, count), 30)]
"""More examples than one batch holds, of unequal lengths."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    text = [*SOURCES, *(f"nor is {number}" for number in range(0, 9000, 37))]
    return train_tokenizer(text, TokenizerSettings(vocabulary=64))


def model_of(architecture: str) -> Any:
    """A random model that writes varied text: as it starts, it would repeat one token."""
    model = initial_model(ModelSettings(**SHAPE, architecture=architecture, seed=4), 64, pad=0, end=1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


def written(model: Any, tokenizer: Any) -> list[str]:
    """What the project's own decoding writes."""
    decoder = open_decoder(model.eval(), "toy", 64, REFERENCE)
    ids = encode(tokenizer, SOURCES, TEXT.max_source_tokens)
    pair, request = Pair(small=decoder, large=decoder), Request(TEXT.max_target_tokens)
    found = decode_all("vanilla_large", VanillaSettings(), pair, ids, request, 16)
    return [str(text) for text in tokenizer.batch_decode([one.tokens for one in found], skip_special_tokens=True)]


@pytest.mark.parametrize("architecture", ["t5", "llama", "gpt2"])
def test_texts_equal_decoding_and_have_their_own_references(architecture: str, tokenizer: Any) -> None:
    model = model_of(architecture)
    outputs = written(model, tokenizer)
    assert len(set(outputs)) > len(outputs) / 3
    own = [Example(source, ("something else", output)) for source, output in zip(SOURCES, outputs, strict=True)]
    assert HeldOutQuality(own, tokenizer, TEXT, "bleu")(model)["quality"] == pytest.approx(100.0)
    others = [Example(source, (output,)) for source, output in zip(SOURCES, outputs[1:] + outputs[:1], strict=True)]
    assert HeldOutQuality(others, tokenizer, TEXT, "bleu")(model)["quality"] < 90


def test_measuring_changes_neither_weights_nor_randomness(tokenizer: Any) -> None:
    model = model_of("t5").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    measured = HeldOutQuality([Example(source, ("red",)) for source in SOURCES], tokenizer, TEXT, "rougeL")(model)
    assert torch.equal(torch.rand(2), expected)
    assert measured.keys() == {"quality"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize(("longest", "vocabulary", "size"), [(256, 2**16, 4), (56, 2**16, 18), (256, 100, 64), (2**20, 100, 1)])
def test_an_evaluation_batch_is_as_large_as_its_logits_allow(longest: int, vocabulary: int, size: int) -> None:
    assert evaluation_batch(longest, vocabulary) == size
