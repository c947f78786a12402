"""Answers by hand, as SQuAD's and GSM8K's scorers read them, and as every other metric is used."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from tasks.evaluation.metrics import METRICS, PROGRAMS, exact_match, last_number, normalised, numeric_answer, token_f1
from tasks.evaluation.quality import example_statistics, gradients_of, quality_difference, score, value_of, values_of
from tasks.evaluation.report.formatting import METRIC_NAMES


@pytest.mark.parametrize(
    ("text", "references", "exact", "f1"),
    [
        ("The Eiffel  Tower!", ("eiffel tower",), 1, 1),
        ("in Paris, France", ("Paris",), 0, 0.5),  # one of three words and the only one of the other: 2 / 4
        ("cat cat", ("cat dog",), 0, 0.5),  # a repeated word counts once
        ("Denver", ("the Denver Broncos", "Broncos"), 0, 2 / 3),
        ("theory", ("ory",), 0, 0),  # an article is a whole word
        ("", ("",), 1, 1),
        ("an answer", ("",), 0, 0),
        ("", ("something",), 0, 0),
        ("", ("something", ""), 0, 0),  # a question with an answer is not also unanswerable
        ("The.", ("a",), 1, 1),
    ],
)
def test_exact_match_and_f1_by_hand(text: str, references: tuple[str, ...], exact: float, f1: float) -> None:
    assert exact_match(text, references) == exact
    assert token_f1(text, references) == pytest.approx(f1)


def test_normalisation_is_squads() -> None:
    assert normalised("A man, a plan: the   Canal-Zone!") == "man plan canalzone"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 + 4 = 7 apples.", "7"),
        ("She pays $1,250.00 in all.", "1250"),
        ("12,34", "34"),  # not a thousands separator
        ("1,234,567", "1234567"),
        ("it is -5 degrees", "-5"),
        ("x = −0.50", "-0.5"),
        ("10-5", "5"),
        ("half is .5", "0.5"),
        ("48/2 = <<48/2=24>>24\n#### 72", "72"),
        ("#### 1,000 of 7 days\n#### 3", "3"),
        ("at 100%", "100"),
        ("version 2.0.", "2"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


def test_a_numeric_answer_needs_a_number_on_both_sides() -> None:
    assert last_number("no number") is None
    assert numeric_answer("no number", ("none",)) == 0.0
    assert numeric_answer("first 8, then 72.0", ("steps 9\n#### 72", "71")) == 1.0
    assert numeric_answer("-72", ("#### 72",)) == 0.0


REFERENCES = [("the red house",), ("blue", "deep blue"), ("42",), ("",)] * 5
GOOD = ["red house", "blue", "the answer is 42", ""] * 5
BAD = ["house", "sky", "41", "something"] * 5


@pytest.mark.parametrize("metric", ["exact_match", "token_f1", "numeric_answer"])
def test_an_answer_is_scored_as_any_other_metric(metric: str) -> None:
    quality = score(GOOD, REFERENCES, metric, samples=50, seed=1)
    statistics = example_statistics(GOOD, REFERENCES, metric)
    assert quality.value == quality.scores[metric] == value_of(GOOD, REFERENCES, metric) == statistics.mean()
    assert values_of(statistics.sum(axis=0, keepdims=True), len(GOOD))[0] == quality.value
    assert np.all(gradients_of(statistics.sum(axis=0, keepdims=True), len(GOOD)) == 1 / len(GOOD))
    assert quality.signature == "" and "bleu" not in quality.scores
    difference, interval = quality_difference(GOOD, BAD, REFERENCES, metric, 50, 1)
    assert interval[0] <= difference <= interval[1] and difference > 0


def test_exact_match_and_f1_are_reported_together() -> None:
    scores = score(GOOD, REFERENCES, "exact_match", samples=20, seed=1).scores
    assert scores == {"exact_match": 75.0, "token_f1": pytest.approx(100 * (1 + 1 + 2 / 4 + 1) / 4)}


def test_every_metric_has_a_name_in_the_report() -> None:
    assert set(METRIC_NAMES) == set(METRICS) and PROGRAMS in METRICS
