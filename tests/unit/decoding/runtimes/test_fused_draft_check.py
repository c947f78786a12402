"""The fused runtime accepts of a draft what the rule accepts after a plain run, with recorded graphs and without."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance, Step, StopRule
from tasks.decoding.runtimes import fused as fused_runtime
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.cuda_graphs import fetch
from tasks.decoding.runtimes.fused import FusedDecoder
from tests.acceptance import MORE_BOUNDS, kept_by, often_likeliest
from tests.architectures import models
from tests.tape import TapeRecorder
from tests.toys import VOCABULARY, toy_sources, toy_t5
from tests.unit.decoding.runtimes.fused_decoders import assert_same, fused, name_and_recorded, recorded_or_not

KEEPS = [
    GreedyAcceptance(max_surprisal, keep_agreed)
    for max_surprisal in (-1.0, 0.0, 0.05, 2.0, math.inf)
    for keep_agreed in (False, True)
] + [GreedyAcceptance(-1.0, keep_agreed=False, min_share=share) for share in (1.0, 0.3, 0.02)]
KEEPS += [GreedyAcceptance(max_surprisal, keep_agreed=False, first_only=True) for max_surprisal in (0.05, 2.0)]
KEEPS += MORE_BOUNDS


@name_and_recorded
def test_a_check_is_a_run_and_the_rule(name: str, recorded: bool) -> None:
    """Drafts of every length, likely and unlikely, each rewound to its accepted tokens; the first follows a whole prompt."""
    model, rng = models(name)[1], random.Random(4)
    decoder, plain = fused(model, recorded=recorded), fused(model)
    found = set()
    for turn, keep in enumerate(KEEPS * 3):
        if turn % 8 == 0:
            source = [rng.randrange(2, VOCABULARY) for _ in range(rng.choice((3, 20)))]
            [pending] = decoder.start(decoder.encode([source]))
            plain.start(plain.encode([source]))
        # No longer than GPT-2's 64 positions allow.
        count = rng.choice([0, 1, 2, 4, 7] if plain.lengths[0] > 30 else [0, 1, 4, 16, 18])
        drafted = [rng.randrange(2, VOCABULARY) for _ in range(count)]
        begun = plain.lengths
        for position in range(count):
            step = plain.forward([pending + drafted[:position]])
            drafted[position] = often_likeliest(step.logits[0, -1], drafted[position], 0.85, rng)
            plain.rewind(begun)
        before = decoder.lengths[0] + len(pending)
        checked, step = decoder.check_draft(pending, drafted, keep), plain.forward([pending + drafted])
        assert step.hidden is not None
        logits, hidden = step.last([count + 1]), step.hidden[:, -count - 1 :]
        assert_same(checked.step, Step(logits, [count + 1], hidden))
        assert checked.accepted == kept_by(checked.step.logits[0], drafted, keep)
        assert checked.next_token == int(checked.step.logits[0, checked.accepted].argmax())
        assert decoder.lengths == plain.lengths
        found.add("all" if checked.accepted == count else "some" if checked.accepted else "none")
        found.add("recorded" if len(pending) == 1 and count <= 16 else "unrecorded")
        for one in (decoder, plain):
            one.rewind([before + checked.accepted])
        pending = [checked.next_token]
    assert found == {"all", "some", "none", "recorded", "unrecorded"}


@recorded_or_not
def test_each_rule_by_hand(recorded: bool) -> None:
    """The likeliest token, and the second."""
    decoder = fused(models("llama")[1], recorded=recorded)
    [start] = decoder.start(decoder.encode([[5, 9]]))
    step = decoder.forward([start])
    assert step.argmax is not None
    [first, second] = step.logits[0, -1].topk(2).indices.tolist()
    apart = [-float(step.logits[0, -1].log_softmax(-1)[token]) for token in (first, second)]
    decoder.rewind([1])
    for token, max_surprisal in zip((first, second), apart, strict=True):
        for keep, kept in (
            (GreedyAcceptance(-1.0, keep_agreed=False), 0),
            (GreedyAcceptance(-1.0, keep_agreed=True), int(token == first)),
            (GreedyAcceptance(0.0, keep_agreed=False), 0),
            (GreedyAcceptance(max_surprisal + 1e-3, keep_agreed=False), 1),
            (GreedyAcceptance(max_surprisal - 1e-3, keep_agreed=False), 0),
            (GreedyAcceptance(max_surprisal - 1e-3, keep_agreed=True), int(token == first)),
            (GreedyAcceptance(math.inf, keep_agreed=False), 1),
            (GreedyAcceptance(-1.0, keep_agreed=False, min_share=math.exp(apart[0] - max_surprisal) * 0.999), 1),
            (GreedyAcceptance(-1.0, keep_agreed=False, min_share=math.exp(apart[0] - max_surprisal) * 1.001), 0),
        ):
            checked = decoder.check_draft([9], [token], keep)
            assert checked.accepted == kept
            assert checked.next_token == (first if not kept else int(checked.step.logits[0, 1].argmax()))
            decoder.rewind([1])


def test_only_a_rule_that_accepts_all_accepts_a_masked_token() -> None:
    model = copy.deepcopy(models("llama")[1])
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
    with torch.no_grad():
        model.lm_head.bias[7] = -math.inf
    decoder = fused(model)
    for rule, kept in (
        (GreedyAcceptance(math.inf, keep_agreed=False), 2),
        (GreedyAcceptance(200.0, keep_agreed=True), 0),
    ):
        [start] = decoder.start(decoder.encode([[4, 5]]))
        assert decoder.check_draft(start, [7, 7], rule).accepted == kept


def test_a_draft_is_checked_in_float32_in_any_number_format() -> None:
    decoder = fused(copy.deepcopy(models("t5")[1]).bfloat16(), recorded=True)
    decoder.start(decoder.encode([[5, 9, 1]]))
    drafted = decoder.continue_greedily([0], 5, StopRule()).tokens
    decoder.rewind([0])
    logits = decoder.check_draft([0], drafted, KEEPS[0]).step.logits[0].float()
    distances = [-float(row.log_softmax(-1)[token]) for row, token in zip(logits, drafted, strict=False)]
    for max_surprisal in distances:
        for near in (max_surprisal - 1e-4, max_surprisal + 1e-4):
            decoder.rewind([0])
            keep = GreedyAcceptance(near, keep_agreed=False)
            assert decoder.check_draft([0], drafted, keep).accepted == kept_by(logits, drafted, keep)


def test_a_check_fetches_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transfer brings the likeliest tokens and the accepted count; drafts of one length share a recording."""
    fetched: list[tuple[int, ...]] = []

    def counted(tensor: torch.Tensor) -> Any:
        fetched.append(tuple(tensor.shape))
        return fetch(tensor)

    monkeypatch.setattr(fused_runtime, "fetch", counted)
    recorder, model = TapeRecorder(), models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    decoder.start(decoder.encode(toy_sources(1)))
    for turn in range(12):
        decoder.check_draft([4], [5 + turn] * (turn % 2 + 3), GreedyAcceptance(float(turn), keep_agreed=False))
        decoder.rewind([turn])
    assert fetched == [(5,), (6,)] * 6
    # The encoder, three tokens and four.
    assert recorder.recordings == 3


