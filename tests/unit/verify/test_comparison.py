"""When a certificate holds, and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.decoding.generation import Counts, Generation
from tasks.evaluation.mismatches import Mismatch
from tasks.verify.comparison import Comparison
from tasks.verify.printing import as_json, described, verdict

OURS = Counts(tokens=150, large_calls=50, drafted=100, accepted=70)
RECORD = {"method": "speculative", "split": "validation", "examples": 5, "tokens": 150, "large_calls": 50, "drafted": 100}
SAME = Comparison(2, 5, OURS, OURS, [], 0.02, None)


class Engine:
    name, tolerance, version = "other", 0.02, "1.0"

    def decode(self, source: list[int], limit: int) -> Generation:
        raise NotImplementedError


def theirs(accepted: int) -> Comparison:
    return dataclasses.replace(SAME, theirs=Counts(tokens=150, large_calls=50, drafted=1000, accepted=accepted))


def record(**changed: Any) -> Comparison:
    return dataclasses.replace(SAME, certificate={**RECORD, "accepted": 70, **changed})


@pytest.mark.parametrize(("accepted", "holds"), [(700, True), (681, True), (719, True), (679, False), (721, False)])
def test_it_holds_within_the_tolerance_on_either_side(accepted: int, holds: bool) -> None:
    assert theirs(accepted).holds is holds
    assert verdict(theirs(accepted)).startswith("holds: " if holds else "does not hold: the accepted share differs by 0.0")


@pytest.mark.parametrize(("margin", "holds"), [(0.99e-4, True), (1.01e-4, False)])
def test_texts_may_differ_by_rounding_alone(margin: float, holds: bool) -> None:
    found = dataclasses.replace(SAME, mismatches=[Mismatch(2, 4, margin)])
    assert found.holds is holds
    assert "tokens: 1 of 5 texts differ" in described(found, Engine())
    assert ("1 of them where the large model's two highest logits are within 0.0001" in described(found, Engine())) is holds
    if not holds:
        assert verdict(found) == "does not hold: 1 texts differ by more than rounding, the first of them text 3"


def test_nothing_drafted_is_a_share_of_nought() -> None:
    empty = Counts(tokens=5, large_calls=5)
    assert dataclasses.replace(SAME, ours=empty, theirs=empty).holds
    assert not dataclasses.replace(SAME, theirs=empty).holds


def test_the_certificate_is_compared_where_it_may_be_of_these_texts() -> None:
    assert SAME.reproduced is None
    assert record(examples=2000).reproduced is None
    assert record().reproduced is True
    assert record(accepted=69).reproduced is False
    assert "Draftline's counts on these texts equal it" in described(record(), Engine())
    assert "Draftline's counts on these texts differ from it" in described(record(accepted=69), Engine())
    assert "of 2000 texts of validation, so its counts are not those of these 5 texts" in described(
        record(examples=2000), Engine()
    )


def test_json_has_the_ratios_of_both() -> None:
    found = as_json(theirs(690), Engine())
    assert found["draftline"]["accepted_share"] == 0.7
    assert found["draftline"]["mean_accepted_length"] == 1.4
    assert found["other"]["accepted_share"] == 0.69
    assert found["difference"] == pytest.approx(0.01)
    assert (found["holds"], found["engine"], found["version"]) == (True, "other", "1.0")
