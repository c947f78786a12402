"""The drafter that chooses between suffixes and the small model: its counts by hand, and what it drafts."""

import dataclasses
from collections.abc import Sequence

import pytest

from tasks.decoding.decoder import Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Draft, ModelDrafter
from tasks.decoding.drafters.look_ups import SuffixDrafter, outputs_tree
from tasks.decoding.drafters.switching import SuffixOrModelDrafter, TextCounts
from tasks.decoding.generation import total
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import decode
from tasks.decoding.replay import NotReplayableError, replay_pair
from tasks.decoding.rules import speculative_sampling
from tests.toys import END, START, PrefixDecoder, Toys, says, toy_sources

GREEDY, LIMIT = SamplingSettings(), 16


def turns_of(drafter: SuffixOrModelDrafter) -> list[tuple[Rows, list[int]]]:
    """Note the tokens and the model's runs of each draft from now on."""
    seen, make = list[tuple[Rows, list[int]]](), drafter.draft

    def noted(tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        draft = make(tokens, examples, budgets, rule)
        seen.append((draft.tokens, draft.steps))
        return draft

    object.__setattr__(drafter, "draft", noted)
    return seen


def test_a_turn_takes_suffixes_where_there_are_any_and_else_the_model() -> None:
    """The earlier output agrees up to its 5; the small model knows how the text goes on behind that."""
    outputs = outputs_tree([[2, 3, 4, 5, 7, 7, END]], 8, frozenset((START, END)), frozenset((END,)))
    target = PrefixDecoder(says([2, 3, 4, 5, 6, 3, 2, END]), "large")
    model = ModelDrafter(PrefixDecoder(says([7, 7, 7, 7, 6, 3, 2, END]), "small"), GREEDY, TokenSource(0))
    drafter = SuffixOrModelDrafter(SuffixDrafter(outputs, target, GREEDY), model)
    turns = turns_of(drafter)
    loop = SpeculativeLoop(target, speculative_sampling, GREEDY, TokenSource(0), drafter, DraftRule(window=2))
    [found] = loop.run([[5, END]], [0], LIMIT)
    assert found.tokens == [2, 3, 4, 5, 6, 3, 2, END]
    assert turns == [([[2, 3]], [0]), ([[5, 7]], [0]), ([[3, 2]], [2])]
    assert found.counts.accepted == 5 and found.counts.small_steps == 2


def test_both_sides_are_compared_by_what_was_kept_of_them() -> None:
    text = TextCounts()
    # Nothing is known: a token of the model is kept with ½, two with ½ + ¼.
    assert text.prefers(0.75, 2) and not text.prefers(0.74, 2) and not text.prefers(0.75, 3)
    # Suffixes promised 3 tokens and one was kept: they are trusted by (1 + 1) / (3 + 1).
    text.begin_turn(1, 3.0)
    text.draft = [5, 6, 7]
    text.end_turn([START, 5, 4])
    assert text.prefers(1.5, 2) and not text.prefers(1.49, 2)
    # Of the model's two tokens both were kept: r is 3 / 4, and two are worth ¾ + 9/16.
    text.begin_turn(3, None)
    text.draft = [2, 3]
    text.end_turn([START, 5, 4, 2, 3, 6])
    assert text.prefers(2.625, 2) and not text.prefers(2.62, 2)


@pytest.fixture(scope="module")
def pair(toys: Toys) -> Pair:
    """The toy T5s, and what the large one writes on other inputs."""
    written = decode("vanilla_large", VanillaSettings(), toys.cached, toy_sources(60, seed=8), Request(LIMIT))
    return dataclasses.replace(toys.cached, calibration=[one.tokens for one in written])


def test_texts_are_the_large_models_own_and_both_sides_draft(pair: Pair) -> None:
    sources = toy_sources(40)
    own = decode("vanilla_large", VanillaSettings(), pair, sources, Request(LIMIT))
    runs = dict[str, tuple[int, int]]()
    for drafter in ("suffix", "small", "suffix_or_small"):
        found = decode("speculative", SpeculativeSettings(drafter=drafter, draft_length=3), pair, sources, Request(LIMIT))
        assert [one.tokens for one in found] == [one.tokens for one in own]
        runs[drafter] = total(found).small_steps, total(found).large_calls
    assert 0 == runs["suffix"][0] < runs["suffix_or_small"][0] < runs["small"][0]
    assert runs["suffix_or_small"][1] < runs["small"][1]


@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_bild_takes_suffixes_as_sure_unless_nothing_is_sure_enough(pair: Pair, threshold: float) -> None:
    one = BildSettings(fallback_threshold=threshold)
    both = [dataclasses.replace(one, drafter=drafter) for drafter in ("suffix_or_small", "small")]
    mixed, model = (total(decode("bild", settings, pair, toy_sources(40), Request(LIMIT))) for settings in both)
    assert 0 < mixed.small_steps < model.small_steps if threshold < 1 else mixed == model


def test_it_is_decoded_and_not_replayed(pair: Pair) -> None:
    replayed = replay_pair(pair, PredictionCache(pair))
    with pytest.raises(NotReplayableError, match="runs the small model step by step"):
        decode("speculative", SpeculativeSettings(drafter="suffix_or_small"), replayed, toy_sources(1), Request(LIMIT))
