"""When a certificate holds, and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.decoding.generation import Counts, Generation
from tasks.evaluation.mismatches import Mismatch
from tasks.verify.comparison import ACCEPTED_SHARE, TOKENS_PER_CALL, Comparison
from tasks.verify.printing import as_json, described, verdict

OURS = Counts(tokens=150, large_calls=50, drafted=100, accepted=70)
RECORD = {"method": "speculative", "split": "validation", "examples": 5, "tokens": 150, "large_calls": 50, "drafted": 100}
SAME = Comparison(2, 5, OURS, OURS, OURS, [], ACCEPTED_SHARE, 0.02, None)


class Engine:
    name, tolerance, version = "other", 0.02, "1.0"
    measure, drafts_on_prompt = ACCEPTED_SHARE, True

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


class CountsCalls(Engine):
    """Its first call reads the prompt alone, and it counts calls but no drafts."""

    measure, drafts_on_prompt = TOKENS_PER_CALL, False


def by_calls(large_calls: int) -> Comparison:
    """An engine with so many calls beside 50 here by the same schedule, and 45 as a certificate counts them."""
    usual = dataclasses.replace(OURS, large_calls=45)
    theirs = Counts(tokens=150, large_calls=large_calls)
    return dataclasses.replace(SAME, certifiable=usual, theirs=theirs, measure=TOKENS_PER_CALL, tolerance=0.05)


@pytest.mark.parametrize(("large_calls", "holds"), [(50, True), (51, False), (45, False)])
def test_an_engine_without_counts_of_drafts_is_compared_by_its_calls(large_calls: int, holds: bool) -> None:
    found = by_calls(large_calls)
    assert found.holds is holds
    assert verdict(found).startswith(
        ("holds: " if holds else "does not hold: ") + "the number of tokens per call of the large model differs by 0."
    )


def test_both_schedules_are_shown_where_they_differ() -> None:
    lines = described(by_calls(50), CountsCalls()).splitlines()
    assert [line.split()[-3:] for line in lines[2:5]] == [
        ["150", "45", "3.3333"],
        ["150", "50", "3.0000"],
        ["150", "50", "3.0000"],
    ]
    assert lines[3].startswith("Draftline, first token undrafted")
    found = as_json(by_calls(50), CountsCalls())
    assert found["measure"] == "number of tokens per call of the large model"
    assert found["other"] == {"tokens": 150, "large_calls": 50, "tokens_per_call": 3.0}
    assert found["draftline"]["large_calls"] == 45
    assert found["draftline_first_token_undrafted"]["large_calls"] == 50
    assert "draftline_first_token_undrafted" not in as_json(SAME, Engine())


def test_a_certificate_is_compared_with_drafts_from_the_first_call_on() -> None:
    certificate = {**RECORD, "accepted": 70, "large_calls": 45}
    assert dataclasses.replace(by_calls(50), certificate=certificate).reproduced is True
    assert dataclasses.replace(by_calls(50), certificate={**certificate, "large_calls": 50}).reproduced is False
