"""References that a metric cannot use are refused before training."""

from __future__ import annotations

import pytest

from tasks.corpora.example import Example
from tasks.errors import InputError
from tasks.evaluation.quality import check_references


def test_a_program_needs_tests() -> None:
    tested = Example("add", ("def add", "assert add"))
    assert check_references({"train": [tested], "unlabelled": [Example("more", ())]}, "pass_at_1") == []
    with pytest.raises(InputError, match="test, example 2: the metric pass_at_1 needs a program and then its tests"):
        check_references({"train": [tested], "test": [tested, Example("add", ("def add",))]}, "pass_at_1")


def test_a_numeric_answer_needs_numbers() -> None:
    right, wrong = Example("q", ("#### 7",)), Example("q", ("seven",))
    assert check_references({"test": [wrong]}, "rougeL") == []
    assert check_references({"train": [right, wrong]}, "numeric_answer") == [
        "train: 1 of 2 examples have a reference without a number and can never be right"
    ]
    with pytest.raises(InputError, match="test: no reference has a number"):
        check_references({"train": [right], "test": [wrong]}, "numeric_answer")
