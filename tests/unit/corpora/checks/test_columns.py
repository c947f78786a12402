"""Swapped columns are found by their letters, and only where the letters tell."""

from __future__ import annotations

import random

import pytest

from tasks.corpora.checks.columns import Columns
from tasks.corpora.example import Example

GERMAN = "der die das und nicht eine einen mit auf straße mädchen schläft spielt zwischen häuser wieder gehört"
ENGLISH = "the and not with street girl sleeps plays between houses again heard through which would another thing"


def examples(count: int, swapped: float, seed: int = 0, second: str = ENGLISH) -> list[Example]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        source, target = (" ".join(rng.choices(words.split(), k=8)) for words in (GERMAN, second))
        found.append(Example(target, (source,)) if rng.random() < swapped else Example(source, (target,)))
    return found


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_the_share_of_swapped_examples_is_measured_within_train(share: float) -> None:
    columns = Columns(examples(1000, share))
    assert columns.swapped_in_train() == pytest.approx(share, abs=0.05)


def test_another_split_is_held_against_train() -> None:
    columns = Columns(examples(400, 0.02))
    assert columns.swapped(examples(100, 0.0, seed=1)) == 0.0
    assert columns.swapped(examples(100, 1.0, seed=1)) == 1.0
    assert columns.swapped([]) is None


def test_columns_that_are_alike_are_not_judged() -> None:
    columns = Columns(examples(400, 0.0, second=GERMAN))
    assert not columns.differ
    assert columns.swapped_in_train() is None and columns.swapped(examples(10, 0.0)) is None


def test_a_few_examples_are_not_judged() -> None:
    assert Columns(examples(20, 0.0)).swapped_in_train() is None
    assert Columns([Example("a", ("b",))]).swapped_in_train() is None
