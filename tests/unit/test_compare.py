"""Two results compared: a copy has no difference, only real changes are found, and noise as often as it says; the command."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import JsonValue

from tasks import compare
from tasks.compare import open_result
from tasks.errors import InputError
from tasks.evaluation.results.pair import PairRecord
from tests.commands import Run, runner
from tests.finished import finished, loaded, write
from tests.toy_project import git

BEFORE = loaded("A", *finished())


def numbers(found: compare.Comparison) -> dict[str, compare.Number]:
    return {f"{one.name} ({one.split})": one for one in found.numbers}


def test_a_result_against_itself_is_nothing_and_every_number_is_there_once_on_the_split_that_holds_it() -> None:
    found = compare.compare(BEFORE, BEFORE)
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
    found = compare.compare(BEFORE, loaded("B", *finished(seed=1)))
    assert found.more_than_noise == []
    speedups = [one for one in found.numbers if one.name.endswith(": speed-up")]
    assert all(one.paired and one.change.value != 1 for one in speedups)


def test_a_faster_drafter_is_found_and_nothing_else() -> None:
    found = compare.compare(BEFORE, loaded("B", *finished(faster=1.2, seed=1)))
    assert found.more_than_noise == ["bild aligned, no loss: speed-up", "bild aligned, ≤ 1 point: speed-up"]
    change = numbers(found)["bild aligned, no loss: speed-up (test)"].change
    assert change.value == pytest.approx(1.2, rel=0.03)
    assert change.interval is not None and change.interval[0] < 1.2 < change.interval[1]


def test_better_quality_is_found_relative_to_vanilla_before_it_is_found_alone() -> None:
    found = compare.compare(BEFORE, loaded("B", *finished(better=0.8)))
    assert "bild aligned, no loss: BLEU minus vanilla's" in found.more_than_noise
    assert "bild aligned, no loss: BLEU" not in found.more_than_noise, "0.8 points are within its own interval's noise"
    assert not any("unaligned" in name or "speed-up" in name for name in found.more_than_noise)


def test_other_examples_are_not_paired() -> None:
    summary, rows = finished(seed=1)
    summary["pairs"]["aligned"]["lineage"]["settings"]["sweep"]["seed"] = 2
    found = numbers(compare.compare(BEFORE, loaded("B", summary, rows)))
    assert found["bild unaligned, no loss: speed-up (test)"].paired
    assert not found["bild aligned, no loss: speed-up (test)"].paired


def test_a_summary_alone_is_compared_by_its_intervals() -> None:
    before, after = (loaded("one", finished(faster=faster)[0], {}) for faster in (1.0, 1.5))
    found = compare.compare(before, after)
    assert "bild aligned, no loss: speed-up" in found.more_than_noise
    assert not numbers(found)["bild aligned, no loss: speed-up (test)"].paired
    assert compare.compare(before, before).more_than_noise == []


def test_other_settings_behind_a_choice_are_named() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    found = numbers(compare.compare(BEFORE, loaded("B", summary, rows)))
    number = found["bild aligned, no loss: speed-up (test)"]
    assert number.settings == ("α_FB 0.9 α_RB ∞ ≤ 10", "α_FB 0.7 α_RB ∞ ≤ 10")


def test_two_choices_that_are_one_point_are_one_number() -> None:
    summary, rows = finished()
    summary["choices"][2]["point"] = 4
    both = loaded("both", summary, rows)
    assert "bild aligned, no loss and ≤ 1 point: speed-up (test)" in numbers(compare.compare(both, both))


def test_a_choice_of_only_one_result_is_listed() -> None:
    summary, rows = finished()
    summary["choices"][1]["point"] = None
    assert compare.compare(BEFORE, loaded("B", summary, rows)).unmatched == [
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


def both(one: PairRecord, other: PairRecord | None = None) -> compare.Facts:
    return compare.facts({"unaligned": one, "aligned": one if other is None else other})


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
    assert compare.same_examples(pair(), other, "validation") is same


def test_what_neither_recorded_is_not_the_same() -> None:
    assert not compare.same_examples(pair({"settings": {}}), pair({"settings": {}}), "validation")
    assert not compare.same_examples(pair(), pair(), "test"), "the hash of that split was not recorded"


Latencies = NDArray[np.float64]


def timed(speedup: float, rng: np.random.Generator, lengths: Latencies) -> compare.Estimate:
    """A method that is on average `speedup` times as fast as vanilla, both timed with noise of a tenth."""
    noise = np.exp(0.1 * rng.normal(size=(len(lengths), 2)))
    latencies = np.column_stack((lengths, lengths / speedup)) * noise
    sums = latencies.sum(axis=0)
    return compare.Estimate(float(sums[0] / sums[1]), None, latencies)


def known(value: float, error: float) -> compare.Estimate:
    """A number with that standard error."""
    return compare.Estimate(value, (value - 1.959964 * error, value + 1.959964 * error))


def test_a_difference_by_hand() -> None:
    change = compare.difference(known(30.0, 0.3), known(31.0, 0.4))
    assert change.value == 1.0
    assert change.interval == pytest.approx((1 - 0.98, 1 + 0.98), abs=1e-4)
    assert change.p == pytest.approx(math.erfc(2 / math.sqrt(2)))
    assert compare.difference(known(30.0, 0.3), compare.Estimate(31.0, None)) == compare.Change(1.0, None, None)


def test_a_speed_up_without_latencies_has_the_error_of_its_interval() -> None:
    ends = math.exp(-1.959964 * 0.1), math.exp(1.959964 * 0.1)
    change = compare.speedup_ratio(compare.Estimate(1.0, ends), compare.Estimate(1.0, ends), paired=False)
    assert change.interval is not None and math.log(change.interval[1]) == pytest.approx(1.959964 * math.hypot(0.1, 0.1))
    assert compare.speedup_ratio(
        compare.Estimate(1.0, ends), compare.Estimate(2.0, (0.0, 3.0)), paired=False
    ) == compare.Change(2.0, None, None)


def test_a_point_against_itself_is_no_change() -> None:
    rng = np.random.default_rng(1)
    one = timed(1.5, rng, rng.uniform(10, 50, 40))
    for paired in (True, False):
        change = compare.speedup_ratio(one, one, paired)
        assert change.value == 1 and change.p == 1
    assert compare.speedup_ratio(one, one, paired=True) == compare.Change(1.0, (1.0, 1.0), 1.0)


def test_a_faster_copy_is_found_and_pairing_sees_more() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.uniform(10, 50, 40)
    # Long examples gain more in both results: what they share is noise unless they are paired.
    gains = 1 + lengths / 20
    before = np.column_stack((lengths, lengths / gains))
    after = before / np.array([1.0, 1.06])
    first, second = (compare.Estimate(float(one[:, 0].sum() / one[:, 1].sum()), None, one) for one in (before, after))
    paired, unpaired = (compare.speedup_ratio(first, second, paired) for paired in (True, False))
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
        change = compare.speedup_ratio(both[0], both[1], paired, samples=200)
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
    summary, rows = finished(faster=1.2, seed=1)
    for pair in summary["pairs"].values():
        pair["lineage"]["git_commit"] = "b" * 40
    return write(tmp_path / "after", summary, rows)


def test_a_result_against_itself(run: Run, before: Path) -> None:
    printed = run(before, before / "summary.json").printed
    assert printed.splitlines()[-1] == "nothing that is more than noise"
    assert "md5" not in printed


def test_a_change_is_listed_in_its_section_and_in_the_last_line(run: Run, before: Path, after: Path) -> None:
    lines = run(before, after).printed.splitlines()
    assert any(line.split() == ["git_commit", "a" * 12, "b" * 12] for line in lines)
    assert lines[-1].startswith("more than noise: bild aligned, no loss: speed-up (test) 1.")
    assert "unaligned, no loss" not in lines[-1]
    (speedup,) = (line for line in lines if line.strip().startswith("bild aligned, no loss: speed-up"))
    assert speedup.endswith("< 0.001  more than noise")
    assert any("4 of 4 paired" in line for line in lines)


def test_json_for_programs(run: Run, before: Path, after: Path) -> None:
    found = json.loads(run(before, after, "--json").printed)
    assert found["more_than_noise"] == [one["name"] for one in found["numbers"] if one["more_than_noise"]] != []
    assert found["differing"] == [["git_commit", "a" * 40, "b" * 40]]


def test_numbers_without_an_interval_are_counted(run: Run, tmp_path: Path) -> None:
    summary, _ = finished()
    del summary["vanilla"]["small"]["quality_interval"]
    summary["pairs"] = {}
    older = write(tmp_path / "older", summary, {})
    last = run(older, older).printed.splitlines()[-1]
    assert last == "nothing that is more than noise (not compared, since they have no interval: 1 of 15 numbers)"


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
    summary, rows = finished()
    other = write(tmp_path / "other", {**summary, "metric": "rougeL"}, rows)
    status, _, said = run(before, other)
    (line,) = said.splitlines()
    assert status == 2 and "is measured in bleu and" in line and "compare results of one metric" in line


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


def test_a_revision_is_read_from_git_and_dvc_with_the_settings_of_its_trainings(run: Run, repository: Path) -> None:
    (repository / "results/toy/summary.json").unlink()
    (repository / "results/toy/summary.json").write_text(json.dumps(finished(faster=1.5)[0]), encoding="utf-8")
    earlier = open_result("HEAD:results/toy")
    expected = loaded("HEAD:results/toy", *finished())
    assert (earlier.summary, earlier.rows) == (expected.summary, expected.rows)
    assert open_result("HEAD:results/toy/summary.json").summary == earlier.summary
    with pytest.raises(InputError, match=r"v1:results/toy cannot be read: unknown Git revision 'v1'"):
        open_result("v1:results/toy")
    with pytest.raises(InputError, match=r"HEAD:results/other is not there, or neither DVC's cache nor a remote holds it"):
        open_result("HEAD:results/other")
    # A folder alone does not say by which params.yaml it was made.
    names = []
    for beta in (0.3, 0.7):
        task = {"align": {"beta": beta, "steps": 40}, "seeds": [1, 2], "sweep": {"seed": beta}}
        Path("params.yaml").write_text(json.dumps({"tasks": {"toy": task}}), encoding="utf-8")
        commit(repository, f"beta {beta}")
        git(repository, "tag", f"beta-{beta}")
        names.append(f"beta-{beta}:results/toy")
    assert json.loads(run(*names, "--json").printed)["differing"] == [["align.beta", "0.3", "0.7"]]
    assert json.loads(run(names[0], "results/toy", "--json").printed)["differing"] == []
