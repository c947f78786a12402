"""The native runtime accepts of a draft what the rule accepts after a plain run."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch

from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance
from tasks.decoding.runtimes.choose import open_decoder
from tests.acceptance import MORE_BOUNDS, kept_by, often_likeliest
from tests.unit.decoding.runtimes.odd import KINDS, NATIVE, VOCABULARY, begin, model_of, native, random_rows

RULES = [
    GreedyAcceptance(-1.0, keep_agreed=True),
    GreedyAcceptance(math.inf, keep_agreed=False),
    GreedyAcceptance(1.0, keep_agreed=False),
    GreedyAcceptance(4.0, keep_agreed=True),
    GreedyAcceptance(9.0, keep_agreed=False),
    GreedyAcceptance(-1.0, keep_agreed=False, min_share=1.0),
    GreedyAcceptance(-1.0, keep_agreed=False, min_share=0.3),
    GreedyAcceptance(0.5, keep_agreed=True, min_share=0.05),
    GreedyAcceptance(3.5, keep_agreed=False, first_only=True),
    GreedyAcceptance(-1.0, keep_agreed=False, first_only=True),
    *MORE_BOUNDS,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_equals_a_plain_run_and_the_rule(kind: str) -> None:
    """Drafts of likely and unlikely tokens, each rewound to its accepted tokens; the first follows a whole prompt."""
    rng = random.Random(2)
    one, other = native(model_of(kind)), native(model_of(kind))
    [pending] = begin(one, [[5, 9, 3]])
    begin(other, [[5, 9, 3]])
    found = set()
    for turn in range(4 * len(RULES)):
        rule, length = RULES[turn % len(RULES)], rng.choice([0, 1, 4, 13, 40])
        [drafted] = random_rows(rng, [length])
        if turn % 3:
            begin_of_draft = other.lengths
            for position in range(length):
                step = other.forward([pending + drafted[:position]])
                drafted[position] = often_likeliest(step.logits[0, -1], drafted[position], 0.8, rng)
                other.rewind(begin_of_draft)
        checked, step = one.check_draft(pending, drafted, rule), other.forward([pending + drafted])
        assert step.hidden is not None
        assert step.argmax is not None
        assert checked.step.hidden is not None
        positions = length + 1
        assert checked.step.lengths == [positions]
        assert torch.equal(checked.step.logits[0], step.logits[0, -positions:])
        assert torch.equal(checked.step.hidden[0], step.hidden[0, -positions:])
        assert checked.step.argmax == [step.argmax[0][-positions:]]
        assert checked.accepted == kept_by(checked.step.logits[0], drafted, rule)
        assert checked.next_token == step.argmax[0][-positions + checked.accepted]
        assert one.lengths == other.lengths
        found.add("all" if checked.accepted == length else "some" if checked.accepted else "none")
        for decoder in (one, other):
            decoder.rewind([decoder.lengths[0] - length + checked.accepted])
        pending = [checked.next_token]
    assert found == {"all", "some", "none"}


def test_only_a_rule_that_accepts_all_accepts_a_masked_token() -> None:
    model = copy.deepcopy(model_of("llama"))
    model.lm_head.bias = torch.nn.Parameter(torch.full((VOCABULARY,), 0.0))
    with torch.no_grad():
        model.lm_head.bias[7] = -math.inf
    decoder = native(model)
    for rule, kept in (
        (GreedyAcceptance(math.inf, keep_agreed=False), 2),
        (GreedyAcceptance(200.0, keep_agreed=True), 0),
    ):
        begin(decoder, [[4, 5]])
        assert decoder.check_draft([4, 5], [7, 7], rule).accepted == kept


@pytest.mark.parametrize("position", [4, 5, 6, 7])
def test_broken_logits_are_reported_at_every_position(position: int) -> None:
    """The last token of the prompt and three drafted ones: all logits are checked."""
    model = copy.deepcopy(model_of("t5 relu"))
    with torch.no_grad():
        model.decoder.embed_tokens.weight = torch.nn.Parameter(model.decoder.embed_tokens.weight.clone())
        model.decoder.embed_tokens.weight[position] = math.nan
    decoder = native(model)
    begin(decoder, [[9, 3]])
    for rule in RULES:
        decoder.rewind([0])
        with pytest.raises(BrokenLogitsError, match=r"^the native model gave NaN, .* at step \d+$"):
            decoder.check_draft([4], [5, 6, 7], rule)


def test_drafts_that_cannot_be_checked_are_refused() -> None:
    decoder = open_decoder(model_of("t5 relu"), "toy", 30, NATIVE)
    begin(decoder, [[9, 3]])
    assert hasattr(decoder, "check_draft")
    for pending, drafted in (([], [4]), ([0], [4, 30]), ([0], [36])):
        with pytest.raises(ValueError, match="a draft needs at least one pending token"):
            decoder.check_draft(pending, drafted, RULES[0])
    with pytest.raises(IndexError, match=f"the toy model has {VOCABULARY} tokens, and was given 0 to {VOCABULARY}"):
        decoder.check_draft([0], [VOCABULARY], RULES[0])
    assert decoder.lengths == [0]
