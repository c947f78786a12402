"""Texts on their way in and out: nothing is cut silently, and pieces make the whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding import DecodingPair
from tasks.serve.api import NewText, TooLongError, encode_prompts
from tests.calibration import SOURCES


def as_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer of bytes: a character is whole with its last byte."""
    return bytes(tokens).decode("utf-8", errors="replace")


@given(st.text(max_size=20), st.lists(st.integers(1, 5), max_size=30))
def test_pieces_make_the_text(text: str, steps: list[int]) -> None:
    tokens, new, given_, end = list(text.encode()), NewText(as_bytes), "", 0
    for step in steps:
        end = min(len(tokens), end + step)
        piece = new.of(tokens[:end])
        assert "\N{REPLACEMENT CHARACTER}" not in piece or "\N{REPLACEMENT CHARACTER}" in text
        given_ += piece
    assert given_ + new.rest(tokens) == text


def test_prompts_are_encoded_as_offline(pair: DecodingPair) -> None:
    assert encode_prompts(pair, SOURCES[:3]) == pair.encode(SOURCES[:3])


def test_a_prompt_that_would_be_cut_is_refused(pair: DecodingPair) -> None:
    limit = pair.manifest.text.max_source_tokens
    text = "red"
    while len(pair.tokenizer(text)["input_ids"]) < limit:
        text += "r"
    assert len(encode_prompts(pair, [text])[0]) == limit
    with pytest.raises(TooLongError, match=f"a prompt has {limit + 1} tokens; the pair reads at most {limit}"):
        encode_prompts(pair, [SOURCES[0], text + "r"])
