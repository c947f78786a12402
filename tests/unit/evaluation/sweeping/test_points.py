"""Points as rows name them, the examples that are timed, and what outputs say of a point."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable

import pytest

from tasks.corpora.example import Example
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.evaluation.sweeping.points import BASELINES, VANILLA, Outputs, Split, SweepPoint, collect_outputs
from tests.ticking import Words, sweep_settings

EXAMPLES = [Example(f"w{number + 2} w3", ("w4",)) for number in range(9)]


def split_of(name: str = "validation", seed: int = 0, timed: int = 4) -> Split:
    return Split(name, EXAMPLES, Words(), 3, sweep_settings(latency_examples=timed, seed=seed))


def test_a_row_names_a_point_by_plain_values() -> None:
    fields = SweepPoint("bild", BildSettings(rollback_threshold=float("inf"), max_draft=4)).fields()
    assert fields["method"] == "bild"
    assert fields["settings"]["rollback_threshold"] == "inf"
    assert fields["settings"]["max_draft"] == 4
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields


def test_points_of_equal_settings_are_equal() -> None:
    assert SweepPoint("vanilla_large", VanillaSettings()) == VANILLA == BASELINES[0]
    assert (
        len(
            {
                SweepPoint("bild", BildSettings()),
                SweepPoint("bild", BildSettings()),
                SweepPoint("bild", BildSettings(max_draft=3)),
            }
        )
        == 2
    )


def test_sources_are_cut_to_the_limit() -> None:
    assert split_of().sources[:2] == [[2, 3, 1], [3, 3, 1]]
    assert Split("test", EXAMPLES, Words(), 2, sweep_settings()).sources[0] == [2, 1]


def test_the_timed_examples_are_drawn_by_seed_and_split() -> None:
    assert split_of().timed == split_of().timed
    assert len(set(split_of().timed)) == 4
    assert set(split_of().timed) <= set(range(len(EXAMPLES)))
    assert len({tuple(split_of(name, seed).timed) for name in ("validation", "test") for seed in (0, 1)}) == 4


def test_a_small_split_is_timed_whole() -> None:
    assert sorted(split_of(timed=100).timed) == list(range(len(EXAMPLES)))


TEXT = Generation([5, 6, 1], "ssl", Counts(tokens=3, small_steps=2, large_calls=1, kept=Counter({(2, 2): 1})))


def outputs(generations: Iterable[Generation], split: Split | None = None) -> Outputs:
    return collect_outputs("decoded", generations, split or split_of())


def test_outputs_hold_every_text_all_counts_and_those_of_the_timed_examples() -> None:
    texts = [
        dataclasses.replace(TEXT, tokens=[number + 2, 1], counts=Counts(tokens=2, large_calls=number)) for number in range(9)
    ]
    split = split_of()
    found = outputs(texts, split)
    assert found.how == "decoded"
    assert found.tokens == [(number + 2, 1) for number in range(9)]
    assert (found.counts.tokens, found.counts.large_calls) == (18, 36)
    assert found.by_example == {number: Counts(tokens=2, large_calls=number) for number in split.timed}


def test_the_same_texts_by_the_same_runs_are_the_same_behaviour() -> None:
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
def test_one_example_that_differs_is_another_behaviour(other: Generation, index: int) -> None:
    changed = [TEXT] * index + [other] + [TEXT] * (8 - index)
    assert outputs(changed).behaviour != outputs([TEXT] * 9).behaviour


def test_the_order_of_examples_is_part_of_the_behaviour() -> None:
    other = dataclasses.replace(TEXT, tokens=[7, 1])
    assert outputs([TEXT, other]).behaviour != outputs([other, TEXT]).behaviour
