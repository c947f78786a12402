"""OpenVINO GenAI calls the large model as often as this project's runtime by the same schedule, text by text."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding import load_pair
from tasks.errors import InputError
from tasks.models.openvino_model import check_convertible
from tasks.verify.decoding import decode_here, decode_here_from_the_second
from tasks.verify.openvino_engine import OpenvinoEngine
from tests.pair_folders import LETTERS, agreeing_pair


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agreeing_pair(tmp_path_factory.mktemp("pair"), request.param)


@pytest.mark.parametrize("draft_length", [1, 4])
def test_texts_and_calls_are_this_projects_own(folder: Path, draft_length: int) -> None:
    pair, engine = load_pair(folder), OpenvinoEngine(folder, draft_length)
    sources, limit = pair.encode(LETTERS), pair.manifest.text.max_target_tokens
    expected = decode_here_from_the_second(pair, draft_length, sources, limit)
    found = [engine.decode(source, limit) for source in sources]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    calls = [one.counts.large_calls for one in expected]
    assert [one.counts.large_calls for one in found] == calls
    # Without accepted and rejected drafts, equal numbers of calls would show little.
    assert any(one.counts.rollbacks for one in expected)
    assert sum(calls) < sum(len(one.tokens) for one in expected)


def test_the_first_token_is_decoded_alone(folder: Path) -> None:
    """Texts are the usual ones, their first token is the large model's own, and a text of one token has one call."""
    pair = load_pair(folder)
    sources, limit = pair.encode(LETTERS), pair.manifest.text.max_target_tokens
    usual, found = decode_here(pair, 3, sources, limit), decode_here_from_the_second(pair, 3, sources, limit)
    assert [one.tokens for one in found] == [one.tokens for one in usual]
    assert {one.proposers[0] for one in found} == {"l"}
    assert "s" in {one.proposers[0] for one in usual} or pair.opened.models["large"].config.model_type == "llama"
    assert all(one.counts.verified[1] >= 1 for one in found)

    first = found[0].tokens[0]
    large = dataclasses.replace(pair.opened.pair, large=_ending(pair.opened.pair.large, first))
    ended = dataclasses.replace(pair, opened=dataclasses.replace(pair.opened, pair=large))
    [short] = decode_here_from_the_second(ended, 3, sources[:1], limit)
    assert (short.tokens, short.counts.large_calls) == ([first], 1)


def _ending(large: Any, token: int) -> Any:
    """The model with another end token."""
    other = copy.copy(large)
    other.end_tokens = frozenset([token])
    return other


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "no speculative decoding for an encoder-decoder such as t5"),
        ({"model_type": "gemma2"}, "pair/large is a model of type gemma2; OpenVINO's form is written for gpt2 and llama alone"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "rotary positions of type dynamic"),
    ],
)
def test_what_cannot_be_converted_is_one_line(config: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        check_convertible(Path("pair/large"), config)


def test_scaled_rotary_positions_that_are_constant_can_be_converted() -> None:
    check_convertible(Path("pair/large"), {"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}})
    check_convertible(Path("pair/large"), {"model_type": "llama", "rope_scaling": None})
