"""Models that cannot be trained as the settings ask are refused before any work."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.model_checks import check_precision, check_vocabulary
from tasks.training.settings import TrainingSettings

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def of_type(model_type: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(model_type=model_type))


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5", "longt5"])
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_float16_is_refused_for_models_of_t5_s_kind(model_type: str, device: torch.device) -> None:
    words = f"the small model is of type {model_type}, whose activations overflow in it; set precision to bfloat16 or float32"
    with pytest.raises(InputError, match=words):
        check_precision(of_type(model_type), "small", TrainingSettings(precision="float16"), device)


def test_float16_is_refused_only_on_a_cpu() -> None:
    half = TrainingSettings(precision="float16")
    with pytest.raises(InputError, match="trains on a GPU alone, but the large model trains on the CPU; set precision to"):
        check_precision(of_type("gpt2"), "large", half, CPU)
    check_precision(of_type("gpt2"), "large", half, GPU)
    for precision in ("float32", "bfloat16"):
        check_precision(of_type("t5"), "large", TrainingSettings(precision=precision), CPU)


def test_float16_is_refused_for_a_shared_encoder_which_it_would_round() -> None:
    model = SimpleNamespace(config=SimpleNamespace(model_type="bart", shares_encoder=True))
    with pytest.raises(InputError, match="the small model's encoder stays the large model's; set precision to"):
        check_precision(model, "small", TrainingSettings(precision="float16"), GPU)


def tokenizer_of(seed: int) -> Any:
    letters = random.Random(seed)
    words = ("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(200))
    return train_tokenizer(words, TokenizerSettings(vocabulary=64))


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    ours, start = tokenizer_of(1), ModelSettings(pretrained=str(tmp_path))
    # A folder of weights alone says nothing of its tokens, and a random start has none of its own.
    check_vocabulary(ours, "data/tokenizer", start)
    check_vocabulary(ours, "data/tokenizer", ModelSettings())
    ours.save_pretrained(tmp_path)
    check_vocabulary(ours, "data/tokenizer", start)
    tokenizer_of(2).save_pretrained(tmp_path)
    words = f"token .* in the tokenizer at data/tokenizer but .* in that of {tmp_path}; train or load .*; a small model may"
    with pytest.raises(InputError, match=words):
        check_vocabulary(ours, "data/tokenizer", start)
