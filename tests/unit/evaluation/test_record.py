"""What a sweep and a report leave in MLflow, which a store in memory stands for."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.settings import SamplingSettings
from tasks.evaluation import record
from tasks.evaluation.record import SweepRecord, acceptance_metrics, pair_metrics, record_report, uploaded_hypotheses
from tasks.evaluation.results.pair import PairRecord, SweepPlan
from tasks.paths import TaskPaths
from tasks.tracking import RegisteredModel, outbox_folder, upload_all
from tasks.tracking.contents import NOTE_TAG, TABLES_TAG
from tasks.tracking.upload import KEY_TAG
from tasks.tracking.views import view_tags
from tests.memory_mlflow import MemoryMlflow, Stored, memory_mlflow
from tests.unit.evaluation.conftest import measured_record, pair_record, records

PAIR = {
    "costs": {"cost_ratio": 0.2, "verify_ms": {"1": 2.0}},
    "acceptance": {
        "greedy": {"rate": 0.8, "interval": [0.78, 0.82], "tokens": 5000},
        "sampled": {"temperature": 1.0, "rate": 0.7, "interval": [0.68, 0.72], "tokens": 5000},
        "others": [{"drafter": "bigram", "greedy": {"rate": 0.2, "interval": [0.18, 0.22], "tokens": 5000}}],
    },
    "plan": {
        "points": 60,
        "timed": 12,
        "replay_seconds": 4.0,
        "prediction_error": {
            "sample": {"points": 5, "mean": 0.03, "worst": 0.08},
            "all": {"points": 12, "mean": 0.02, "worst": 0.1},
        },
    },
}
ROW = {
    "task": "toy",
    "arm": "aligned",
    "split": "validation",
    "method": "bild",
    "settings": {"drafter": "small", "fallback_threshold": 0.6, "rollback_threshold": "inf", "max_draft": 10},
    "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    "lossless": False,
    "metric": "bleu",
    "examples": 4,
    "how": "replayed",
    "why": "frontier",
    "quality": {"bleu": 40.0, "rougeL": 60.0},
    "quality_interval": [38.0, 42.0],
    "counts": {
        "tokens": 100,
        "small_steps": 90,
        "large_calls": 40,
        "drafted": 90,
        "accepted": 60,
        "fallbacks": 25,
        "rollbacks": 10,
        "verified": {"3": 40},
        "kept": {"3/2": 40},
    },
    "predicted": {"latency_ms": 21.0, "speedup": 1.5},
}
TIMED = {
    **ROW,
    "latency_ms": [10.0, 30.0],
    "vanilla_latency_ms": [20.0, 40.0],
    "speedup": 1.5,
    "speedup_interval": [1.3, 1.7],
}
FAILED = {name: ROW[name] for name in ("arm", "split", "method", "settings", "lossless", "metric")} | {
    "error": "RuntimeError: memory"
}


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryMlflow]:
    """A folder to work in, and a store that gets the runs when `runs` is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "_FLUSH_SECONDS", 0.0)
    with memory_mlflow(tmp_path) as store:
        yield store


def swept(rows: list[dict[str, Any]], drafter: str = "aligned", *, every_point: bool = True) -> None:
    with SweepRecord(TaskPaths("toy"), drafter, "native", {"seed": 1}, [], None, every_point) as sweep:
        sweep.pair(pair_record(PAIR))
        for row in records(rows):
            sweep.point(row)
        sweep.keep([])


def runs(mlflow: MemoryMlflow) -> dict[str, Stored]:
    assert upload_all(outbox_folder(), "uri")[1] == []
    return {run.info.run_name: run for run in mlflow.runs.values()}


def values(run: Stored) -> dict[str, float]:
    assert len(run.history) == len(run.data.metrics)
    return dict(run.data.metrics)


NAME = "bild aligned fallback_threshold=0.6 rollback_threshold=inf max_draft=10 validation"


def test_a_timed_point_is_a_child_with_what_the_pages_compare(mlflow: MemoryMlflow) -> None:
    swept([TIMED])
    point = runs(mlflow)[NAME]
    assert mlflow.runs[point.parent].info.run_name == "sweep aligned"
    assert (
        point.data.tags.items()
        >= {
            "kind": "point",
            "method": "bild",
            "arm": "aligned",
            "lossless": "False",
            "split": "validation",
            "timed": "True",
            "how": "replayed",
            "why": "frontier",
        }.items()
    )
    assert point.data.params == {
        "fallback_threshold": "0.6",
        "rollback_threshold": "inf",
        "max_draft": "10",
        "drafter": "small",
        "arm": "aligned",
        "method": "bild",
    }
    expected = {
        "bleu": 40.0,
        "rougeL": 60.0,
        "quality_interval_low": 38.0,
        "quality_interval_high": 42.0,
        "speedup": 1.5,
        "speedup_interval_low": 1.3,
        "speedup_interval_high": 1.7,
        "latency_ms": 20.0,
        "latency_ms_p50": 20.0,
        "latency_ms_p95": 29.0,
        "predicted_speedup": 1.5,
        "predicted_latency_ms": 21.0,
        "large_calls_per_token": 0.4,
        "fallback_rate": 0.25,
        "rollback_rate": 0.25,
        "acceptance_rate": 0.8,
        "acceptance_rate_low": 0.78,
        "acceptance_rate_high": 0.82,
    }
    found = values(point)
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)


