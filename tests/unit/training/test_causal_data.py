"""Training data of decoder-only models: source and target in one row, the loss on the target alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.corpora.example import Example, write_jsonl
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import encode, train_tokenizer
from tasks.training.data import IGNORED, JsonlDataset, TokenDataset
from tasks.training.loop import _evaluation_batch
from tasks.training.losses import CrossEntropyLoss
from tasks.training.model_checks import check_trainable

PAIRS = [("one two", "two one"), ("one two three", "three two one"), ("two", "two"), ("three one", "one three one three")]
END = 1


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    numbers = [f"one two three {number}" for number in range(0, 9000, 37)]
    return train_tokenizer(numbers, TokenizerSettings(vocabulary=64))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_jsonl([Example(source, (target,)) for source, target in PAIRS], path)
    return path


def test_a_row_is_the_source_and_its_target(file: Path, tokenizer: Any) -> None:
    apart, joined = (JsonlDataset(file, tokenizer, TextSettings(), decoder_only=decoder_only) for decoder_only in (False, True))
    assert (apart.sources, apart.targets) == (joined.sources, joined.targets)
    batch = joined.batch([0, 1, 3])
    assert batch.source.shape == batch.mask.shape == batch.labels.shape
    for row, index in enumerate([0, 1, 3]):
        source, target = joined.sources[index], joined.targets[index]
        assert source[-1] == target[-1] == END
        length = len(source) + len(target)
        assert batch.source[row, :length].tolist() == source + target
        assert batch.mask[row].tolist() == [1] * length + [0] * (batch.mask.shape[1] - length)
        assert batch.labels[row, :length].tolist() == [IGNORED] * len(source) + target
        assert set(batch.labels[row, length:].tolist()) <= {IGNORED}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_loss_is_the_targets_alone(file: Path, tokenizer: Any, architecture: str) -> None:
    """Σ -log p(target token | all before it) over the target tokens, the end token among them."""
    shape = ModelSettings(architecture=architecture, d_model=16, d_ff=24, d_kv=8, heads=2, decoder_layers=2)
    model = initial_model(shape, 64, 0, END).eval()
    examples = JsonlDataset(file, tokenizer, TextSettings(), decoder_only=True)
    batch = examples.batch([0, 1, 2, 3])
    with torch.inference_mode():
        loss = CrossEntropyLoss().sums(model, batch)[0] / CrossEntropyLoss().counts(batch)[0]
        each = []
        for source, target in zip(examples.sources, examples.targets, strict=True):
            for place, token in enumerate(target):
                logits = model(input_ids=torch.tensor([source + target[:place]])).logits[0, -1]
                each.append(-torch.log_softmax(logits, -1)[token])
    assert float(loss) == pytest.approx(float(torch.stack(each).mean()), abs=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "t5"])
def test_the_head_of_a_decoder_only_model_skips_prompts(file: Path, tokenizer: Any, architecture: str) -> None:
    shape = ModelSettings(architecture=architecture, d_model=16, d_ff=24, d_kv=8, heads=2, decoder_layers=1, encoder_layers=1)
    model = initial_model(shape, 64, 0, END).eval()
    examples = JsonlDataset(file, tokenizer, TextSettings(), decoder_only=architecture != "t5")
    multiplied: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: multiplied.append(output.shape[:-1].numel()))
    batch = examples.batch([0, 1, 2, 3])
    CrossEntropyLoss().sums(model, batch)
    targets = int((batch.labels != IGNORED).sum())
    assert multiplied == [batch.labels.numel() if architecture == "t5" else targets]
    if architecture != "t5":
        assert model(input_ids=batch.source).logits.shape[:2] == batch.source.shape


class Words:
    """A tokenizer that marks the beginning of each text and not its end, as Llama's does."""

    bos_token_id, eos_token_id, pad_token_id = 3, END, END

    def __init__(self, marks: bool = True) -> None:
        self.marks = marks

    def __call__(self, texts: list[str], max_length: int, truncation: bool) -> dict[str, list[list[int]]]:
        rows = [[self.bos_token_id] * self.marks + [4 + len(word) for word in text.split()] for text in texts]
        return {"input_ids": [row[:max_length] for row in rows]}


def test_a_source_is_closed_by_its_end_token_whatever_the_tokenizer_does() -> None:
    assert encode(Words(), ["a bb ccc", "a", ""], 4) == [[3, 5, 6, END], [3, 5, END], [3, END]]
    assert encode(Words(marks=False), ["a bb ccc dddd", "a bb ccc", ""], 4) == [[5, 6, 7, END], [5, 6, 7, END], [END]]


def test_the_beginning_is_marked_once(file: Path) -> None:
    joined, apart = (JsonlDataset(file, Words(), TextSettings(), decoder_only=decoder_only) for decoder_only in (True, False))
    assert all(row[0] == 3 and row.count(3) == 1 for row in joined.sources)
    assert not any(3 in row for row in joined.targets)
    assert [row[1:] for row in apart.targets] == joined.targets


def test_fsmt_is_decoded_with_but_not_trained() -> None:
    with pytest.raises(InputError, match="the small model is of type fsmt, which transformers trains on its source"):
        check_trainable(SimpleNamespace(config=SimpleNamespace(model_type="fsmt")), "small")
    check_trainable(SimpleNamespace(config=SimpleNamespace(model_type="bart")), "small")


@pytest.mark.parametrize(("decoder_only", "vocabulary", "size"), [(True, 2**16, 4), (False, 2**16, 18), (True, 100, 64)])
def test_an_evaluation_batch_is_as_large_as_its_logits_allow(decoder_only: bool, vocabulary: int, size: int) -> None:
    examples = TokenDataset([[1], [1] * 200], [[1], [1] * 56], pad=0, decoder_only=decoder_only)
    assert _evaluation_batch(examples, vocabulary) == size
