"""Compares two tokenizers token by token, by the text that tokens stand for, and writes one's tokens with the other's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tasks.decoding.decoder import Rows
from tasks.decoding.translation import Translation
from tasks.errors import InputError
from tasks.models.prompting import SourceDecoder, SourceEncoder
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import ByteEncoder, token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTEXT = 8
"""Tokens before a draft with which its text is tokenised."""


def translation_between(
    small: PreTrainedTokenizerBase, large: PreTrainedTokenizerBase, ends: tuple[int, int], text: TextSettings
) -> Translation:
    """Return how the large model's tokens are written with the small model's.

    Args:
        small: The small model's tokenizer.
        large: The large model's.
        ends: The token that ends a text, of the small model and of the large one.
        text: How sources are put to a model.

    Raises:
        InputError: a tokenizer is of an unknown kind, or no token stands for the same text in both.
    """
    theirs, ours = token_bytes(small), token_bytes(large)
    encode_bytes = ByteEncoder(theirs, small.unk_token_id if small.unk_token_id is not None else ends[0])
    found = ((token, encode_bytes.token(spelled)) for token, spelled in enumerate(ours) if spelled)
    common = {token: same for token, same in found if same is not None}
    if not common:
        raise InputError("no token stands for the same text in the tokenizers of both models; take another small model")
    common[ends[1]] = ends[0]
    read, write = SourceDecoder(large, text), SourceEncoder(small, text)

    @functools.cache
    def spell(token: int) -> tuple[int, ...]:
        return tuple(encode_bytes(ours[token] if token < len(ours) else b""))

    def sources(rows: Rows) -> Rows:
        return write(read(rows))

    retokenizer = Retokenizer(large, theirs, ours, ends)
    return Translation(common, lambda token: list(spell(token)), sources, retokenizer)


class Retokenizer:
    """Writes the small model's tokens as the large model's tokenizer splits their text."""

    def __init__(self, large: PreTrainedTokenizerBase, theirs: list[bytes], ours: list[bytes], ends: tuple[int, int]) -> None:
        self._large, self._theirs, self._ours, self._ends = large, theirs, ours, ends
        self._encode_bytes = ByteEncoder(ours, ends[1])

    def __call__(self, text: list[int], drafted: list[int]) -> list[int]:
        """Return the large model's tokens for a draft behind a text.

        The last tokens of the text are tokenised with the draft. Where the tokenizer would then split these otherwise, the
        draft is spelled with the fewest tokens.
        """
        ended = drafted[-1:] == [self._ends[0]]
        spelled = b"".join(self._theirs[token] for token in drafted if token < len(self._theirs))
        end = [self._ends[1]] if ended else []
        if not spelled:
            return end
        for count in range(min(_CONTEXT, len(text)), -1, -1):
            kept = text[len(text) - count :]
            if all(token < len(self._ours) and self._ours[token] for token in kept):
                whole = b"".join(self._ours[token] for token in kept) + spelled
                found = self._tokens(whole.decode(errors="ignore"))
                if found is not None and found[:count] == kept:
                    return found[count:] + end
        return self._encode_bytes(spelled) + end

    def _tokens(self, text: str) -> list[int] | None:
        """Return the tokens of a text; none where the tokenizer adds a space, as SentencePiece does inside a word."""
        for written in (text.removeprefix(" "), text):
            tokens: list[int] = self._large(written, add_special_tokens=False, verbose=False)["input_ids"]
            if b"".join(self._ours[token] for token in tokens).decode(errors="ignore") == text:
                return tokens
        return None
