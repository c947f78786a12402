"""A greedy continuation in one call equals single steps, and stops where the draft rule would."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import BrokenLogitsError, Continuation, StopRule
from tasks.decoding.drafters.base import DraftBuilder, DraftRule
from tasks.decoding.runtimes.native import NativeDecoder
from tests import laws
from tests.toys import END, toy_sources, toy_t5
from tests.unit.decoding.runtimes.odd import FEW, KINDS, POSITIONS, begin, model_of, native, random_rows

Steps = tuple[list[int], list[float], Tensor, list[float]]
"""The fields of a continuation."""


def stepwise(decoder: NativeDecoder, pending: list[int], budget: int, rule: DraftRule) -> Steps:
    """The continuation by single steps."""
    window = DraftBuilder(budget, rule, decoder.end_tokens)
    tokens: list[int] = []
    confidences: list[float] = []
    entropies: list[float] = []
    logits: list[Tensor] = []
    while window.going:
        step = decoder.forward([[tokens[-1]] if tokens else pending])
        assert step.argmax is not None
        logits.append(step.logits[0, -1])
        tokens.append(step.argmax[0][-1])
        asked = rule.fallback_threshold > 0 or rule.stop_below > 0
        confidences.append(float(torch.softmax(logits[-1], -1).max()) if asked else 1.0)
        nats = laws.nats(torch.softmax(logits[-1], -1).tolist())
        entropies.append(nats if rule.max_entropy < math.inf else 0.0)
        window.add(tokens[-1], confidences[-1], entropies[-1])
    return tokens, confidences, torch.stack(logits), entropies


def assert_alike(made: Continuation, expected: Steps) -> None:
    tokens, confidences, logits, entropies = expected
    assert made.entropies == pytest.approx(entropies, abs=1e-4)
    assert made.tokens == tokens
    assert made.confidence == pytest.approx(confidences, abs=1e-5)
    assert torch.equal(made.logits[0], logits)


RULES = [
    DraftRule(9),
    DraftRule(1),
    DraftRule(9, fallback_threshold=0.3),
    DraftRule(9, fallback_threshold=0.6),
    DraftRule(9, stop_below=0.2),
    DraftRule(9, fallback_threshold=0.3, stop_below=0.4),
    DraftRule(9, max_entropy=2.6),
    DraftRule(9, stop_below=1e-4, max_entropy=2.2),
    DraftRule(80, fallback_threshold=1e-6),
]


def compare(model: Any, sources: list[list[int]], pendings: list[list[int]]) -> list[int]:
    """Compare both ways for all rules, rewinding after each; return the length of each continuation."""
    one, other = native(model), native(model)
    counts = []
    for source in sources:
        [text] = begin(one, [source])
        assert begin(other, [source]) == [text]
        for rule, pending in zip(RULES * 2, pendings, strict=False):
            cached = one.lengths[0]
            fed = [*text[cached:], *pending]
            made = one.continue_greedily(fed, rule.window, StopRule(rule.fallback_threshold, rule.stop_below, rule.max_entropy))
            assert_alike(made, stepwise(other, fed, rule.window, rule))
            counts.append(len(made.tokens))
            assert one.lengths == other.lengths == [cached + len(fed) + len(made.tokens) - 1]
            kept = cached + len(fed) + len(made.tokens) // 2
            for decoder in (one, other):
                decoder.rewind([min(kept, decoder.lengths[0])])
            text = []
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_equals_single_steps(kind: str) -> None:
    rng = random.Random(3)
    pendings = random_rows(rng, [1, 2, 1, 5, 1, 40, 3, 1, 1, 70, 1, 2, 1, 1])
    compare(model_of(kind), random_rows(rng, [3, 12]), pendings)


def test_it_stops_at_every_kind_of_end() -> None:
    """On a toy that is sometimes confident and ends its texts."""
    rng = random.Random(0)
    counts = compare(toy_t5(1, 2, 1), toy_sources(8), [[rng.randrange(2, 24)] for _ in RULES * 2])
    assert {1, 2, 3, 9} <= set(counts)


def test_it_stops_at_each_of_several_end_tokens() -> None:
    model = toy_t5(1, 2, 1)
    free = native(model)
    begin(free, [[5, 9, END]])
    text = free.continue_greedily([0], 12, StopRule()).tokens
    model.generation_config.eos_token_id = [END, text[4]]
    ending = native(model)
    begin(ending, [[5, 9, END]])
    assert ending.continue_greedily([0], 12, StopRule()).tokens == text[: text.index(text[4]) + 1]


@pytest.mark.parametrize("kind", FEW)
def test_logits_that_are_not_asked_for_change_nothing(kind: str) -> None:
    one, other = native(model_of(kind)), native(model_of(kind))
    [pending] = random_rows(random.Random(1), [4])
    for decoder in (one, other):
        begin(decoder, [[5, 3]])
    kept, dropped = (
        one.continue_greedily(pending, 20, StopRule()),
        other.continue_greedily(pending, 20, StopRule(), with_logits=False),
    )
    assert dropped.tokens == kept.tokens
    assert torch.equal(dropped.logits, kept.logits[:, -1:])
    assert one.lengths == other.lengths
    assert torch.equal(one.forward([[7]]).logits, other.forward([[7]]).logits)


def test_a_reordered_row_continues() -> None:
    moved, alone = native(model_of("t5 relu")), native(model_of("t5 relu"))
    begin(moved, [[4], [9, 8, 7], [3, 3]])
    moved.forward([[0], [0, 5], [0]])
    moved.reorder([1])
    begin(alone, [[9, 8, 7]])
    alone.forward([[0, 5]])
    one, other = (decoder.continue_greedily([6], 90, StopRule()) for decoder in (moved, alone))
    assert one.tokens == other.tokens
    assert torch.equal(one.logits, other.logits)


def test_learned_positions_may_be_used_up() -> None:
    decoder = native(model_of("gpt2"))
    [prompt] = begin(decoder, random_rows(random.Random(0), [POSITIONS - 3]))
    with pytest.raises(ValueError, match=f"a text of {POSITIONS + 1} tokens, but the model has {POSITIONS} positions"):
        decoder.continue_greedily(prompt, 5, StopRule())
    assert decoder.lengths == [0]
    assert 1 <= len(decoder.continue_greedily(prompt, 4, StopRule()).tokens) <= 4


def test_an_empty_continuation_is_refused() -> None:
    decoder = native(model_of("llama"))
    begin(decoder, [[5, 6]])
    for pending, budget in (([], 3), ([5, 6], 0)):
        with pytest.raises(ValueError, match="at least one"):
            decoder.continue_greedily(pending, budget, StopRule())
    begin(decoder, [[5, 6], [7]])
    with pytest.raises(ValueError, match="unpack"):
        decoder.continue_greedily([5, 6], 3, StopRule())


def test_broken_logits_within_a_continuation_are_reported() -> None:
    model = toy_t5(1, 2, 1)
    sound = native(model)
    begin(sound, [[5, 9, END]])
    text = sound.continue_greedily([0], 6, StopRule()).tokens
    position = next(position for position, token in enumerate(text) if position and token not in text[:position])
    with torch.no_grad():
        model.decoder.embed_tokens.weight = torch.nn.Parameter(model.decoder.embed_tokens.weight.clone())
        model.decoder.embed_tokens.weight[text[position]] = torch.nan
    broken = native(model)
    begin(broken, [[5, 9, END]])
    broken.forward([[0]])
    broken.rewind([0])
    with pytest.raises(BrokenLogitsError, match=f"the native model gave NaN, .* at step {1 + position + 2}$"):
        broken.continue_greedily([0], 6, StopRule())
