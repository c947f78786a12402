"""Two results compared: a copy has no difference, and only real changes are found."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import JsonValue

from tasks.errors import InputError
from tasks.evaluation.comparison import (
    NOT_RECORDED,
    Comparison,
    Facts,
    LoadedResult,
    Number,
    compare,
    differing,
    facts,
    same_examples,
)
from tasks.evaluation.results.pair import PairRecord
from tests.finished import finished, loaded

BEFORE = loaded("A", *finished())


def numbers(comparison: Comparison) -> dict[str, Number]:
    return {f"{one.name} ({one.split})": one for one in comparison.numbers}


def test_a_result_against_itself_is_nothing() -> None:
    found = compare(BEFORE, BEFORE)
    assert found.differing == [] and found.unmatched == []
    assert found.more_than_noise == []
    assert {one.change.value for one in found.numbers} == {0, 1}
    assert all(one.change.p == 1 for one in found.numbers)


def test_every_number_is_there_once_on_the_split_that_holds_it() -> None:
    assert list(numbers(compare(BEFORE, BEFORE))) == [
        "vanilla large: BLEU (validation)",
        "vanilla small: BLEU (validation)",
        "vanilla large: BLEU (test)",
        "unaligned: acceptance rate, greedy (validation)",
        "aligned: acceptance rate, greedy (validation)",
        *(
            f"bild {arm}, {choice}: {what} (test)"
            for arm in ("unaligned", "aligned")
            for choice in ("no loss", "≤ 1 point")
            for what in ("BLEU", "BLEU minus vanilla's", "speed-up")
        ),
        *(
            f"{arm} frontier: {what} (validation)"
            for arm in ("unaligned", "aligned")
            for what in ("quality minus vanilla's at equal latency", "speed-up at equal quality minus vanilla's")
        ),
    ]


def test_a_second_run_of_the_same_is_noise() -> None:
    found = compare(BEFORE, loaded("B", *finished(seed=1)))
    assert found.more_than_noise == []
    speedups = [one for one in found.numbers if one.name.endswith(": speed-up")]
    assert all(one.paired and one.change.value != 1 for one in speedups)


def test_a_faster_drafter_is_found_and_nothing_else() -> None:
    found = compare(BEFORE, loaded("B", *finished(faster=1.2, seed=1)))
    assert found.more_than_noise == [
        "bild aligned, no loss: speed-up",
        "bild aligned, ≤ 1 point: speed-up",
        "aligned frontier: quality minus vanilla's at equal latency",
        "aligned frontier: speed-up at equal quality minus vanilla's",
    ]
    change = numbers(found)["bild aligned, no loss: speed-up (test)"].change
    assert change.value == pytest.approx(1.2, rel=0.03)
    assert change.interval is not None and change.interval[0] < 1.2 < change.interval[1]


def test_better_quality_is_found_relative_to_vanilla_before_it_is_found_alone() -> None:
    found = compare(BEFORE, loaded("B", *finished(better=0.8)))
    assert "bild aligned, no loss: BLEU minus vanilla's" in found.more_than_noise
    assert "bild aligned, no loss: BLEU" not in found.more_than_noise, "0.8 points are within its own interval's noise"
    assert not any("unaligned" in name or "speed-up" in name for name in found.more_than_noise if "frontier" not in name)


def test_other_examples_are_not_paired() -> None:
    summary, rows = finished(seed=1)
    summary["pairs"]["aligned"]["lineage"]["settings"]["sweep"]["seed"] = 2
    found = numbers(compare(BEFORE, loaded("B", summary, rows)))
    assert found["bild unaligned, no loss: speed-up (test)"].paired
    assert not found["bild aligned, no loss: speed-up (test)"].paired


def test_one_fingerprint_means_the_same_examples() -> None:
    results: list[LoadedResult] = []
    for seed in (0, 1):
        summary, rows = finished(seed=seed)
        summary["pairs"] = {}
        marked = {arm: [{**row, "fingerprint": "f"} for row in lines] for arm, lines in rows.items()}
        results.append(loaded("one", summary, marked))
    first, second = results
    assert numbers(compare(first, second))["bild aligned, no loss: speed-up (test)"].paired


def test_a_summary_alone_is_compared_by_its_intervals() -> None:
    before, after = (loaded("one", finished(faster=faster)[0], {}) for faster in (1.0, 1.5))
    found = compare(before, after)
    assert "bild aligned, no loss: speed-up" in found.more_than_noise
    assert not numbers(found)["bild aligned, no loss: speed-up (test)"].paired
    assert compare(before, before).more_than_noise == []


def test_other_settings_behind_a_choice_are_named() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    found = numbers(compare(BEFORE, loaded("B", summary, rows)))
    number = found["bild aligned, no loss: speed-up (test)"]
    assert number.settings == ("α_FB 0.9 α_RB ∞ ≤ 10", "α_FB 0.7 α_RB ∞ ≤ 10")


def test_two_choices_that_are_one_point_are_one_number() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    both = loaded("both", summary, rows)
    assert "bild aligned, no loss and ≤ 1 point: speed-up (test)" in numbers(compare(both, both))


def test_a_point_that_was_not_timed_is_on_no_frontier() -> None:
    summary, rows = finished()
    summary["points"].append({**summary["points"][5], "timed": False, "quality": 99.0, "speedup": None, "test": None})
    assert compare(BEFORE, loaded("B", summary, rows)).more_than_noise == []


def test_two_metrics_are_refused() -> None:
    summary, rows = finished()
    with pytest.raises(InputError, match="A is measured in bleu and B in rougeL; compare results of one metric"):
        compare(BEFORE, loaded("B", {**summary, "metric": "rougeL"}, rows))


def test_a_choice_of_only_one_result_is_listed() -> None:
    summary, rows = finished()
    summary["choices"][1]["point"] = None
    assert compare(BEFORE, loaded("B", summary, rows)).unmatched == ["bild unaligned, ≤ 1 point: only A has such a point"]


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
    assert differing(both(pair()), both(pair())) == []


def test_each_difference_is_listed() -> None:
    changed = pair({"git_commit": "b" * 40, "torch": "2.14.0", VALIDATION: "2" * 32}, seed=2)
    assert differing(both(pair()), both(changed)) == [
        ("sweep.seed", "1", "2"),
        ("git_commit", "a" * 40, "b" * 40),
        ("torch", "2.13.0", "2.14.0"),
        ("data/toy/corpus/validation.jsonl", "1" * 32, "2" * 32),
    ]


def test_a_grid_is_compared_entry_by_entry_in_any_order() -> None:
    speculative = {"method": "speculative", "values": {"draft_length": [3]}}
    bild = {"method": "bild", "preset": "v1"}
    assert differing(both(pair(grid=[bild, speculative])), both(pair(grid=[speculative, bild]))) == []
    ((name, ours, theirs),) = differing(both(pair(grid=[bild, speculative])), both(pair(grid=[bild])))
    assert name == f"sweep.grid {json.dumps(speculative, sort_keys=True)}"
    assert (ours, theirs) == ("there", NOT_RECORDED)


def test_differences_of_the_two_sweeps_are_listed_by_drafter() -> None:
    found = both(pair(), pair({"git_commit": "c" * 40}))
    commits = {name: value for name, value in found.items() if name.startswith("git")}
    assert commits == {"git_commit (unaligned)": "a" * 40, "git_commit (aligned)": "c" * 40, "git_dirty": "false"}


def test_what_was_not_recorded_is_said_to_be_so() -> None:
    lineage = {name: value for name, value in (pair().lineage or {}).items() if name != "torch"}
    older = dataclasses.replace(pair(), lineage=lineage)
    assert differing(both(pair()), both(older)) == [("torch", "2.13.0", NOT_RECORDED)]


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
