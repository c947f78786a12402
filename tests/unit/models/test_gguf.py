"""GGUF files: what is read is what was written, what is saved is a plain folder, and other files are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tests.gguf_files import END, SPECIAL, TEMPLATE, TOKENS, llama, write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def equal(one: Any, other: Any) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_weights_are_those_of_the_model_that_was_written(file: Path) -> None:
    start = initial_model(ModelSettings(pretrained=str(file)), len(TOKENS), END, END)
    assert equal(start, llama())
    assert not start.training
    assert (start.config.rope_parameters["rope_theta"], start.config.eos_token_id) == (10_000.0, END)


def test_quantised_weights_become_numbers_and_are_saved_as_a_plain_folder(tmp_path: Path) -> None:
    quantised = write_gguf(tmp_path / "q8.GGUF", kind=gguf.GGMLQuantizationType.Q8_0)
    model = load_model(quantised)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not equal(model, llama())
    for name, weight in llama().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=float(weight.abs().max()) / 127)
    save_model(model, load_tokenizer(quantised), tmp_path / "saved")
    quantised.unlink()
    assert "quantization" not in (tmp_path / "saved" / "config.json").read_text(encoding="utf-8")
    assert equal(load_model(tmp_path / "saved"), model)
    assert load_tokenizer(tmp_path / "saved").chat_template == TEMPLATE


def test_the_tokenizer_comes_with_its_template(file: Path) -> None:
    tokenizer = load_tokenizer(file)
    assert tokenizer("the<|im_end|>")["input_ids"] == [TOKENS.index("the"), END]
    assert [tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token] == SPECIAL
    assert (len(tokenizer), tokenizer.chat_template) == (len(TOKENS), TEMPLATE)


def _cut(to: int) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(write_gguf(file).read_bytes()[:to])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "there is no such file"),
        (lambda file: file.write_bytes(b"pretended" * 99), "does not start with the GGUF magic bytes"),
        (_cut(4000), "the file ends within its header; copy it again"),
        (_cut(20_000), "no model at"),
        (lambda file: write_gguf(file, architecture="abacus"), "GGUF model with architecture abacus is not supported yet"),
        (lambda file: write_gguf(file, architecture="t5"), "it is a T5, of which transformers does not read the activation"),
        (lambda file: write_gguf(file, scaling="yarn"), r"its rotary positions are scaled \(llama\.rope\.scaling\.type\)"),
    ],
)
def test_another_file_is_one_line(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "model.gguf")
    with pytest.raises(InputError, match=words) as caught:
        load_model(tmp_path / "model.gguf")
    assert str(caught.value).startswith(f"no model at {tmp_path / 'model.gguf'}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else name)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install 'draftline\[gguf\]'"):
        load_model(file)
