"""Texts of requests and answers: encoding that refuses what is too long, and pieces of a text that grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tasks.decoding.inference import DecodingPair
from tasks.models.prompting import SourceEncoder

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How tokenizers write the first bytes of a character whose others have not come yet."""


class TooLongError(Exception):
    """A source has more tokens than the pair reads; offline it would be cut."""


def encode_prompts(pair: DecodingPair, prompts: list[str]) -> list[list[int]]:
    """Return the token ids of each prompt.

    Raises:
        TooLongError: one does not fit into `max_source_tokens`.
    """
    text = pair.manifest.text
    encoder = SourceEncoder(pair.tokenizer, text)
    rows = encoder(prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        if encoder.cut or len(row) == text.max_source_tokens:
            tokens = encoder.whole_length(prompt)
            if tokens > text.max_source_tokens:
                template = " with its chat template" if text.chat_template else ""
                raise TooLongError(f"a prompt has {tokens} tokens{template}; the pair reads at most {text.max_source_tokens}")
    return rows


class NewText:
    """Gives the text of tokens piece by piece, whole characters only; joined, the pieces are the text."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Take what makes a text of tokens."""
        self._decode = decode
        self._given = ""

    def of(self, tokens: Sequence[int]) -> str:
        """Return what these tokens, the first ones of the text, add to what was given."""
        text = self._decode(tokens)
        # A later token may still change the end of a text, as the second half of a character does.
        if text.endswith(_UNFINISHED) or not text.startswith(self._given):
            return ""
        return self._new(text)

    def rest(self, tokens: Sequence[int]) -> str:
        """Return what is left of the whole text."""
        return self._new(self._decode(tokens))

    def _new(self, text: str) -> str:
        piece, self._given = text[len(self._given) :], text
        return piece
