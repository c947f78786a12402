"""Staged speculation drafts what the small model alone drafts, in fewer runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tasks.decoding.batches import decode_all
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.drafters.staged import StagedDrafter
from tasks.decoding.execution import executor_for
from tasks.decoding.generation import Generation, total
from tasks.decoding.loop import generate
from tasks.decoding.randomness import TokenSource
from tasks.decoding.registry import Pair, Request, build_method, decode
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.replay.replayer import NotReplayableError
from tasks.decoding.settings import (
    BildAuthorsSettings,
    BildSettings,
    ConfidentSettings,
    SamplingSettings,
    SpeculativeCascadeSettings,
    SpeculativeSettings,
    VanillaSettings,
)
from tasks.decoding.turn import DraftRule
from tests.architectures import pair_of
from tests.toys import END, START, PrefixDecoder, prefix_pair, random_table, says, toy_sources

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)
METHODS: list[tuple[str, Any]] = [
    ("speculative", SpeculativeSettings(draft_length=5)),
    ("speculative_confident", ConfidentSettings(max_draft=6, stop_below=0.3)),
    ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=2.0, max_draft=6)),
    ("bild_authors", BildAuthorsSettings(fallback_threshold=0.3, rollback_threshold=1.0, max_draft=4)),
    ("speculative_cascade", SpeculativeCascadeSettings(rule="token_v2", deferral_cost=0.2, draft_length=4)),
]


DRAFTED = [[first, second, END] for first in range(2, 8) for second in range(2, 8)]


def calibrated(name: str) -> Pair:
    """A pair whose calibration set holds what its small model writes, so that proposals are often kept."""
    pair = pair_of(name)
    written = decode("vanilla_small", VanillaSettings(), pair, toy_sources(30, seed=3), Request(16))
    return dataclasses.replace(pair, calibration=[one.tokens for one in written])


def without_runs(generations: list[Generation]) -> list[Generation]:
    return [dataclasses.replace(one, counts=dataclasses.replace(one.counts, small_steps=0)) for one in generations]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("method", "settings"), METHODS, ids=[name for name, _ in METHODS])
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_every_draft_is_the_small_model_s(name: str, method: str, settings: Any, sampling: SamplingSettings) -> None:
    """Tokens, proposers and all counts but the small model's runs; alone and in batches, to the same random numbers."""
    pair, sources, request = calibrated(name), toy_sources(8), Request(16, sampling, seed=2)
    alone = decode_all(method, settings, pair, sources, request, 1)
    staged = dataclasses.replace(settings, drafter="staged")
    for batch in (1, 3):
        found = decode_all(method, staged, pair, sources, request, batch)
        assert without_runs(found) == without_runs(alone)
        assert total(found).small_steps < total(alone).small_steps
    assert found == decode_all(method, staged, pair, sources, request, 1)


def drafters(sampling: SamplingSettings) -> tuple[StagedDrafter, ModelDrafter]:
    """The staged drafter and the plain one, each with a cache of its own."""
    small = random_table("small", agreement=0, sharpness=3.0, end=-1.0)
    pair = prefix_pair(small, says([2]))
    written = decode("vanilla_small", VanillaSettings(), pair, DRAFTED, Request(9))
    pair = dataclasses.replace(pair, calibration=[one.tokens for one in written[::2]])
    staged = make_drafter("staged", pair, sampling, TokenSource(5))
    assert isinstance(staged, StagedDrafter)
    return staged, ModelDrafter(PrefixDecoder(small), sampling, TokenSource(5))


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=1.0, top_k=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "rule", [DraftRule(1), DraftRule(6), DraftRule(6, fallback_threshold=0.5), DraftRule(6, stop_below=0.3)], ids=str
)
def test_tokens_distributions_and_fallbacks_by_the_draft(rule: DraftRule, sampling: SamplingSettings) -> None:
    staged, plain = drafters(sampling)
    sources, count = DRAFTED, len(DRAFTED)
    rows, examples, budgets = [[START] for _ in sources], range(count), [rule.window] * count
    for drafter in (staged, plain):
        drafter.start(staged.small.decoder.encode(sources), sources)
    found, expected = (drafter.draft(rows, examples, budgets, rule) for drafter in (staged, plain))
    assert (found.tokens, found.fallback) == (expected.tokens, expected.fallback)
    assert all(ours <= theirs for ours, theirs in zip(found.steps, expected.steps, strict=True))
    assert (sum(found.steps) < sum(expected.steps)) == (rule.window > 1)
    for row, tokens in enumerate(found.tokens):
        assert torch.equal(found.q.logits[row, : len(tokens)], expected.q.logits[row, : len(tokens)])
        assert staged.small.decoder.rows[row] == (rows[row] + tokens)[: staged.small.decoder.lengths[row]]  # type: ignore[attr-defined]


def test_the_runs_of_a_draft_by_hand() -> None:
    """Outputs were 2 3 4 5 6 7, and the small model says 2 3 4 6 7: three runs in place of six."""
    pair = dataclasses.replace(prefix_pair(says([2, 3, 4, 6, 7]), says([2])), calibration=[[2, 3, 4, 5, 6, 7, END]])
    staged = make_drafter("staged", pair, GREEDY, TokenSource(0))
    assert isinstance(staged, StagedDrafter)
    staged.start(pair.small.encode([[2, END]]), [[2, END]])
    draft = staged.draft([[START]], [0], [8], DraftRule(8))
    assert draft.tokens == [[2, 3, 4, 6, 7, END]]
    # The first run is fed the beginning and 2 3, which it keeps, and says 4; the second 4 and 5 6 7 END, and it says 6 in place
    # of 5; the third 6 and 7 END.
    assert draft.steps == [3]
    assert pair.small.runs == [[3], [5], [3]]  # type: ignore[attr-defined]


def test_it_runs_in_the_general_loop_and_is_not_replayed() -> None:
    pair, settings, request = calibrated("t5"), SpeculativeSettings(drafter="staged"), Request(9)
    assert executor_for(build_method("speculative", settings, pair, request), 1) is generate  # type: ignore[arg-type]
    with pytest.raises(NotReplayableError, match="runs the small model step by step"):
        decode("speculative", settings, replay_pair(pair, PredictionCache(pair)), toy_sources(1), request)
