"""What averages hide, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.corpora.example import Example
from tasks.evaluation.metrics import chrf_of
from tasks.evaluation.quality import score, value_of
from tasks.evaluation.sweep.point import Hypothesis, details_of, hypothesis_of, statistics_of
from tasks.evaluation.sweep.replay import Split
from tasks.models.settings import TextSettings
from tests.ticking import Words, sweep_settings

END = 1


def of(*outputs: list[int]) -> list[Hypothesis]:
    return [hypothesis_of(tokens, lambda one: Words().decode(one, skip_special_tokens=True), {END}) for tokens in outputs]


def examples(*references: tuple[str, ...]) -> list[Example]:
    return [Example("w2 " * (5 + number), texts) for number, texts in enumerate(references)]


def test_counts_of_loops_cut_offs_differences_and_lengths() -> None:
    vanilla = of([5, 6, END], [7, 8, END], [9, END], [3, 4, END])
    own = of([5, 6, END], [7] * 12, [END], [4, 3])
    counted = statistics_of(own, vanilla, examples(("w5 w6", "other"), ("w7 w8", "w7 w7 w7"), ("w1",), ("w4 w3",)), "bleu")
    assert (counted.looping, counted.cut_off, counted.empty) == (1, 2, 1)
    assert counted.differs == 3
    assert counted.exact == 2
    # 2, 12, 0 and 2 words beside references of 2, 3, 1 and 2.
    assert counted.length_ratio == pytest.approx(16 / 8)
    assert counted.vanilla_length_ratio == pytest.approx((3 + 12 + 1 + 2) / (3 + 3 + 2 + 3))


def test_vanilla_differs_from_nothing_although_it_misses_references() -> None:
    vanilla = of([5, 6, END], [7, 8, END])
    counted = statistics_of(vanilla, vanilla, examples(("w5 w6",), ("w2",)), "bleu")
    assert (counted.differs, counted.exact, counted.vanilla_length_ratio) == (0, 1, 1.0)


def test_a_loop_that_ends_is_not_cut_off_and_a_long_text_is_no_loop() -> None:
    ended, long = of([7, 8] * 6 + [END], [*range(2, 20)])
    assert (ended.looping, ended.cut_off) == (True, False)
    assert (long.looping, long.cut_off) == (False, True)


def split_of(texts: list[tuple[str, ...]]) -> Split:
    return Split("validation", examples(*texts), Words(), TextSettings(max_source_tokens=64), sweep_settings())


def details(own: list[list[int]], vanilla: list[list[int]], split: Split, metric: str = "bleu") -> Any:
    return details_of(of(*own), of(*vanilla), split, metric, samples=100, seed=1)


VANILLA = [[number, number + 1, number + 2, number + 3, number + 4, END] for number in range(2, 11)]
TEXTS: list[tuple[str, ...]] = [(" ".join(f"w{token}" for token in row[:-1]),) for row in VANILLA]


@pytest.mark.parametrize("metric", ["bleu", "rougeL"])
def test_the_worst_outputs_are_those_that_lose_most_against_vanilla(metric: str) -> None:
    own = [list(row) for row in VANILLA]
    own[4] = [20, 21, 22, 23, 24, END]
    own[7] = [*VANILLA[7][:4], 23, END]
    split = split_of([*TEXTS[:6], ("w20 w21 w22 w23 w24",), *TEXTS[7:]])
    own[6] = [20, 21, 22, 23, 24, END]  # better than vanilla's
    found = details(own, VANILLA, split, metric)
    worst = found.worst
    # Of nine texts two lose; that another gains makes up for nothing.
    assert found.loss_share == pytest.approx((worst[0].loss + worst[1].loss) / 100 / 9, abs=1e-5)
    assert [one.example for one in worst] == [4, 7]
    assert worst[0].loss == pytest.approx(100)
    assert 0 < worst[1].loss < 100
    assert worst[0].output == "w20 w21 w22 w23 w24"
    assert worst[0].vanilla == worst[0].references[0] == TEXTS[4][0]
    assert worst[0].source == split.examples[4].source


def test_vanilla_loses_nothing_against_itself_and_nothing_more_than_all() -> None:
    split = split_of(TEXTS)
    assert details(VANILLA, VANILLA, split).loss_share == 0
    assert details([[20, END]] * 9, VANILLA, split).loss_share == 1


def test_quality_by_length_covers_each_example_once_the_shortest_first() -> None:
    own = [list(row) for row in VANILLA]
    own[8] = [20, 21, 22, 23, 24, END]
    split = split_of(TEXTS)
    bands = details(own, VANILLA, split).by_length
    assert [(one.shortest, one.longest, one.examples) for one in bands] == [(6, 8, 3), (9, 11, 3), (12, 14, 3)]
    assert [one.difference for one in bands[:2]] == [0, 0]
    assert bands[0].difference_interval == (0, 0)
    assert bands[2].difference == pytest.approx(bands[2].quality - 100)
    assert bands[2].difference < -20
    texts = [one.text for one in of(*own[6:])]
    assert bands[2].quality == pytest.approx(value_of(texts, TEXTS[6:], "bleu"))


def test_chrf_stands_beside_bleu_alone() -> None:
    split = split_of(TEXTS)
    own = [VANILLA[0]] * 9
    found, texts = details(own, VANILLA, split), [TEXTS[0][0]] * 9
    assert found.chrf == pytest.approx(chrf_of(texts, TEXTS))
    assert found.chrf_signature.startswith("nrefs:1|")
    assert score(texts, TEXTS, "bleu", 10, 1).signature.startswith("nrefs:1|")
    other = details(own, VANILLA, split, "rougeL")
    assert (other.chrf, other.chrf_signature) == (None, None)
