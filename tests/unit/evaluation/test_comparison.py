"""Two results compared: a copy has no difference, only real changes are found, and noise as often as it says."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import JsonValue

from tasks.evaluation import comparison
from tasks.evaluation.results.pair import PairRecord
from tests.finished import finished, loaded

BEFORE = loaded("A", *finished())


def numbers(found: comparison.Comparison) -> dict[str, comparison.Number]:
    return {f"{one.name} ({one.split})": one for one in found.numbers}


def test_a_result_against_itself_is_nothing_and_every_number_is_there_once_on_the_split_that_holds_it() -> None:
    found = comparison.compare(BEFORE, BEFORE)
    assert (found.differing, found.unmatched, found.more_than_noise) == ([], [], [])
    assert {one.change.value for one in found.numbers} == {0, 1}
    assert all(one.change.p == 1 for one in found.numbers)
    assert list(numbers(found)) == [
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
    ]


def test_a_second_run_of_the_same_is_noise() -> None:
    found = comparison.compare(BEFORE, loaded("B", *finished(seed=1)))
    assert found.more_than_noise == []
    speedups = [one for one in found.numbers if one.name.endswith(": speed-up")]
    assert all(one.paired and one.change.value != 1 for one in speedups)


def test_a_faster_drafter_is_found_and_nothing_else() -> None:
    found = comparison.compare(BEFORE, loaded("B", *finished(faster=1.2, seed=1)))
    assert found.more_than_noise == ["bild aligned, no loss: speed-up", "bild aligned, ≤ 1 point: speed-up"]
    change = numbers(found)["bild aligned, no loss: speed-up (test)"].change
    assert change.value == pytest.approx(1.2, rel=0.03)
    assert change.interval is not None and change.interval[0] < 1.2 < change.interval[1]


def test_better_quality_is_found_relative_to_vanilla_before_it_is_found_alone() -> None:
    found = comparison.compare(BEFORE, loaded("B", *finished(better=0.8)))
    assert "bild aligned, no loss: BLEU minus vanilla's" in found.more_than_noise
    assert "bild aligned, no loss: BLEU" not in found.more_than_noise, "0.8 points are within its own interval's noise"
    assert not any("unaligned" in name or "speed-up" in name for name in found.more_than_noise)


def test_other_examples_are_not_paired() -> None:
    summary, rows = finished(seed=1)
    summary["pairs"]["aligned"]["lineage"]["settings"]["sweep"]["seed"] = 2
    found = numbers(comparison.compare(BEFORE, loaded("B", summary, rows)))
    assert found["bild unaligned, no loss: speed-up (test)"].paired
    assert not found["bild aligned, no loss: speed-up (test)"].paired


def test_a_summary_alone_is_compared_by_its_intervals() -> None:
    before, after = (loaded("one", finished(faster=faster)[0], {}) for faster in (1.0, 1.5))
    found = comparison.compare(before, after)
    assert "bild aligned, no loss: speed-up" in found.more_than_noise
    assert not numbers(found)["bild aligned, no loss: speed-up (test)"].paired
    assert comparison.compare(before, before).more_than_noise == []


def test_other_settings_behind_a_choice_are_named() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    found = numbers(comparison.compare(BEFORE, loaded("B", summary, rows)))
    number = found["bild aligned, no loss: speed-up (test)"]
    assert number.settings == ("α_FB 0.9 α_RB ∞ ≤ 10", "α_FB 0.7 α_RB ∞ ≤ 10")


def test_two_choices_that_are_one_point_are_one_number() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    both = loaded("both", summary, rows)
    assert "bild aligned, no loss and ≤ 1 point: speed-up (test)" in numbers(comparison.compare(both, both))


def test_a_choice_of_only_one_result_is_listed() -> None:
    summary, rows = finished()
    summary["choices"][1]["point"] = None
    assert comparison.compare(BEFORE, loaded("B", summary, rows)).unmatched == [
        "bild unaligned, ≤ 1 point: only A has such a point"
    ]


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


def both(one: PairRecord, other: PairRecord | None = None) -> comparison.Facts:
    return comparison.facts({"unaligned": one, "aligned": one if other is None else other})


def test_each_difference_is_listed() -> None:
    assert comparison.differing(both(pair()), both(pair())) == []
    changed = pair({"git_commit": "b" * 40, "torch": "2.14.0", VALIDATION: "2" * 32}, seed=2)
    assert comparison.differing(both(pair()), both(changed)) == [
        ("sweep.seed", "1", "2"),
        ("git_commit", "a" * 40, "b" * 40),
        ("torch", "2.13.0", "2.14.0"),
        ("data/toy/corpus/validation.jsonl", "1" * 32, "2" * 32),
    ]
    lineage = {name: value for name, value in (pair().lineage or {}).items() if name != "torch"}
    older = dataclasses.replace(pair(), lineage=lineage)
    assert comparison.differing(both(pair()), both(older)) == [("torch", "2.13.0", comparison.NOT_RECORDED)]


def test_a_grid_is_compared_entry_by_entry_in_any_order() -> None:
    speculative = {"method": "speculative", "values": {"draft_length": [3]}}
    bild = {"method": "bild", "preset": "v1"}
    assert comparison.differing(both(pair(grid=[bild, speculative])), both(pair(grid=[speculative, bild]))) == []
    ((name, ours, theirs),) = comparison.differing(both(pair(grid=[bild, speculative])), both(pair(grid=[bild])))
    assert name == f"sweep.grid {json.dumps(speculative, sort_keys=True)}"
    assert (ours, theirs) == ("there", comparison.NOT_RECORDED)


def test_differences_of_the_two_sweeps_are_listed_by_drafter() -> None:
    found = both(pair(), pair({"git_commit": "c" * 40}))
    commits = {name: value for name, value in found.items() if name.startswith("git")}
    assert commits == {"git_commit (unaligned)": "a" * 40, "git_commit (aligned)": "c" * 40, "git_dirty": "false"}


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
    assert comparison.same_examples(pair(), other, "validation") is same


def test_what_neither_recorded_is_not_the_same() -> None:
    assert not comparison.same_examples(pair({"settings": {}}), pair({"settings": {}}), "validation")
    assert not comparison.same_examples(pair(), pair(), "test"), "the hash of that split was not recorded"


Latencies = NDArray[np.float64]


def timed(speedup: float, rng: np.random.Generator, lengths: Latencies) -> comparison.Estimate:
    """A method that is on average `speedup` times as fast as vanilla, both timed with noise of a tenth."""
    noise = np.exp(0.1 * rng.normal(size=(len(lengths), 2)))
    latencies = np.column_stack((lengths, lengths / speedup)) * noise
    sums = latencies.sum(axis=0)
    return comparison.Estimate(float(sums[0] / sums[1]), None, latencies)


def known(value: float, error: float) -> comparison.Estimate:
    """A number with that standard error."""
    return comparison.Estimate(value, (value - 1.959964 * error, value + 1.959964 * error))


def test_a_difference_by_hand() -> None:
    change = comparison.difference(known(30.0, 0.3), known(31.0, 0.4))
    assert change.value == 1.0
    assert change.interval == pytest.approx((1 - 0.98, 1 + 0.98), abs=1e-4)
    assert change.p == pytest.approx(math.erfc(2 / math.sqrt(2)))
    assert comparison.difference(known(30.0, 0.3), comparison.Estimate(31.0, None)) == comparison.Change(1.0, None, None)


def test_a_speed_up_without_latencies_has_the_error_of_its_interval() -> None:
    ends = math.exp(-1.959964 * 0.1), math.exp(1.959964 * 0.1)
    change = comparison.speedup_ratio(comparison.Estimate(1.0, ends), comparison.Estimate(1.0, ends), paired=False)
    assert change.interval is not None and math.log(change.interval[1]) == pytest.approx(1.959964 * math.hypot(0.1, 0.1))
    assert comparison.speedup_ratio(
        comparison.Estimate(1.0, ends), comparison.Estimate(2.0, (0.0, 3.0)), paired=False
    ) == comparison.Change(2.0, None, None)


def test_a_point_against_itself_is_no_change() -> None:
    rng = np.random.default_rng(1)
    one = timed(1.5, rng, rng.uniform(10, 50, 40))
    for paired in (True, False):
        change = comparison.speedup_ratio(one, one, paired)
        assert change.value == 1 and change.p == 1
    assert comparison.speedup_ratio(one, one, paired=True) == comparison.Change(1.0, (1.0, 1.0), 1.0)


def test_a_faster_copy_is_found_and_pairing_sees_more() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.uniform(10, 50, 40)
    # Long examples gain more in both results: what they share is noise unless they are paired.
    gains = 1 + lengths / 20
    before = np.column_stack((lengths, lengths / gains))
    after = before / np.array([1.0, 1.06])
    first, second = (comparison.Estimate(float(one[:, 0].sum() / one[:, 1].sum()), None, one) for one in (before, after))
    paired, unpaired = (comparison.speedup_ratio(first, second, paired) for paired in (True, False))
    assert paired.value == unpaired.value == pytest.approx(1.06)
    assert paired.interval == pytest.approx((1.06, 1.06))
    assert paired.p == pytest.approx(0)
    assert unpaired.interval[0] < 1 < unpaired.interval[1]


@pytest.mark.parametrize("paired", [True, False])
def test_noise_is_called_a_change_of_speed_in_about_five_per_cent(paired: bool) -> None:
    rng = np.random.default_rng(3)
    found, runs = 0, 400
    for _ in range(runs):
        lengths = [rng.uniform(10, 50, 60) for _ in range(2)]
        both = [timed(1.5, rng, lengths[0 if paired else index]) for index in range(2)]
        change = comparison.speedup_ratio(both[0], both[1], paired, samples=200)
        assert change.p is not None
        found += change.p < comparison.LEVEL
    assert 0.025 < found / runs < 0.085


def test_of_many_unchanged_numbers_any_is_named_in_at_most_five_per_cent() -> None:
    draws = np.random.default_rng(5).normal(size=(1000, 20, 2))
    runs = [[comparison.difference(known(ours, 1.0), known(theirs, 1.0)) for ours, theirs in pairs] for pairs in draws.tolist()]
    assert sum(any(comparison.more_than_noise(changes)) for changes in runs) / len(runs) < 0.07
    alone = [any(comparison.more_than_noise([change])[0] for change in changes) for changes in runs]
    assert sum(alone) / len(alone) > 0.5, "without looking at them together, most runs would name one"


def test_holm_continues_after_the_smallest_p_value() -> None:
    changes = [comparison.Change(0.0, None, p) for p in (0.04, 0.001, 0.02)]
    assert comparison.more_than_noise(changes) == [True, True, True]
    changes = [comparison.Change(0.0, None, p) for p in (0.04, 0.001, 0.03, None)]
    assert comparison.more_than_noise(changes) == [False, True, False, False]