def test_a_checked_step_outlives_the_next_run() -> None:
    decoder = fused(models("t5")[1], recorded=True)
    decoder.start(decoder.encode(toy_sources(1)))
    step = decoder.check_draft([0], [4, 5], KEEPS[0]).step
    assert step.hidden is not None
    before = step.logits.clone(), step.hidden.clone()
    decoder.check_draft([0], [6, 7], KEEPS[0])
    assert torch.equal(step.logits, before[0])
    assert torch.equal(step.hidden, before[1])


@recorded_or_not
@pytest.mark.parametrize("pending, drafted", [([7], [5, 6, 9]), ([4], [5, 7, 9]), ([4], [5, 6, 7]), ([4, 7], [5]), ([7], [])])
def test_broken_logits_of_a_draft_are_named(recorded: bool, pending: list[int], drafted: list[int]) -> None:
    model = toy_t5(3, 1, 1)
    decoder = fused(model, recorded=recorded)
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    decoder.forward(starts)
    with torch.no_grad():
        model.shared.weight[7] = math.nan
    for keep in KEEPS:
        decoder.rewind([1])
        with pytest.raises(BrokenLogitsError, match="the toy model gave NaN, \\+infinity or no finite logit at step"):
            decoder.check_draft(pending, drafted, keep)
        decoder.start(decoder.encode([[2, 3, 1]]))
        assert decoder.check_draft([0], [5, 6], GreedyAcceptance(math.inf, keep_agreed=False)).accepted == 2


def test_a_draft_that_cannot_be_checked_is_refused() -> None:
    decoder = fused(models("gpt2")[1], vocabulary=20)
    decoder.start(decoder.encode([[2, 3]]))
    for pending, drafted in (([], [4]), ([2, 3], [4, 20]), ([2], [23])):
        with pytest.raises(ValueError, match="a draft needs at least one pending token"):
            decoder.check_draft(pending, drafted, KEEPS[0])
    with pytest.raises(IndexError, match="the toy model has 24 tokens, and was given 4 to 24"):
        decoder.check_draft([2], [4, 24], KEEPS[0])
    with pytest.raises(ValueError, match="a text of 65 tokens, but the model has 64 positions"):
        decoder.check_draft([2] * 60, [3] * 5, KEEPS[0])
    assert decoder.lengths == [0]
