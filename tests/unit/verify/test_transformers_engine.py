"""Assisted generation of `transformers` accepts exactly what this project's runtime accepts, draft by draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.decoding import load_pair
from tasks.verify.decoding import decode_here
from tasks.verify.transformers_engine import TransformersEngine
from tests.pair_folders import LETTERS, agreeing_pair


@pytest.fixture(scope="module", params=["t5", "bart", "llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agreeing_pair(tmp_path_factory.mktemp("pair"), request.param)


@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_texts_and_counts_are_this_projects_own(folder: Path, draft_length: int) -> None:
    pair = load_pair(folder)
    limit, sources = pair.manifest.text.max_target_tokens, pair.encode(LETTERS)
    expected = decode_here(pair, draft_length, sources, limit)
    engine = TransformersEngine(folder, draft_length)
    found = [engine.decode(source, limit) for source in sources]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for one, other in zip(found, expected, strict=True):
        for name in ("tokens", "large_calls", "drafted", "accepted", "rollbacks", "verified", "kept"):
            assert getattr(one.counts, name) == getattr(other.counts, name), name
    # Without both kinds of drafts, equal counts would show little.
    assert any(one.counts.rollbacks for one in found)
    assert any(one.counts.accepted for one in found)
