from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model
from tasks.models.pair import (
    check_architectures,
    check_lengths,
    check_pair,
    check_vocabulary,
    output_vocabulary,
    vocabulary_size,
)
from tasks.models.settings import ModelSettings, TextSettings
from tests.calibration import tiny
from tests.pair_folders import letter_tokenizer


@dataclass(frozen=True)
class Toy:
    """What the check reads of a tokenizer."""

    tokens: tuple[str, ...] = ("<pad>", "</s>", "<unk>", "a", "b")
    pad_token_id: int = 0
    eos_token_id: int = 1
    unk_token_id: int = 2
    bos_token_id: int | None = None
    shifted: dict[str, int] = field(default_factory=dict)

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)} | self.shifted


def toy_model(architecture: str, vocabulary: int = 24) -> Any:
    shape = ModelSettings(architecture=architecture, d_model=16, d_ff=24, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1)
    return initial_model(shape, vocabulary, 0, 1)


@pytest.mark.parametrize(
    ("small", "words"),
    [
        (Toy(tokens=Toy().tokens[:4]), "models/small has 4 tokens but models/large has 5"),
        (replace(Toy(), tokens=("<pad>", "</s>", "<unk>", "a", "c")), "token 'c' is 4 in models/small but missing in"),
        (replace(Toy(), tokens=("<pad>", "</s>", "<unk>", "b", "a")), "token 'b' is 3 in models/small but 4 in models/large"),
        (replace(Toy(), shifted={"b": 7}), "token 'b' is 7 in models/small but 4 in models/large"),
        (replace(Toy(), pad_token_id=3), "pad_token_id differs between models/small and models/large"),
        (replace(Toy(), eos_token_id=3), "eos_token_id differs"),
        (replace(Toy(), unk_token_id=3), "unk_token_id differs"),
        (replace(Toy(), bos_token_id=3), "bos_token_id differs"),
    ],
)
def test_differences_of_tokenizers_are_named(small: Toy, words: str) -> None:
    fix = "a pair needs one tokenizer: take two models that have it, or train both with it"
    with pytest.raises(InputError, match=f"{words}.*; {fix}$"):
        check_pair(small, Toy(), "models/small", "models/large")


def test_a_checkpoint_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    ours, folder, start = letter_tokenizer(), Path("data/tokenizer"), ModelSettings(pretrained=str(tmp_path))
    # A folder of weights alone says nothing of its tokens, and a random start has none of its own.
    check_vocabulary(ours, folder, start)
    check_vocabulary(ours, folder, ModelSettings())
    ours.save_pretrained(tmp_path)
    check_vocabulary(ours, folder, start)
    tiny("t5")[1].save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=f"the tokenizer at data/tokenizer has 24 tokens but that of {tmp_path} has 64; a pair"
    ):
        check_vocabulary(ours, folder, start)


def test_two_kinds_of_models_are_refused_as_a_pair() -> None:
    t5, llama, gpt2 = (toy_model(architecture) for architecture in ("t5", "llama", "gpt2"))
    check_architectures(t5, t5)
    check_architectures(gpt2, llama)
    with pytest.raises(InputError, match=r"small model is decoder-only \(llama\) but the large one is encoder-decoder \(t5\)"):
        check_architectures(llama, t5)
    with pytest.raises(InputError, match=r"small model is encoder-decoder \(t5\) but the large one is decoder-only \(gpt2\)"):
        check_architectures(t5, gpt2)


@pytest.mark.parametrize("architecture", ["t5", "llama", "gpt2"])
def test_the_vocabulary_of_a_pair_is_the_tokenizers(architecture: str) -> None:
    padded = [toy_model(architecture, size) for size in (5, 8, 16)]
    assert [output_vocabulary(model) for model in padded] == [5, 8, 16]
    assert vocabulary_size(Toy(), *padded) == 5
    # Ids may have gaps: the highest counts.
    assert vocabulary_size(replace(Toy(), shifted={"b": 7}), *padded[1:]) == 8
    with pytest.raises(InputError, match=rf"a model of type {architecture} predicts over 5 tokens but its tokenizer has 8"):
        vocabulary_size(replace(Toy(), shifted={"b": 7}), *padded)


def test_texts_longer_than_a_table_of_positions_are_refused() -> None:
    gpt2, bart = toy_model("gpt2"), SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True, max_position_embeddings=64))
    check_lengths(gpt2, "large", TextSettings(max_source_tokens=1000, max_target_tokens=24))
    with pytest.raises(InputError, match=r"the large model has 1024 positions, but .* come to 1025; lower them"):
        check_lengths(gpt2, "large", TextSettings(max_source_tokens=1000, max_target_tokens=25))
    check_lengths(bart, "small", TextSettings(max_source_tokens=64, max_target_tokens=64))
    with pytest.raises(InputError, match="the small model has 64 positions"):
        check_lengths(bart, "small", TextSettings(max_source_tokens=64, max_target_tokens=65))
    for architecture in ("t5", "llama"):
        check_lengths(toy_model(architecture), "large", TextSettings(max_source_tokens=9000, max_target_tokens=9000))
