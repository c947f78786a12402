"""What two results were made from, told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.evaluation.comparing.provenance import NOT_RECORDED, differing, facts, same_examples, settings_of

VALIDATION = "input data/toy/corpus/validation.jsonl"


def pair(lineage: dict[str, Any] | None = None, *, seed: int = 1, grid: list[Any] | None = None) -> dict[str, Any]:
    entries = [{"method": "bild", "preset": "v1"}] if grid is None else grid
    settings = {"sweep": {"seed": seed, "latency_examples": 100, "grid": entries}, "machine": {"threads": 1}}
    return {
        "runtime": "native, 1 thread",
        "lineage": {
            "git_commit": "a" * 40,
            "git_dirty": "false",
            "host_cpu": "a processor",
            "torch": "2.13.0",
            VALIDATION: "1" * 32,
            "settings": settings,
            **(lineage or {}),
        },
    }


def both(one: dict[str, Any], other: dict[str, Any] | None = None) -> Any:
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


def test_what_the_two_sweeps_do_not_share_is_told_by_drafter() -> None:
    found = both(pair(), pair({"git_commit": "c" * 40}))
    assert found["code"] == {
        "git_commit (unaligned)": "a" * 40,
        "git_commit (aligned)": "c" * 40,
        "git_dirty": "false",
    }


def test_what_was_not_recorded_is_said_to_be_so() -> None:
    nothing = facts({"unaligned": None, "aligned": None})
    assert differing(nothing, nothing)["code"] == [("code", NOT_RECORDED, NOT_RECORDED)]
    assert differing(both(pair()), nothing)["code"] == [("code", "2 recorded", NOT_RECORDED)]
    older = pair()
    del older["lineage"]["torch"]
    assert differing(both(pair()), both(older)) == {"machine": [("torch", "2.13.0", NOT_RECORDED)]}


def test_settings_may_be_noted_as_text() -> None:
    noted = pair()["lineage"]["settings"]
    assert settings_of(pair({"settings": json.dumps(noted)})) == noted == settings_of(pair())
    assert settings_of({"runtime": "native"}) == {}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (pair(), True),
        (pair({"git_commit": "b" * 40}), True),
        (pair(seed=2), False),
        (pair({VALIDATION: "2" * 32}), False),
        (pair({"settings": {}}), False),
        (None, False),
    ],
)
def test_the_same_data_seed_and_number_mean_the_same_examples(other: dict[str, Any] | None, same: bool) -> None:
    assert same_examples(pair(), other, "validation") is same


def test_what_neither_recorded_is_not_the_same() -> None:
    assert not same_examples(pair({"settings": {}}), pair({"settings": {}}), "validation")
    assert not same_examples(pair(), pair(), "test"), "the hash of that split was not noted"
