"""Differences in what two results were made from."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import JsonValue

from tasks.evaluation.comparison import NOT_RECORDED, Facts, differing, facts, same_examples, settings_of
from tasks.evaluation.results.pair import PairRecord

VALIDATION = "input data/toy/corpus/validation.jsonl"


def pair(lineage: dict[str, Any] | None = None, *, seed: int = 1, grid: list[Any] | None = None) -> PairRecord:
    entries: JsonValue = [{"method": "bild", "preset": "v1"}] if grid is None else list(grid)
    settings: JsonValue = {"sweep": {"seed": seed, "latency_examples": 100, "grid": entries}, "machine": {"threads": 1}}
    return PairRecord(
        runtime="native, 1 thread",
        lineage={
            "git_commit": "a" * 40,
            "git_dirty": "false",
            "host_cpu": "a processor",
            "torch": "2.13.0",
            VALIDATION: "1" * 32,
            "settings": settings,
            **(lineage or {}),
        },
    )


def both(one: PairRecord, other: PairRecord | None = None) -> Facts:
    return facts({"unaligned": one, "aligned": one if other is None else other})


def test_the_same_provenance_differs_in_nothing() -> None:
    assert differing(both(pair()), both(pair())) == {}


def test_each_difference_stands_in_its_section() -> None:
    changed = pair({"git_commit": "b" * 40, "torch": "2.14.0", VALIDATION: "2" * 32}, seed=2)
    assert differing(both(pair()), both(changed)) == {
        "settings": [("sweep.seed", "1", "2")],
        "data": [("data/toy/corpus/validation.jsonl", "1" * 32, "2" * 32)],
        "code": [("git_commit", "a" * 40, "b" * 40)],
        "machine": [("torch", "2.13.0", "2.14.0")],
    }


def test_a_grid_is_compared_entry_by_entry_in_any_order() -> None:
    speculative = {"method": "speculative", "values": {"draft_length": [3]}}
    bild = {"method": "bild", "preset": "v1"}
    assert differing(both(pair(grid=[bild, speculative])), both(pair(grid=[speculative, bild]))) == {}
    ((name, ours, theirs),) = differing(both(pair(grid=[bild, speculative])), both(pair(grid=[bild])))["settings"]
    assert name == f"sweep.grid {json.dumps(speculative, sort_keys=True)}"
    assert (ours, theirs) == ("there", "absent")


def test_differences_of_the_two_sweeps_are_listed_by_drafter() -> None:
    found = both(pair(), pair({"git_commit": "c" * 40}))
    assert found["code"] == {
        "git_commit (unaligned)": "a" * 40,
        "git_commit (aligned)": "c" * 40,
        "git_dirty": "false",
    }


def test_what_was_not_recorded_is_said_to_be_so() -> None:
    nothing = both(PairRecord())
    assert differing(nothing, nothing)["code"] == [("code", NOT_RECORDED, NOT_RECORDED)]
    assert differing(both(pair()), nothing)["code"] == [("code", "2 recorded", NOT_RECORDED)]
    lineage = {name: value for name, value in (pair().lineage or {}).items() if name != "torch"}
    older = dataclasses.replace(pair(), lineage=lineage)
    assert differing(both(pair()), both(older)) == {"machine": [("torch", "2.13.0", NOT_RECORDED)]}


def test_settings_may_be_recorded_as_text() -> None:
    recorded = settings_of(pair())
    assert recorded["machine"] == {"threads": 1}
    assert settings_of(pair({"settings": json.dumps(recorded)})) == recorded
    assert settings_of(PairRecord(runtime="native")) == {}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (pair(), True),
        (pair({"git_commit": "b" * 40}), True),
        (pair(seed=2), False),
        (pair({VALIDATION: "2" * 32}), False),
        (pair({"settings": {}}), False),
        (PairRecord(), False),
    ],
)
def test_the_same_data_seed_and_number_mean_the_same_examples(other: PairRecord, same: bool) -> None:
    assert same_examples(pair(), other, "validation") is same


def test_what_neither_recorded_is_not_the_same() -> None:
    assert not same_examples(pair({"settings": {}}), pair({"settings": {}}), "validation")
    assert not same_examples(pair(), pair(), "test"), "the hash of that split was not recorded"
