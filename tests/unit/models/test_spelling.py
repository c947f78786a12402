"""What tokens stand for, in tokenizers of both kinds, and how text is spelled with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.models.tokenizers import ByteEncoder, load_tokenizer, token_bytes
from tests.calibration import tiny
from tests.gguf_files import write_gguf

TEXT = "the other — Grüße 10 €\n"


def byte_level(tmp_path: Path) -> Any:
    return load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))


def sentence_piece(tmp_path: Path) -> Any:
    return tiny("t5")[1]


@pytest.mark.parametrize(("made", "text"), [(byte_level, TEXT), (sentence_piece, "red blue 37 green")])
def test_the_tokens_of_a_text_stand_for_its_bytes(made: Any, text: str, tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    spelled = token_bytes(tokenizer)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(spelled[token] for token in tokens).decode().removeprefix(" ") == text
    assert all(spelled[token] == b"" for token in tokenizer.all_special_ids)
    speller = ByteEncoder(spelled, unknown=0)
    again = speller(text.encode())
    assert b"".join(spelled[token] for token in again) == text.encode()
    assert len(again) <= len(tokens) + 1


def test_bytes_of_sentence_piece() -> None:
    class Backend:
        def to_str(self) -> str:
            replaced = '{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}'
            return f'{{"decoder": {{"type": "Sequence", "decoders": [{replaced}]}}}}'

    class Tokenizer:
        all_special_ids = (0,)
        backend_tokenizer = Backend()

        def get_vocab(self) -> dict[str, int]:
            return {"<s>": 0, "▁a": 1, "<0xE4>": 2, "▁": 5}

    assert token_bytes(Tokenizer()) == [b"", b" a", b"\xe4", b"", b"", b" "]
    Backend.to_str = lambda self: '{"decoder": {"type": "WordPiece"}}'  # type: ignore[method-assign]
    with pytest.raises(InputError, match="the tokenizer Tokenizer is neither byte-level nor of SentencePiece's kind"):
        token_bytes(Tokenizer())


def test_the_fewest_tokens_by_hand() -> None:
    speller = ByteEncoder([b"", b"a", b"ab", b"abc", b"cd", b"bcde", b"d", b"a", b"b", b"c"], unknown=99)
    assert speller(b"abcd") == [2, 4]
    assert speller(b"abcdd") == [2, 4, 6]
    assert speller(b"abcde") == [1, 5]
    assert speller(b"x") == speller(b"") == [99]
    assert (speller.token(b"a"), speller.token(b"e")) == (1, None)
