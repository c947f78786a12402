"""Two results compared: a copy has no difference, only real changes are found, and noise as often as it says; the command."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

from tasks import compare
from tasks.compare import open_result
from tasks.errors import InputError
from tasks.evaluation.results.pair import ModelSizes, PairRecord
from tests.commands import Run, git, runner
from tests.finished import finished, loaded, write

BEFORE = loaded("A", *finished())


def numbers(found: compare.Comparison) -> dict[str, compare.Number]:
    return {f"{one.name} ({one.split})": one for one in found.numbers}


def changes(found: compare.Comparison) -> list[compare.Change]:
    return [one.change for one in found.numbers if one.change is not None]


def test_a_result_against_itself_is_nothing_and_every_number_is_there_once_on_the_split_that_holds_it() -> None:
    found = compare.compare(BEFORE, BEFORE)
    assert (found.differing, found.choices, found.more_than_noise) == ([], [], [])
    assert {one.value for one in changes(found)} == {0, 1}
    assert all(one.p == 1 for one in changes(found))
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
            for what in ("BLEU", "BLEU minus vanilla's", "time of a text, by counts", "speed-up, by two clocks")
        ),
    ]


def test_other_drafters_of_the_same_recipe_are_noise() -> None:
    found = compare.compare(BEFORE, loaded("B", *finished(seed=1)))
    assert found.more_than_noise == []
    times = [one for one in found.numbers if one.unit == "ms"]
    assert len(times) == 4 and all(one.paired and one.change and one.change.value != 1 for one in times)


def test_a_clock_that_runs_at_half_the_speed_changes_nothing() -> None:
    busy = loaded("B", *finished(clock=2.0))
    for found in (compare.compare(BEFORE, busy), compare.compare(busy, BEFORE)):
        assert found.more_than_noise == []
        assert {one.value for one in changes(found)} == {0, 1}
        clocks = [one for one in found.numbers if one.unit == "×"]
        assert len(clocks) == 4 and all(one.change is None and one.first.value != one.second.value for one in clocks)
        assert compare.conclusion(found.numbers) == "nothing that is more than noise"
    assert found.costs == busy.summary.alignment.costs, "the cost model is that of A"


def test_a_drafter_that_needs_fewer_runs_is_found_and_nothing_else() -> None:
    found = compare.compare(BEFORE, loaded("B", *finished(faster=1.2, seed=1)))
    assert found.more_than_noise == [f"bild aligned, {one}: time of a text, by counts" for one in ("no loss", "≤ 1 point")]
    change = numbers(found)["bild aligned, no loss: time of a text, by counts (test)"].change
    assert change and change.value == pytest.approx(1.2, rel=0.03)
    assert change.interval and change.interval[0] < 1.2 < change.interval[1]


def test_better_quality_is_found_relative_to_vanilla_before_it_is_found_alone() -> None:
    found = compare.compare(BEFORE, loaded("B", *finished(better=0.8)))
    assert "bild aligned, no loss: BLEU minus vanilla's" in found.more_than_noise
    assert "bild aligned, no loss: BLEU" not in found.more_than_noise, "0.8 points are within its own interval's noise"
    assert not any("unaligned" in name or "time" in name for name in found.more_than_noise)


@pytest.mark.parametrize("texts", ["2" * 32, None])
def test_other_or_unknown_texts_are_not_paired(texts: str | None) -> None:
    summary, work = finished()
    summary["pairs"]["aligned"]["lineage"]["input data/toy/corpus/test.jsonl"] = texts
    other = loaded("B", summary, work)
    found = numbers(compare.compare(BEFORE if texts else other, other))
    unaligned, aligned = (found[f"bild {arm}, no loss: time of a text, by counts (test)"] for arm in ("unaligned", "aligned"))
    assert (unaligned.paired, aligned.paired) == (True, False)
    assert unaligned.change == compare.Change(1.0, (1.0, 1.0), 1.0)
    assert aligned.change and aligned.change.interval and aligned.change.interval[0] < 0.95 and aligned.change.value == 1.0


def resized(summary: dict[str, Any]) -> None:
    model = dict.fromkeys([field.name for field in dataclasses.fields(ModelSizes)], 1)
    summary["pairs"]["aligned"]["sizes"] = {"small": model, "large": model}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda summary: summary["points"][5]["settings"].update(max_draft=3), "no counts of test in B"),
        (resized, "models of other sizes have other costs"),
        (lambda summary: summary["points"][5]["counts"].update(layers=4), "what it runs is neither of the two whole models"),
    ],
)
def test_a_speed_that_counts_do_not_tell_is_not_judged(change: Callable[[dict[str, Any]], None], why: str) -> None:
    summary, work = finished(clock=3.0)
    change(summary)
    found = compare.compare(BEFORE, loaded("B", summary, work))
    name = "bild aligned, no loss"
    assert numbers(found)[f"{name}: speed-up, by two clocks (test)"].uncounted.startswith(why)
    assert f"{name}: time of a text, by counts (test)" not in numbers(found)
    assert not numbers(found)["bild unaligned, no loss: speed-up, by two clocks (test)"].uncounted
    assert f"  {name}: speed is not judged: {why}" in compare.as_text(found)


def test_results_without_a_cost_model_show_speed_ups_alone() -> None:
    without = dataclasses.replace(BEFORE, summary=dataclasses.replace(BEFORE.summary, alignment=None))
    found = compare.compare(without, without)
    assert {one.uncounted for one in found.numbers if one.unit == "×"} == {"neither result has a cost model"}
    assert compare.compare(without, BEFORE).costs is not None


def test_a_summary_alone_shows_speed_ups_and_judges_none() -> None:
    before, after = (loaded("one", finished(faster=faster)[0], {}) for faster in (1.0, 1.5))
    found = compare.compare(before, after)
    assert found.more_than_noise == [] and not any(one.unit == "ms" for one in found.numbers)
    assert numbers(found)["bild aligned, no loss: speed-up, by two clocks (test)"].second.value == pytest.approx(1.8)
    assert compare.conclusion(found.numbers) == "nothing that is more than noise (not compared: 4 of 4 speeds, without counts)"


def test_other_settings_behind_a_choice_and_a_choice_of_only_one_result_are_listed() -> None:
    summary, work = finished()
    summary["choices"][1]["point"] = None
    summary["choices"][2]["point"] = 4
    assert compare.compare(BEFORE, loaded("B", summary, work)).choices == [
        "bild unaligned, ≤ 1 point: only A has such a point",
        "bild aligned, no loss: α_FB 0.9 α_RB ∞ ≤ 10 -> α_FB 0.7 α_RB ∞ ≤ 10",
    ]


def test_two_choices_that_are_one_point_are_one_number() -> None:
    summary, work = finished()
    summary["choices"][2]["point"] = 4
    both = loaded("both", summary, work)
    assert "bild aligned, no loss and ≤ 1 point: time of a text, by counts (test)" in numbers(compare.compare(both, both))


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


def both(one: PairRecord) -> compare.Facts:
    return compare.facts({"unaligned": one, "aligned": one})


def test_each_difference_is_listed() -> None:
    assert compare.differing(both(pair()), both(pair())) == []
    changed = pair({"git_commit": "b" * 40, "torch": "2.14.0", VALIDATION: "2" * 32}, seed=2)
    assert compare.differing(both(pair()), both(changed)) == [
        ("sweep.seed", "1", "2"),
        ("git_commit", "a" * 40, "b" * 40),
        ("torch", "2.13.0", "2.14.0"),
        ("data/toy/corpus/validation.jsonl", "1" * 32, "2" * 32),
    ]
    lineage = {name: value for name, value in (pair().lineage or {}).items() if name != "torch"}
    older = dataclasses.replace(pair(), lineage=lineage)
    assert compare.differing(both(pair()), both(older)) == [("torch", "2.13.0", compare.NOT_RECORDED)]


def test_a_grid_is_compared_entry_by_entry_in_any_order() -> None:
    speculative = {"method": "speculative", "values": {"draft_length": [3]}}
    bild = {"method": "bild", "preset": "v1"}
    assert compare.differing(both(pair(grid=[bild, speculative])), both(pair(grid=[speculative, bild]))) == []
    ((name, ours, theirs),) = compare.differing(both(pair(grid=[bild, speculative])), both(pair(grid=[bild])))
    assert name == f"sweep.grid {json.dumps(speculative, sort_keys=True)}"
    assert (ours, theirs) == ("there", compare.NOT_RECORDED)


def known(value: float, error: float) -> compare.Estimate:
    """A number with that standard error."""
    return compare.Estimate(value, (value - 1.959964 * error, value + 1.959964 * error))


def test_a_difference_by_hand() -> None:
    change = compare.difference(known(30.0, 0.3), known(31.0, 0.4))
    assert change.value == 1.0
    assert change.interval == pytest.approx((1 - 0.98, 1 + 0.98), abs=1e-4)
    assert change.p == pytest.approx(math.erfc(2 / math.sqrt(2)))
    assert compare.difference(known(30.0, 0.3), compare.Estimate(31.0)) == compare.Change(1.0, None, None)


def test_a_cheaper_copy_is_found_and_pairing_sees_more() -> None:
    times = np.random.default_rng(2).uniform(10, 50, 40)
    paired, unpaired = (compare.ratio_of_times(times, times / 1.06, paired) for paired in (True, False))
    assert paired.value == unpaired.value == pytest.approx(1.06)
    assert paired.interval == pytest.approx((1.06, 1.06)) and paired.p == pytest.approx(0)
    assert unpaired.interval and unpaired.interval[0] < 1 < unpaired.interval[1]
    # Samples of other sizes: the mean time of a text is compared.
    assert compare.ratio_of_times(times, np.tile(times, 3), paired=False).value == pytest.approx(1)


@pytest.mark.parametrize("paired", [True, False])
def test_noise_is_called_a_change_of_speed_in_about_five_per_cent(paired: bool) -> None:
    rng = np.random.default_rng(3)
    found, runs = 0, 400
    for _ in range(runs):
        lengths = [rng.uniform(10, 50, 60) for _ in range(2)]
        first, second = (lengths[0 if paired else index] * np.exp(0.1 * rng.normal(size=60)) for index in range(2))
        change = compare.ratio_of_times(first, second, paired, samples=200)
        assert change.p is not None
        found += change.p < compare.LEVEL
    assert 0.025 < found / runs < 0.085


def test_of_many_unchanged_numbers_any_is_named_in_at_most_five_per_cent() -> None:
    draws = np.random.default_rng(5).normal(size=(1000, 20, 2))
    runs = [[compare.difference(known(ours, 1.0), known(theirs, 1.0)) for ours, theirs in pairs] for pairs in draws.tolist()]
    assert sum(any(compare.more_than_noise(changes)) for changes in runs) / len(runs) < 0.07
    alone = [any(compare.more_than_noise([change])[0] for change in changes) for changes in runs]
    assert sum(alone) / len(alone) > 0.5, "without looking at them together, most runs would name one"


def test_holm_continues_after_the_smallest_p_value() -> None:
    changes = [compare.Change(0.0, None, p) for p in (0.04, 0.001, 0.02)]
    assert compare.more_than_noise(changes) == [True, True, True]
    changes = [compare.Change(0.0, None, p) for p in (0.04, 0.001, 0.03, None)]
    assert compare.more_than_noise(changes) == [False, True, False, False]


# The command: what it reads, what it prints, how it refuses.


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(compare.main, monkeypatch, capsys)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write(tmp_path / "before", *finished())


@pytest.fixture
def after(tmp_path: Path) -> Path:
    summary, work = finished(faster=1.2, seed=1)
    for pair in summary["pairs"].values():
        pair["lineage"]["git_commit"] = "b" * 40
    return write(tmp_path / "after", summary, work)


def test_a_result_against_itself(run: Run, before: Path) -> None:
    printed = run(before, before / "summary.json").printed
    assert printed.splitlines()[-1] == "nothing that is more than noise"
    assert "md5" not in printed


def test_a_change_is_listed_in_its_section_and_in_the_last_line(run: Run, before: Path, after: Path) -> None:
    lines = run(before, after).printed.splitlines()
    assert any(line.split() == ["git_commit", "a" * 12, "b" * 12] for line in lines)
    assert lines[-1].startswith("more than noise: bild aligned, no loss: time of a text, by counts (test) 1.")
    assert "unaligned, no loss" not in lines[-1]
    (time,) = (line for line in lines if line.strip().startswith("bild aligned, no loss: time of a text"))
    assert " ms  " in time and " as fast  " in time and time.endswith("< 0.001  more than noise")
    (clocks,) = (line for line in lines if line.strip().startswith("bild aligned, no loss: speed-up, by two clocks"))
    assert clocks.split()[-3:] == ["not", "compared", "–"]
    assert any("text 1, large call 0.1," in line and "4 of 4 paired" in line for line in lines)
    assert any("python -m tasks.promote --task toy times two registered pairs in turn" in line for line in lines)


def test_json_for_programs(run: Run, before: Path, after: Path) -> None:
    found = json.loads(run(before, after, "--json").printed)
    assert found["more_than_noise"] == [one["name"] for one in found["numbers"] if one["more_than_noise"]] != []
    assert found["differing"] == [["git_commit", "a" * 40, "b" * 40]]


def test_numbers_without_an_interval_are_counted(run: Run, tmp_path: Path) -> None:
    summary, _ = finished()
    del summary["vanilla"]["small"]["quality_interval"]
    summary["pairs"] = {"unaligned": {}, "aligned": {}}
    older = write(tmp_path / "older", summary, {})
    last = run(older, older).printed.splitlines()[-1]
    left = "1 of 11 numbers, without an interval; 4 of 4 speeds, without counts"
    assert last == f"nothing that is more than noise (not compared: {left})"


def test_everything_but_the_speed_is_compared_without_readable_counts(run: Run, before: Path) -> None:
    (before / "sweep/aligned/hypotheses-test.parquet").write_text("no parquet", encoding="utf-8")
    _, printed, said = run(before, before)
    assert printed.splitlines()[-1] == "nothing that is more than noise (not compared: 2 of 4 speeds, without counts)"
    assert f"{before}: " in said and "hypotheses-test.parquet is damaged or of another revision" in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"no summary\.json there; write it by: python -m tasks\.report"),
        ("{", r"summary\.json: not JSON .*; write it with this revision's tasks\.report"),
        ("[]", r"summary\.json: not a JSON object"),
        ('{"metric": "bleu"}', r"summary\.json: field 'task' is missing; write it"),
        ('{"version": 2}', r"summary\.json: version 2, but this code reads version 1; write it"),
    ],
)
def test_a_folder_without_a_result_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        open_result(str(tmp_path))


def test_a_mistake_is_one_line_and_status_2(run: Run, tmp_path: Path, before: Path) -> None:
    summary, work = finished()
    other = write(tmp_path / "other", {**summary, "metric": "rougeL"}, work)
    status, _, said = run(before, other)
    (line,) = said.splitlines()
    assert status == 2 and "is measured in bleu and" in line and "compare results of one metric" in line


def test_early_exits_of_both_are_drawn_or_said_to_be_missing(run: Run, tmp_path: Path, before: Path) -> None:
    status, _, said = run(before, before, "--early-exits", tmp_path / "exits.svg")
    assert status == 2 and "neither result has timed points of calm or of the drafter early_layer" in said
    summary, work = finished()
    summary["points"][0]["settings"]["drafter"] = "early_layer"
    other = write(tmp_path / "other", summary, work)
    assert run(before, other, "--early-exits", tmp_path / "exits.svg").status == 0
    drawn = (tmp_path / "exits.svg").read_text(encoding="utf-8")
    assert f"{other}: BiLD, early_layer" in drawn and "toy: BiLD" not in drawn, "both are of one task"
    assert "ends in .svg or .png" in run(before, other, "--early-exits", tmp_path / "exits.pdf").said
    assert "none is no folder" in run(tmp_path, other, "--early-exits", tmp_path / "none" / "exits.svg").said


def test_a_name_that_is_neither_path_nor_revision_is_refused() -> None:
    for text in ("nowhere", ":nowhere", "HEAD:"):
        with pytest.raises(InputError, match="no such file or folder; give a folder of results, a summary"):
            open_result(text)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository of DVC's, as of one commit, whose results lie in DVC's cache; it is the working directory."""
    pytest.importorskip("dvc")
    folder = tmp_path / "repository"
    write(folder / "results" / "toy", *finished())
    monkeypatch.chdir(folder)
    outs = ["results/toy/summary.json", "results/toy/sweep/aligned", "results/toy/sweep/unaligned"]
    git(folder, "init", "--quiet")
    for words in (["init"], ["add", *outs]):
        subprocess.run([sys.executable, "-m", "dvc", "-q", *words], check=True, capture_output=True)
    commit(folder, "a result")
    return folder


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def test_a_revision_is_read_from_git_and_dvc(repository: Path) -> None:
    (repository / "results/toy/summary.json").unlink()
    (repository / "results/toy/summary.json").write_text(json.dumps(finished(faster=1.5)[0]), encoding="utf-8")
    earlier = open_result("HEAD:results/toy")
    expected = loaded("HEAD:results/toy", *finished())
    assert earlier.summary == expected.summary
    assert earlier.work.keys() == expected.work.keys()
    assert all(np.array_equal(one, expected.work[name]) for name, one in earlier.work.items())
    assert open_result("HEAD:results/toy/summary.json").summary == earlier.summary
    with pytest.raises(InputError, match=r"v1:results/toy cannot be read: unknown Git revision 'v1'"):
        open_result("v1:results/toy")
    with pytest.raises(InputError, match=r"HEAD:results/other is not there, or neither DVC's cache nor a remote holds it"):
        open_result("HEAD:results/other")
