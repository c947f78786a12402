from __future__ import annotations

import itertools
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from tasks.errors import InputError
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import END, PAD, UNKNOWN, encode, load_tokenizer, train_tokenizer

THINGS = [
    "Schloss",
    "Straßenbahn",
    "Apfel",
    "Überzug",
    "Fenster",
    "Wagen",
    "Brücke",
    "Zeitung",
    "Kaffee",
    "Mädchen",
    "Garten",
    "Dolmetscher",
]
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


def test_the_same_text_gives_the_same_tokenizer(tokenizer: Any) -> None:
    again = train_tokenizer(TEXTS, TokenizerSettings(vocabulary=VOCABULARY))
    assert again.get_vocab() == tokenizer.get_vocab()
    assert encode(again, TEXTS, 500) == encode(tokenizer, TEXTS, 500)


def test_a_saved_tokenizer_loads_as_it_was(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert encode(loaded, TEXTS, 500) == encode(tokenizer, TEXTS, 500)
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


def test_a_folder_that_is_missing() -> None:
    with pytest.raises(InputError, match="no tokenizer at models/none/here: there is no such folder; run the stage"):
        load_tokenizer(Path("models/none/here"))


@pytest.mark.parametrize("broken", ["empty", "a model's configuration alone", "not JSON"])
def test_a_folder_without_a_tokenizer(broken: str, tokenizer: Any, tmp_path: Path) -> None:
    if broken == "a model's configuration alone":
        (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    elif broken == "not JSON":
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=f"no tokenizer at {tmp_path}: "):
        load_tokenizer(tmp_path)


def test_without_a_network_a_hub_name_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Nobody listens there any more.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"no tokenizer at toys/none: .* the hub does not answer"):
        load_tokenizer("toys/none")
    assert time.monotonic() - begun < 5


def test_offline_mode_makes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(InputError, match="the hub does not answer"):
        load_tokenizer("toys/none")


def test_a_local_folder_makes_no_request(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    tokenizer.save_pretrained(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "named")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert len(load_tokenizer(str(tmp_path / "named"))) == VOCABULARY