def test_the_saved_views_read_names_that_are_recorded(mlflow: MemoryMlflow) -> None:
    swept([TIMED])
    point = runs(mlflow)[NAME]
    views = [json.loads(json.loads(tag)["state"]) for name, tag in view_tags(0).items() if not name.endswith(".training")]
    for view in views:
        assert set(re.findall(r"tags\.(\w+)", view["searchFilter"])) <= set(point.data.tags)
        for kind, name in re.findall(r"(\w+)\.`(\w+)`", " ".join([*view["selectedColumns"], view["orderByKey"]])):
            assert name in {"params": [*point.data.params], "metrics": [*values(point)], "tags": [*point.data.tags]}[kind]
        for chart in view["compareRunCharts"]:
            axes = [chart[axis]["key"] for axis in ("xaxis", "yaxis") if axis in chart]
            assert {*axes, *chart.get("selectedMetrics", [])} <= set(values(point))
            assert set(chart.get("selectedParams", [])) <= set(point.data.params)


def test_a_point_that_was_not_timed_has_predictions_and_no_time(mlflow: MemoryMlflow) -> None:
    swept([{**ROW, "why": None}])
    point = runs(mlflow)[NAME]
    found = values(point)
    assert (found["bleu"], found["predicted_speedup"], found["predicted_latency_ms"]) == (40.0, 1.5, 21.0)
    assert not [name for name in found if "latency" in name and not name.startswith("predicted_")]
    assert "speedup" not in found
    assert point.data.tags["timed"] == "False"
    assert "why" not in point.data.tags


def test_a_point_that_failed_is_a_failed_run_that_says_why(mlflow: MemoryMlflow) -> None:
    swept([FAILED])
    point = runs(mlflow)[NAME]
    assert (point.info.status, values(point), point.data.tags["error"]) == ("FAILED", {}, "RuntimeError: memory")


def test_the_parent_says_what_the_sweep_is_and_what_it_cost(mlflow: MemoryMlflow) -> None:
    swept([TIMED])
    sweep = runs(mlflow)["sweep aligned"]
    assert sweep.info.status == "FINISHED"
    assert sweep.data.params == {"seed": "1", "arm": "aligned"}
    assert sweep.data.tags.items() >= {"kind": "sweep", "arm": "aligned", "runtime": "native"}.items()
    assert values(sweep) == {
        "cost_ratio": 0.2,
        "points": 60,
        "timed": 12,
        "replay_seconds": 4.0,
        "prediction_error_mean": 0.03,
        "prediction_error_worst": 0.08,
        "acceptance_rate": 0.8,
        "acceptance_rate_low": 0.78,
        "acceptance_rate_high": 0.82,
        "acceptance_rate_sampled": 0.7,
        "acceptance_rate_sampled_low": 0.68,
        "acceptance_rate_sampled_high": 0.72,
    }


def test_points_carry_the_acceptance_of_their_own_sampling_and_of_their_own_drafter() -> None:
    pair, row = pair_record(PAIR), measured_record(ROW)
    assert acceptance_metrics(row, pair)["acceptance_rate"] == 0.8
    sampled = dataclasses.replace(row, sampling=SamplingSettings(temperature=1.0))
    assert acceptance_metrics(sampled, pair)["acceptance_rate"] == 0.7
    assert acceptance_metrics(dataclasses.replace(row, settings={}), pair)["acceptance_rate"] == 0.8
    assert acceptance_metrics(dataclasses.replace(row, settings={"drafter": "bigram"}), pair)["acceptance_rate"] == 0.2
    assert acceptance_metrics(dataclasses.replace(sampled, settings={"drafter": "bigram"}), pair) == {}
    assert acceptance_metrics(dataclasses.replace(row, settings={"drafter": "copy"}), pair) == {}
    assert acceptance_metrics(dataclasses.replace(row, settings={"drafter": "retokenized"}), pair)["acceptance_rate"] == 0.8
    alone = dataclasses.replace(row, counts=dataclasses.replace(row.counts, small_steps=0, drafted=0))
    assert acceptance_metrics(alone, pair) == {}


def test_what_is_not_known_of_a_pair_is_left_out() -> None:
    assert pair_metrics(PairRecord()) == {}
    assert pair_metrics(PairRecord(plan=SweepPlan(points=9, timed=3))) == {"points": 9, "timed": 3}
    assert acceptance_metrics(measured_record(ROW), PairRecord()) == {}


