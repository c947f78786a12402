"""Tokenizers trained and loaded, and GGUF files."""

import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub.constants
import pytest
import torch

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.prompting import encode
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import END, PAD, UNKNOWN, load_tokenizer, train_tokenizer
from tests.gguf_files import END as GGUF_END
from tests.gguf_files import SPECIAL, TEMPLATE, TOKENS, llama, write_gguf
from tests.training import same_weights

THINGS = (
    "Schloss Straßenbahn Apfel Überzug Fenster Wagen Brücke Zeitung Kaffee Mädchen Garten Dolmetscher".split()  # noqa: SIM905
)
TEXTS = [
    f"{thing} Nr. {137 * number} läßt sich – wie naïve {other} – nicht „öffnen“, oder? Vielleicht {number} mal!"
    for number, (thing, other) in enumerate(itertools.permutations(THINGS, 2))
]
VOCABULARY = 128


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, TokenizerSettings(vocabulary=VOCABULARY))


def test_the_vocabulary_has_exactly_the_configured_size(tokenizer: Any) -> None:
    assert len(tokenizer) == VOCABULARY
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (PAD, END, UNKNOWN)
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCABULARY))


def test_text_comes_back(tokenizer: Any) -> None:
    for text in TEXTS:
        [ids] = encode(tokenizer, [text], 500)
        assert UNKNOWN not in ids
        assert ids[-1] == END
        assert END not in ids[:-1]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_an_unseen_character_is_unknown(tokenizer: Any) -> None:
    assert UNKNOWN in encode(tokenizer, ["Das ☃"], 500)[0]


def test_long_texts_are_cut_and_still_end(tokenizer: Any) -> None:
    whole, cut = (encode(tokenizer, TEXTS[:3], limit) for limit in (500, 6))
    for long, short in zip(whole, cut, strict=True):
        assert len(long) > 6
        assert short == [*long[:5], END]


def test_a_saved_tokenizer_loads_as_it_was_and_the_same_text_trains_the_same_one(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert loaded.get_vocab() == tokenizer.get_vocab()
    again = train_tokenizer(TEXTS, TokenizerSettings(vocabulary=VOCABULARY))
    assert encode(loaded, TEXTS, 500) == encode(again, TEXTS, 500) == encode(tokenizer, TEXTS, 500)
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id) == (PAD, END, UNKNOWN)


@pytest.mark.parametrize(
    ("texts", "vocabulary", "words"),
    [
        (TEXTS, 5000, r"tokenizer\.vocabulary is 5000: .* does not support that many pieces .* lower it"),
        (["".join(map(chr, range(0x4E00, 0x4F00)))], 128, r"tokenizer\.vocabulary is 128: .* more different .* raise it"),
        ([], 128, "the training text is empty"),
    ],
)
def test_text_that_does_not_fit_the_vocabulary(texts: list[str], vocabulary: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        train_tokenizer(texts, TokenizerSettings(vocabulary=vocabulary))


@pytest.mark.parametrize("broken", ["empty", "a model's configuration alone", "not JSON"])
def test_a_folder_without_a_tokenizer(broken: str, tokenizer: Any, tmp_path: Path) -> None:
    if broken == "a model's configuration alone":
        (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    elif broken == "not JSON":
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=rf"no tokenizer at {tmp_path}: .*[\w)]; name a folder"):
        load_tokenizer(tmp_path)


def test_the_folder_of_a_pair_is_no_model(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "large")
    with pytest.raises(InputError, match=f"{tmp_path} holds several models; append the name of one, such as /large"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("load", "what"), [(load_tokenizer, "tokenizer"), (load_model, "model")])
def test_without_a_network_a_hub_name_fails_at_once(load: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Nobody listens there any more.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(InputError, match=rf"no {what} at toys/none: .* the hub does not answer"):
        load("toys/none")


def test_offline_mode_and_a_folder_make_no_request(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    tokenizer.save_pretrained(tmp_path / "saved")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert len(load_tokenizer(str(tmp_path / "saved"))) == VOCABULARY
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="the hub does not answer"):
        load_tokenizer("toys/none")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_weights_are_those_of_the_model_that_was_written(file: Path) -> None:
    start = initial_model(ModelSettings(pretrained=str(file)), len(TOKENS), GGUF_END, GGUF_END)
    assert same_weights(start, llama())
    assert not start.training
    assert (start.config.rope_parameters["rope_theta"], start.config.eos_token_id) == (10_000.0, GGUF_END)


def test_quantised_weights_become_numbers_and_are_saved_as_a_plain_folder(tmp_path: Path) -> None:
    quantised = write_gguf(tmp_path / "q8.GGUF", kind=gguf.GGMLQuantizationType.Q8_0)
    model = load_model(quantised, dtype="auto")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not same_weights(model, llama())
    for name, weight in llama().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=float(weight.abs().max()) / 127)
    save_model(model, load_tokenizer(quantised), tmp_path / "saved")
    quantised.unlink()
    assert "quantization" not in (tmp_path / "saved" / "config.json").read_text(encoding="utf-8")
    assert same_weights(load_model(tmp_path / "saved"), model)
    assert load_tokenizer(tmp_path / "saved").chat_template == TEMPLATE


def test_the_tokenizer_comes_with_its_template(file: Path) -> None:
    tokenizer = load_tokenizer(file)
    assert tokenizer("the<|im_end|>")["input_ids"] == [TOKENS.index("the"), GGUF_END]
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


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else name)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install 'draftline\[gguf\]'"):
        load_model(file)
