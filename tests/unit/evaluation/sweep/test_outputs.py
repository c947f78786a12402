"""The timed examples of a split, and the outputs of a point."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import pytest

from tasks.corpora.example import Example
from tasks.decoding.generation import Counts, Generation
from tasks.evaluation.sweep.replay import Outputs, Split, collect_outputs
from tasks.models.settings import TextSettings
from tests.ticking import Words, sweep_settings

EXAMPLES = [Example(f"w{number + 2} w3", ("w4",)) for number in range(9)]


def split_of(name: str = "validation", seed: int = 0, timed: int = 4) -> Split:
    return Split(name, EXAMPLES, Words(), TextSettings(max_source_tokens=3), sweep_settings(latency_examples=timed, seed=seed))


def test_sources_are_cut_to_the_limit() -> None:
    assert split_of().sources[:2] == [[2, 3, 1], [3, 3, 1]]
    assert Split("test", EXAMPLES, Words(), TextSettings(max_source_tokens=2), sweep_settings()).sources[0] == [2, 1]


def test_the_timed_examples_are_drawn_by_seed_and_split() -> None:
    assert split_of().timed == split_of().timed
    assert len(set(split_of().timed)) == 4
    assert set(split_of().timed) <= set(range(len(EXAMPLES)))
    assert len({tuple(split_of(name, seed).timed) for name in ("validation", "test") for seed in (0, 1)}) == 4


def test_every_example_of_a_small_split_is_timed() -> None:
    assert sorted(split_of(timed=100).timed) == list(range(len(EXAMPLES)))


TEXT = Generation([5, 6, 1], "ssl", Counts(tokens=3, small_steps=2, large_calls=1, kept=Counter({(2, 2): 1})))


def outputs(generations: Iterable[Generation], split: Split | None = None) -> Outputs:
    return collect_outputs("decoded", generations, split or split_of())


def test_outputs_hold_texts_total_counts_and_counts_of_timed_examples() -> None:
    texts = [
        dataclasses.replace(TEXT, tokens=[number + 2, 1], counts=Counts(tokens=2, large_calls=number)) for number in range(9)
    ]
    split = split_of()
    found = outputs(texts, split)
    assert found.how == "decoded"
    assert found.tokens == [(number + 2, 1) for number in range(9)]
    assert (found.counts.tokens, found.counts.large_calls) == (18, 36)
    assert found.by_example == {number: Counts(tokens=2, large_calls=number) for number in split.timed}


def test_equal_texts_by_equal_runs_are_one_behaviour() -> None:
    again = dataclasses.replace(TEXT, tokens=list(TEXT.tokens), counts=TEXT.counts + Counts())
    assert outputs([TEXT] * 9).behaviour == outputs([again] * 9).behaviour


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(TEXT, tokens=[5, 7, 1]),
        dataclasses.replace(TEXT, proposers="sll"),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(small_steps=1)),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(large_calls=1)),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(fallbacks=1)),
        dataclasses.replace(TEXT, counts=Counts(tokens=3, small_steps=2, large_calls=1, kept=Counter({(3, 2): 1}))),
    ],
    ids=["tokens", "proposers", "small steps", "large calls", "fallbacks", "drafts"],
)
@pytest.mark.parametrize("index", [0, 8])
def test_one_differing_example_is_another_behaviour(other: Generation, index: int) -> None:
    changed = [TEXT] * index + [other] + [TEXT] * (8 - index)
    assert outputs(changed).behaviour != outputs([TEXT] * 9).behaviour


def test_the_order_of_examples_is_part_of_the_behaviour() -> None:
    other = dataclasses.replace(TEXT, tokens=[7, 1])
    assert outputs([TEXT, other]).behaviour != outputs([other, TEXT]).behaviour