def test_of_a_large_grid_only_timed_and_failed_points_are_runs_and_the_table_holds_all(mlflow: MemoryMlflow) -> None:
    timed = {**TIMED, "settings": {"fallback_threshold": 0.7, "rollback_threshold": "inf", "max_draft": 10}}
    swept([ROW, timed, FAILED | {"settings": {}}], every_point=False)
    found = runs(mlflow)
    assert sorted(name.partition(" ")[0] for name in found) == ["bild", "bild", "sweep"]
    assert NAME not in found
    table = json.loads(found["sweep aligned"].artifacts["points.json"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["timed"], row["speedup"], row["predicted_speedup"]) for row in rows] == [
        (False, None, 1.5),
        (True, 1.5, 1.5),
        (False, None, None),
    ]
    assert [row["error"] for row in rows] == [None, None, "RuntimeError: memory"]
    assert (rows[0]["arm"], rows[0]["method"], rows[0]["split"]) == ("aligned", "bild", "validation")
    assert rows[0]["settings"] == "fallback_threshold=0.6 rollback_threshold=inf max_draft=10"


def test_the_verdict_and_the_frontier_stand_in_the_report_and_both_sweeps(mlflow: MemoryMlflow) -> None:
    paths = TaskPaths("toy")
    for drafter in ("unaligned", "aligned"):
        swept([], drafter)
    for speedup in (1.0, 2.0):  # the second report replaces what the first one said
        record_report(paths, "bleu", {}, [], [], None, f"{speedup} times as fast", {"speedup": [speedup]})
        found = runs(mlflow)
    for name in ("report", "sweep unaligned", "sweep aligned"):
        assert found[name].data.tags[NOTE_TAG].startswith("2.0 times as fast\n\nBoth arms in one figure: ")
        assert json.loads(found[name].artifacts["frontier.json"]) == {"columns": ["speedup"], "data": [[2.0]]}
        assert json.loads(found[name].data.tags[TABLES_TAG]) == [{"path": "frontier.json", "type": "table"}]


def test_the_report_is_stored_with_its_own_run_and_both_sweeps(mlflow: MemoryMlflow) -> None:
    paths = TaskPaths("toy")
    for drafter in ("unaligned", "aligned"):
        swept([], drafter)
    page = Path("report.html")
    page.write_text("<h1>", encoding="utf-8")
    record_report(paths, "bleu", {"frontier_gap": 1.3}, [page], [])
    found = runs(mlflow)
    assert values(found["report"]) == {"frontier_gap": 1.3}
    assert found["report"].data.tags.items() >= {"kind": "report", "metric": "bleu"}.items()
    for name in ("report", "sweep unaligned", "sweep aligned"):
        assert found[name].artifacts == {"report/report.html": "<h1>"}


def test_the_pair_of_a_report_is_registered_under_its_run(mlflow: MemoryMlflow, tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/pair.json").write_text("{}", encoding="utf-8")
    pair = RegisteredModel("draftline-toy", str(tmp_path / "pair"), "the verdict", {}, {}, [])
    record_report(TaskPaths("toy"), "bleu", {}, [], [], pair)
    report = runs(mlflow)["report"]
    [version] = mlflow.versions
    assert (version.name, version.description, version.run_id) == ("draftline-toy", "the verdict", report.info.run_id)


def test_a_report_on_sweeps_that_recorded_no_run_has_its_own(mlflow: MemoryMlflow) -> None:
    record_report(TaskPaths("toy"), "bleu", {}, [], [])
    assert [run.data.tags["kind"] for run in runs(mlflow).values()] == ["report"]


def test_large_files_of_outputs_are_not_uploaded(tmp_path: Path) -> None:
    sizes = {"hypotheses-test.parquet": 20_000_000, "hypotheses-validation.parquet": 20_000_001, "rows.jsonl": 1}
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert [file.name for file in uploaded_hypotheses(tmp_path)] == ["hypotheses-test.parquet"]


def test_a_sweep_that_dies_leaves_its_points_and_its_key(mlflow: MemoryMlflow) -> None:
    with pytest.raises(RuntimeError), SweepRecord(TaskPaths("toy"), "aligned", "native", {}, []) as sweep:
        sweep.point(*records([TIMED]))
        raise RuntimeError
    key = json.loads(Path("results/toy/sweep/aligned/run.json").read_text(encoding="utf-8"))["run"]
    found = runs(mlflow)
    assert (found["sweep aligned"].info.status, found["sweep aligned"].data.tags[KEY_TAG]) == ("FAILED", key)
    assert found[NAME].info.status == "FINISHED"


def test_a_sweep_sends_nothing_before_its_end(mlflow: MemoryMlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_FLUSH_SECONDS", 30.0)
    with SweepRecord(TaskPaths("toy"), "aligned", "native", {}, []) as sweep:
        sweep.pair(pair_record(PAIR))
        sweep.point(*records([TIMED]))
        assert mlflow.connections == 0
    assert {run.info.status for run in mlflow.runs.values()} == {"FINISHED"}
