"""The stage sweep: early refusals, its command, what it writes, what is measured anew, and what it measures beside its grid."""

import contextlib
import dataclasses
import json
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch

from tasks import loaded_pair
from tasks import sweep as stage
from tasks.config import Params, Task
from tasks.corpora.example import Example, read_jsonl, write_jsonl
from tasks.decoding import pair_folder
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.beam import BeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import TokenCascadeSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.errors import InputError
from tasks.evaluation.acceptance import agreeing_layers
from tasks.evaluation.operations import sizes_of
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.summarize import summarize
from tasks.evaluation.report.tables import tables_markdown
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.files import point_key, read_hypotheses
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import FailedRow, MeasuredRow
from tasks.evaluation.scoring.metrics import metric_of
from tasks.evaluation.scoring.quality import value_of
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.clock import Laps, PointTimer, Start
from tasks.evaluation.sweep.grid import VANILLA, Drafter, SweepPoint
from tasks.loaded_pair import LoadedPair, LoadedPairs, require_composable
from tasks.locks import timing_lock
from tasks.paths import ARMS
from tasks.report import read_rows_of
from tests.architectures import models, pair_of, whole_rows
from tests.sandbox import sandboxed
from tests.sweeps import by_name, in_file
from tests.ticking import Words, examples_of
from tests.toy_sweep import BILD, PATHS, SPECULATIVE, Recorded, named, opened, swept, use
from tests.toys import END, prefix_pair, says
from tests.unit.evaluation.conftest import timed


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    """A task of toy models in a folder, and the records of its sweeps."""
    monkeypatch.chdir(tmp_path)
    pair, found = pair_of("t5"), []
    for name, seed in (("validation", 0), ("test", 1)):
        PATHS.split(name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(examples_of(pair, 6, seed), PATHS.split(name))

    def record(*about: Any) -> Recorded:
        found.append(Recorded(*about))
        return found[-1]

    @contextlib.contextmanager
    def watched(device: str) -> Iterator[None]:
        with timing_lock(device):
            Recorded.locked = True
            yield
            Recorded.locked = False

    monkeypatch.setattr(stage, "timing_lock", watched)
    monkeypatch.setattr(stage, "SweepRecord", record)
    use(pair, monkeypatch)
    yield found


NO_TABLES = [VANILLA, SweepPoint("token_cascade", TokenCascadeSettings()), SweepPoint("bild", BildSettings(drafter="copy"))]


@pytest.mark.parametrize("drafter", ["unigram", "suffix"])
def test_the_calibration_set_is_read_for_points_that_draft_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    monkeypatch.setattr(pair_folder, "load_tokenizer", lambda folder: Words())
    file = tmp_path / "calibration.jsonl"
    write_jsonl([Example("a source", ("w3 w4",)), Example("another", ("w5 w6 w7 w8 w9", "w2"))], file)
    grid = [*NO_TABLES, SweepPoint("speculative", SpeculativeSettings(drafter=drafter))]
    assert pair_folder.calibration_targets(grid, file, tmp_path, 5) == [[3, 4, END], [5, 6, 7, 8, END]]
    assert pair_folder.calibration_targets(NO_TABLES, file, tmp_path, 5) == []


def test_a_missing_or_empty_calibration_set_is_refused(tmp_path: Path) -> None:
    file, grid = tmp_path / "calibration.jsonl", [SweepPoint("bild", BildSettings(drafter="bigram"))]
    assert pair_folder.calibration_targets(NO_TABLES, file, tmp_path, 5) == []
    with pytest.raises(InputError, match=r"calibration\.jsonl is missing; run the stage that makes it"):
        pair_folder.calibration_targets(grid, file, tmp_path, 5)
    file.touch()
    with pytest.raises(InputError, match=r"calibration\.jsonl is empty; run the stage calibrate again"):
        pair_folder.calibration_targets(grid, file, tmp_path, 5)


@pytest.mark.parametrize(
    ("point", "sampling", "message"),
    [
        (SweepPoint("calm", CalmSettings()), SamplingSettings(), "sweep.grid asks for calm: .* needs the layers"),
        (SweepPoint("speculative", SpeculativeSettings(drafter="heads")), SamplingSettings(), ".* train it with draft_heads"),
        (SweepPoint("beam_large", BeamSettings()), SamplingSettings(temperature=1.0), "asks for beam_large: .*temperature"),
    ],
)
def test_points_that_the_pair_cannot_run_are_refused_first(point: SweepPoint, sampling: SamplingSettings, message: str) -> None:
    pair, request = prefix_pair(says([2]), says([3])), Request(5, sampling)
    require_composable(NO_TABLES, pair, request)
    with pytest.raises(InputError, match=message):
        require_composable([*NO_TABLES, point], pair, request)


def test_pairs_are_handed_over_where_other_processes_need_no_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handed(pair: Pair, *grid: SweepPoint) -> bool:
        pairs = LoadedPairs(lambda *_: opened(pair))
        pairs.hand_over({Drafter("aligned", 1): grid}, tmp_path / "pairs.pt")
        return pairs.handed is not None

    native = pair_of("t5")
    assert handed(native, *NO_TABLES)
    assert not handed(pair_of("t5", REFERENCE), *NO_TABLES)
    assert not handed(native, SweepPoint("speculative", SpeculativeSettings(drafter="early_layer")))
    assert not handed(native, SweepPoint("calm", CalmSettings()))
    monkeypatch.setattr("tasks.loaded_pair._HANDED_BYTES", 1000)
    assert not handed(native, *NO_TABLES)


def test_a_sweep_lists_the_points_that_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep", "--task", "toy"])
    monkeypatch.setattr(stage, "load", lambda path: Params(active={"toy": Path()}, tasks={"toy": Task(metric="bleu")}))
    whole = timed("bild", 1.0, settings={"max_draft": 3})
    measured = joined(MeasuredRow, whole)
    rows = [whole, measured, joined(FailedRow, measured, error="RuntimeError: one")]
    drafter = Drafter("aligned", 1)
    monkeypatch.setattr(stage, "sweep", lambda *_: ({drafter: rows}, {drafter: PairRecord(runtime="native code")}))
    stage.main()
    printed = capsys.readouterr()
    failed, counts = printed.err.splitlines()
    assert counts == "toy: 3 points, 1 timed, 1 failed (native code)"
    assert all(fact in failed for fact in ("validation", "bild", "'max_draft': 3", "RuntimeError: one"))


def test_a_sweep_writes_its_rows_and_the_record_of_its_pair(records: list[Recorded]) -> None:
    rows = swept(BILD, SPECULATIVE, agreeing_layers=True)
    path = PATHS.rows("aligned")
    validation = [row for row in rows if row["split"] == "validation"]
    assert len(validation) == len(named(validation)) == 2 + 6 + 4
    assert {(row["task"], row["arm"]) for row in rows} == {("toy", "aligned")}
    assert sorted(in_file(path), key=str) == sorted(rows, key=str)
    assert any("speedup" not in row for row in rows)
    pair = json.loads(path.with_name("pair.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    of_pair = {"version", "arm", "seed", "training", "runtime", "acceptance", "agreeing_layers", "sizes", "outputs", "costs"}
    of_sweep = {"plan", "lineage", "margins", "grid", "batches", "null_test", "sha256"}
    assert pair.keys() == of_pair | of_sweep
    small, large = models("t5")
    assert pair["sizes"]["small"] == dataclasses.asdict(sizes_of(small))
    assert pair["sizes"]["large"] == dataclasses.asdict(sizes_of(large))
    assert pair["batches"] is None, "switched off"
    assert [one["temperature"] for one in pair["acceptance"]] == [0, 1], "the small model alone drafts"
    for found in pair["acceptance"]:
        assert found["interval"][0] <= found["rate"] <= found["interval"][1]
    assert len(pair["agreeing_layers"]) == 3 and sum(pair["agreeing_layers"]) == pair["acceptance"][0]["tokens"]
    assert pair["plan"]["points"] == 10
    assert len(pair["grid"]) == 10
    assert not any(name.startswith("mlflow.") for name in pair["lineage"])  # the user belongs to the record alone
    assert pair["plan"]["timed"] == sum("speedup" in row for row in validation) - 2
    assert pair["costs"]["cost_ratio"] > 0
    assert pair["lineage"]["settings"]["sweep"]["latency_examples"] == 3
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        ["hypotheses-test.parquet", "hypotheses-validation.parquet", "pair.json", "rows.jsonl"]
    )
    [record] = records
    assert named(record.points) == named(rows)
    at_first = {name for name, value in record.pairs[0].items() if value is not None}
    assert at_first == {"arm", "seed", "runtime", "acceptance", "agreeing_layers", "sizes", "margins"}
    assert record.pairs[-1]["plan"] == pair["plan"]
    outputs = ["hypotheses-test.parquet", "hypotheses-validation.parquet"]
    assert [file.name for file in record.kept] == ["rows.jsonl", "pair.json", *outputs]


def test_no_model_is_in_memory_while_another_process_times(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    pair, loaded = pair_of("t5"), list[weakref.ref[LoadedPair]]()

    def load(*_: object) -> LoadedPair:
        found = opened(pair)
        loaded.append(weakref.ref(found))
        return found

    def start_elsewhere(open_timer: Callable[[int], PointTimer], close: Callable[[], object]) -> Start:
        timer = open_timer(0)

        @contextlib.contextmanager
        def start() -> Iterator[Laps]:
            close()
            assert loaded and not any(one() for one in loaded)
            yield timer.lap

        return start

    monkeypatch.setattr(loaded_pair, "load_drafter", load)
    monkeypatch.setattr(stage, "start_elsewhere", start_elsewhere)
    assert swept(SPECULATIVE) and len(loaded) > 1


def test_chosen_points_are_timed_by_batch_size_and_rows_stay(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = swept(SPECULATIVE, BILD)
    monkeypatch.setattr(PointTimer, "lap", lambda *_: pytest.fail("timed again"))
    assert swept(SPECULATIVE, BILD, batch_sizes=(1, 3), batch_examples=3) == rows
    timings = json.loads(PATHS.rows("aligned").with_name("pair.json").read_text(encoding="utf-8"))["batches"]
    assert timings["error"] is None and timings["split"] == "test" and timings["examples"] == 3
    chosen = {(row["method"], str(row["settings"])) for row in rows if row["split"] == "test"}
    assert {(one["method"], str(one["settings"])) for one in timings["points"]} <= chosen
    assert {one["batch_size"] for one in timings["points"]} == {one["batch_size"] for one in timings["vanilla"]} == {1, 3}


def test_the_outputs_of_every_row_are_kept_beside_the_rows(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, folder = swept(BILD, SPECULATIVE), PATHS.rows("aligned").parent
    files = {name: folder / f"hypotheses-{name}.parquet" for name in ("validation", "test")}
    whole = {name: {key: one.texts for key, one in read_hypotheses(file).items()} for name, file in files.items()}
    assert {(name, *key) for name, found in whole.items() for key in found} == {
        (row["split"], *point_key(row["method"], row["settings"])) for row in rows
    }
    for row in rows:
        texts = whole[row["split"]][point_key(row["method"], row["settings"])]
        references = [example.references for example in read_jsonl(PATHS.split(row["split"]))]
        assert value_of(texts, references, "bleu") == pytest.approx(row["quality"]["bleu"])
        work = read_hypotheses(files[row["split"]])[point_key(row["method"], row["settings"])].work
        counts = row["counts"]
        positions = sum(int(width) * calls for width, calls in counts["verified"].items())
        assert work.sum(axis=0).tolist() == [counts["large_calls"], positions, counts["small_steps"]]
    # A finished sweep writes what was lost, without timing anything.
    files["test"].unlink()
    monkeypatch.setattr(PointTimer, "lap", lambda *_: pytest.fail("timed again"))
    assert swept(BILD, SPECULATIVE)
    again = {name: {key: one.texts for key, one in read_hypotheses(file).items()} for name, file in files.items()}
    assert again == whole


def test_measured_rows_are_kept_when_the_grid_changes(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = swept(SPECULATIVE, plan=False)
    written = PATHS.rows("aligned").read_bytes()
    with monkeypatch.context() as forbidden:
        forbidden.setattr(PointTimer, "lap", lambda *_: pytest.fail("timed again"))
        assert swept(SPECULATIVE, plan=False) == whole
        assert swept(SPECULATIVE, plan=True, near=0.5, sample=9)
    larger = swept(SPECULATIVE, BILD, sample=0)
    assert PATHS.rows("aligned").read_bytes().startswith(written)
    assert named(whole) < named(larger)


def test_other_settings_are_measured_anew(records: list[Recorded]) -> None:
    notes = PATHS.resume("sweep-aligned-1")
    before = {row["fingerprint"] for row in swept(SPECULATIVE)}
    assert {folder.name for folder in notes.iterdir()} == before
    after = {row["fingerprint"] for row in swept(SPECULATIVE, latency_rounds=2)}
    assert len(before) == len(after) == 1
    assert before != after
    assert {row["fingerprint"] for row in in_file(PATHS.rows("aligned"))} == after
    assert {folder.name for folder in notes.iterdir()} == after


def test_rows_of_another_machine_are_measured_anew(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    before = {row["fingerprint"] for row in swept(SPECULATIVE)}
    monkeypatch.setattr(stage, "lineage", lambda **_: {"host_cpu": "another", "git_commit": "abc"})
    assert before.isdisjoint(row["fingerprint"] for row in swept(SPECULATIVE))


def test_a_broken_pair_ends_the_sweep(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "agreeing_layers", create_autospec(agreeing_layers, side_effect=RuntimeError("no room")))
    with pytest.raises(InputError, match=r"the sources of validation: no room; .* set sweep\.quality_batch below 4"):
        swept(SPECULATIVE, agreeing_layers=True)
    small, large = map(whole_rows, models("t5"))
    broken = prefix_pair(small, lambda source, prefix: torch.full_like(large(source, prefix), math.nan))
    use(broken, monkeypatch)
    with pytest.raises(InputError, match="cannot decode the sources of validation: the large model gave NaN"):
        swept(SPECULATIVE)


def write_test_set(name: str, seed: int) -> None:
    PATHS.tests.mkdir(exist_ok=True)
    write_jsonl(examples_of(pair_of("t5"), 6, seed), PATHS.split(f"test.{name}"))


def test_further_test_sets_are_measured_beside_the_main_one(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = swept(SPECULATIVE)
    main = PATHS.rows("aligned").read_bytes()
    chosen = {(row["method"], str(row["settings"])) for row in alone if row["split"] == "test"}
    folder, lap = PATHS.rows("aligned").parent, create_autospec(PointTimer.lap, side_effect=PointTimer.lap)
    monkeypatch.setattr(PointTimer, "lap", lap)

    def timed_sets() -> set[str]:
        return {call.args[3].name for call in lap.call_args_list}

    def measured(*names: str) -> dict[str, set[tuple[str, str]]]:
        lap.reset_mock()
        rows = [row for row in swept(SPECULATIVE) if row["split"].startswith("test.")]
        written = [row for name in names for row in in_file(PATHS.rows("aligned", test=name))]
        assert sorted(rows, key=str) == sorted(written, key=str)
        return {name: {(row["method"], str(row["settings"])) for row in rows if row["split"] == name} for name in names}

    write_test_set("a", 2)
    write_test_set("b", 3)
    assert measured("test.a", "test.b") == {"test.a": chosen, "test.b": chosen}
    assert timed_sets() == {"test.a", "test.b"} and PATHS.rows("aligned").read_bytes() == main, "the others stay valid"
    assert (folder / "hypotheses-test.a.parquet").is_file()
    assert {row["split"] for row in records[-1].points} == {"validation", "test", "test.a", "test.b"}
    kept = [file.name for file in records[-1].kept if "rows" in file.name]
    assert kept == ["rows-test.a.jsonl", "rows-test.b.jsonl", "rows.jsonl"]
    # A set that changes is measured again by itself; one that is removed takes its files with it.
    write_test_set("a", 4)
    PATHS.split("test.b").unlink()
    assert measured("test.a") == {"test.a": chosen}
    assert timed_sets() == {"test.a"}
    assert not list(folder.glob("*test.b*"))


@pytest.mark.parametrize("metric", ["token_f1", pytest.param("pass_at_1", marks=sandboxed), "rougeL[rouge_tokenizer=unicode]"])
def test_a_sweep_by_any_metric_becomes_a_report(records: list[Recorded], monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    if metric == "pass_at_1":  # outputs are programs, some of which pass
        monkeypatch.setattr(Words, "decode", lambda _, tokens, **__: f"w = {[int(token) for token in tokens]}")
        for name in ("validation", "test"):
            tests = ("w = []", "assert sum(w) % 3")
            write_jsonl([Example(one.source, tests) for one in read_jsonl(PATHS.split(name))], PATHS.split(name))
    rows = swept(SPECULATIVE, metric=metric)
    assert {row["metric"] for row in rows} == {metric}
    assert all(0 < row["quality"][metric_of(metric).name] < 100 for row in rows)
    found = read_rows_of(PATHS, metric, "aligned")
    text = tables_markdown(summarize("toy", metric, {(arm, 1): (found, PairRecord()) for arm in ARMS}))
    assert metric_name(metric) in text and "BLEU" not in text


def test_further_temperatures_are_swept_beside_vanilla_at_the_same_one(records: list[Recorded]) -> None:
    beams = GridSettings(method="beam_large", values={"beams": [2]})
    grid = (GridSettings(method="speculative", values={"draft_length": [2]}), beams)
    alone = swept(*grid)
    main, folder = PATHS.rows("aligned").read_bytes(), PATHS.rows("aligned").parent
    rows = [row for row in swept(*grid, temperatures=(0.5, 2.0)) if row not in alone]
    assert {(one["split"], one["sampling"]["temperature"]) for one in rows} == {("validation.T0.5", 0.5), ("validation.T2", 2)}
    # A beam search draws nothing; all others are decoded and timed, and nothing is chosen or tested.
    assert sorted(row["method"] for row in rows) == sorted(["vanilla_large", "vanilla_small", "speculative"] * 2)
    assert {row["how"] for row in rows} == {"decoded"} and all("speedup" in row for row in rows)
    assert PATHS.rows("aligned").read_bytes() == main, "the main rows stay valid"
    warm = read_hypotheses(folder / "hypotheses-validation.T2.parquet")
    greedy = read_hypotheses(folder / "hypotheses-validation.parquet")
    assert warm[point_key("vanilla_large", {})].texts != greedy[point_key("vanilla_large", {})].texts
    hot = next(row for row in rows if (row["split"], row["method"]) == ("validation.T2", "vanilla_large"))
    assert hot["quality_difference_interval"] == [0, 0], "vanilla is compared with itself at that temperature"
    in_both = in_file(PATHS.rows("aligned", test="validation.T0.5")), [row for row in rows if row["split"].endswith("T0.5")]
    assert by_name(in_both[0]) == by_name(in_both[1])
    swept(*grid, temperatures=(2.0,))
    assert {file.name for file in folder.glob("rows*.jsonl")} == {"rows.jsonl", "rows-validation.T2.jsonl"}
    assert not (folder / "hypotheses-validation.T0.5.parquet").exists()
    kept = in_file(PATHS.rows("aligned", test="validation.T2"))
    assert by_name(kept) == by_name([row for row in rows if row["split"].endswith("T2")])
