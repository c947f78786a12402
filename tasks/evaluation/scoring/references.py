"""What references a metric needs, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.corpora.example import UNLABELLED, Example
from tasks.errors import InputError
from tasks.evaluation.metrics import PROGRAMS
from tasks.evaluation.scoring.answers import last_number


def check_references(corpus: Mapping[str, Sequence[Example]], metric: str) -> list[str]:
    """Check that references suit the metric; return warnings, each in a line with number and fix.

    Raises:
        InputError: a program without tests, or a split in which no reference has a number.
    """
    found = []
    for name, examples in corpus.items():
        if metric == PROGRAMS and name != UNLABELLED:
            _require_tests(name, examples)
        if metric == "numeric_answer" and name != UNLABELLED:
            without = sum(all(last_number(text) is None for text in one.references) for one in examples)
            if examples and without == len(examples):
                raise InputError(
                    f"{name}: no reference has a number, which the metric numeric_answer needs; choose another metric"
                )
            if without:
                found.append(
                    f"{name}: {without} of {len(examples)} examples have a reference without a number and can never be right"
                )
    return found


def _require_tests(name: str, examples: Sequence[Example]) -> None:
    for number, example in enumerate(examples, start=1):
        if len(example.references) < 2:
            raise InputError(
                f"{name}, example {number}: the metric pass_at_1 needs a program and then its tests as references; name the "
                "field of the tests in reference_fields, after that of the program"
            )
