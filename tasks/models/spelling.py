"""What text each token of a tokenizer stands for, and how text is spelled with the tokens of another one."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPACE = "▁"
"""Stands for a space in the tokens of SentencePiece."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token of SentencePiece that stands for one byte."""


def spellings(tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    """Return the UTF-8 bytes that each token stands for inside a text, by id; none for special tokens and unused ids.

    Raises:
        InputError: the tokenizer is neither byte-level, as that of GPT-2, nor of SentencePiece's kind.
    """
    spell = _spell_of(tokenizer)
    special = set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    known = tokenizer.get_vocab()
    found = [b""] * (max(known.values()) + 1)
    for token, index in known.items():
        if index in added:
            found[index] = b"" if added[index].special else token.encode()
        elif index not in special:
            found[index] = spell(token)
    return found


def _spell_of(tokenizer: PreTrainedTokenizerBase) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = {} if backend is None else json.loads(backend.to_str())["decoder"] or {}
    parts = decoder.get("decoders", [decoder])
    if any(part.get("type") == "ByteLevel" for part in parts):
        return _byte_level
    replaced = [part.get("replacement") or part.get("pattern", {}).get("String") for part in parts]
    if _SPACE in replaced:
        return _sentence_piece
    raise InputError(
        f"the tokenizer {type(tokenizer).__name__} is neither byte-level nor of SentencePiece's kind, so that its tokens "
        "cannot be compared with another tokenizer's; take two models of one tokenizer"
    )


def _byte_level(token: str) -> bytes:
    return bytes(_characters()[character] for character in token if character in _characters())


@functools.cache
def _characters() -> dict[str, int]:
    """Return the byte of each character of a byte-level token: visible ones of Latin-1 stand for themselves."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(_SPACE, " ").encode()


class Speller:
    """Spells bytes with the fewest tokens of one tokenizer."""

    def __init__(self, spelled: Sequence[bytes], unknown: int) -> None:
        """Take the bytes of each token, and the token that stands for what has none."""
        self._tokens: dict[bytes, int] = {}
        for token, text in enumerate(spelled):
            if text:
                self._tokens.setdefault(text, token)
        self._longest = max(map(len, self._tokens), default=0)
        self._unknown = unknown

    def token(self, text: bytes) -> int | None:
        """Return the token that stands for exactly these bytes; of several the one with the smallest id."""
        return self._tokens.get(text)

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens, at least one; the first of equally short spellings has the longest tokens at its end."""
        fewest: list[list[int] | None] = [[]]
        for end in range(1, len(text) + 1):
            best: list[int] | None = None
            for begin in range(max(0, end - self._longest), end):
                before, token = fewest[begin], self._tokens.get(text[begin:end])
                if before is not None and token is not None and (best is None or len(before) + 1 < len(best)):
                    best = [*before, token]
            fewest.append(best)
        return fewest[-1] or [self._unknown]
