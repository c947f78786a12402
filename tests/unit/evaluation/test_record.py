"""What a sweep and a report leave in MLflow, on a database of the test."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import SamplingSettings
from tasks.evaluation import record
from tasks.evaluation.results.pair import PairRecord, SweepPlan
from tasks.paths import TaskPaths
from tasks.tracking import outbox_folder, tracking_uri, upload_all
from tests.local_mlflow import FaultyClient, local_mlflow, runs_of, text_of
from tests.unit.evaluation.conftest import COSTS, measured_record, pair_record, point_row, records, untimed

PAIR = {
    "costs": COSTS,
    "acceptance": [
        {"rate": 0.8, "interval": [0.78, 0.82], "tokens": 5000},
        {"temperature": 1.0, "rate": 0.7, "interval": [0.68, 0.72], "tokens": 5000},
        {"drafter": "bigram", "rate": 0.2, "interval": [0.18, 0.22], "tokens": 5000},
    ],
    "plan": {"points": 60, "timed": 12, "replay_seconds": 4.0, "prediction_error": {"points": 5, "mean": 0.03, "worst": 0.08}},
}
SETTINGS = {"drafter": "small", "fallback_threshold": 0.6, "rollback_threshold": "inf", "max_draft": 10}
TIMED = point_row("aligned", "validation", "bild", SETTINGS, 40.0, 1.5)
ROW = {**untimed(TIMED, 1.5), "why": "frontier"}
TIMED |= ROW
FAILED = {name: ROW[name] for name in ("arm", "split", "method", "settings", "lossless", "metric")}
FAILED["error"] = "RuntimeError: memory"


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyClient]:
    """A folder to work in, and a store that gets the runs when `runs` is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "_FLUSH_SECONDS", 0.0)
    with local_mlflow(tmp_path) as store:
        yield store


def swept(rows: list[dict[str, Any]], drafter: str = "aligned") -> None:
    with record.SweepRecord(TaskPaths("toy"), drafter, "native", {"seed": 1}, []) as sweep:
        sweep.pair(pair_record(PAIR))
        for row in records(rows):
            sweep.point(row)
        sweep.keep([])


def runs(mlflow: FaultyClient) -> dict[str, Any]:
    assert upload_all(outbox_folder(), tracking_uri())[1] == []
    return {run.info.run_name: run for run in runs_of(mlflow)}


NAME = "bild aligned fallback_threshold=0.6 rollback_threshold=inf max_draft=10 validation"


def test_a_timed_point_is_a_child_with_what_the_pages_compare(mlflow: FaultyClient) -> None:
    swept([TIMED])
    found = runs(mlflow)
    point = found[NAME]
    assert point.data.tags["mlflow.parentRunId"] == found["sweep aligned"].info.run_id
    tags = {"kind": "point", "method": "bild", "arm": "aligned", "lossless": "False", "split": "validation", "timed": "True"}
    assert point.data.tags.items() >= {**tags, "how": "replayed", "why": "frontier"}.items()
    assert point.data.params == {**{name: str(value) for name, value in SETTINGS.items()}, "arm": "aligned", "method": "bild"}
    expected = {
        **{"bleu": 40.0, "rougeL": 50.0, "quality_interval_low": 38.0, "quality_interval_high": 42.0},
        **{
            "relative_latency": 1 / 1.5,
            "speedup": 1.5,
            "speedup_interval_low": 1.45,
            "speedup_interval_high": 1.55,
            "predicted_speedup": 1.5,
        },
        **{"latency_ms": 20 / 1.5, "latency_ms_p50": 20 / 1.5, "latency_ms_p95": 29 / 1.5, "predicted_latency_ms": 20 / 1.5},
        **{"large_calls_per_token": 0.4, "fallback_rate": 0.25, "rollback_rate": 0.25},
        **{"acceptance_rate": 0.8, "acceptance_rate_low": 0.78, "acceptance_rate_high": 0.82},
    }
    assert {name: point.data.metrics.get(name) for name in expected} == pytest.approx(expected)


def test_a_point_that_failed_is_a_failed_run_that_says_why(mlflow: FaultyClient) -> None:
    swept([FAILED])
    point = runs(mlflow)[NAME]
    assert (point.info.status, point.data.metrics, point.data.tags["error"]) == ("FAILED", {}, "RuntimeError: memory")


def test_the_parent_says_what_the_sweep_is_and_what_it_cost(mlflow: FaultyClient) -> None:
    swept([TIMED])
    sweep = runs(mlflow)["sweep aligned"]
    assert sweep.info.status == "FINISHED"
    assert sweep.data.params == {"seed": "1", "arm": "aligned"}
    assert sweep.data.tags.items() >= {"kind": "sweep", "arm": "aligned", "runtime": "native"}.items()
    assert sweep.data.metrics == {
        **{name: COSTS[name] for name in ("encode_small_ms", "encode_large_ms", "small_step_ms", "cost_ratio")},
        **{"points": 60, "timed": 12, "replay_seconds": 4.0},
        **{"prediction_error_mean": 0.03, "prediction_error_worst": 0.08},
        **{"acceptance_rate": 0.8, "acceptance_rate_low": 0.78, "acceptance_rate_high": 0.82},
        **{"acceptance_rate_sampled": 0.7, "acceptance_rate_sampled_low": 0.68, "acceptance_rate_sampled_high": 0.72},
    }


def test_points_carry_the_acceptance_of_their_own_sampling_and_of_their_own_drafter() -> None:
    pair, row = pair_record(PAIR), measured_record(ROW)
    sampled = dataclasses.replace(row, sampling=SamplingSettings(temperature=1.0))
    drafters = {"small": 0.8, "bigram": 0.2, "copy": None}
    for drafter, rate in drafters.items():
        one = dataclasses.replace(row, settings={"drafter": drafter})
        assert record.acceptance_metrics(one, pair).get("acceptance_rate") == rate
    assert record.acceptance_metrics(dataclasses.replace(row, settings={}), pair)["acceptance_rate"] == 0.8
    assert record.acceptance_metrics(sampled, pair)["acceptance_rate"] == 0.7
    assert record.acceptance_metrics(dataclasses.replace(sampled, settings={"drafter": "bigram"}), pair) == {}
    alone = dataclasses.replace(row, counts=dataclasses.replace(row.counts, small_steps=0, drafted=0))
    assert record.acceptance_metrics(alone, pair) == {}


def test_predictions_have_metrics_of_their_own() -> None:
    metrics = record.point_metrics(measured_record({name: value for name, value in ROW.items() if name != "why"}))
    assert (metrics["predicted_speedup"], metrics["predicted_latency_ms"], metrics["quality"]) == (1.5, 20 / 1.5, 40.0)
    assert not {"speedup", "latency_ms", "latency_ms_p50", "speedup_interval_low"} & metrics.keys()


def test_what_is_not_known_of_a_pair_is_left_out() -> None:
    assert record.pair_metrics(PairRecord()) == {}
    assert record.pair_metrics(PairRecord(plan=SweepPlan(points=9, timed=3))) == {"points": 9, "timed": 3}
    assert record.acceptance_metrics(measured_record(ROW), PairRecord()) == {}


def test_only_timed_and_failed_points_are_runs_and_the_table_holds_all(mlflow: FaultyClient) -> None:
    timed = {**TIMED, "settings": {"fallback_threshold": 0.7, "rollback_threshold": "inf", "max_draft": 10}}
    swept([ROW, timed, FAILED | {"settings": {}}])
    found = runs(mlflow)
    assert sorted(name.partition(" ")[0] for name in found) == ["bild", "bild", "sweep"]
    assert NAME not in found
    table = json.loads(text_of(mlflow, "sweep aligned", "points.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    timings = [(row["timed"], row["speedup"], row["predicted_speedup"]) for row in rows]
    assert timings == [(False, None, 1.5), (True, 1.5, 1.5), (False, None, None)]
    assert [row["error"] for row in rows] == [None, None, "RuntimeError: memory"]
    assert (rows[0]["arm"], rows[0]["method"], rows[0]["split"]) == ("aligned", "bild", "validation")
    assert rows[0]["settings"] == "fallback_threshold=0.6 rollback_threshold=inf max_draft=10"


def test_the_report_has_its_numbers_files_verdict_and_frontier(mlflow: FaultyClient) -> None:
    page = Path("report.html")
    page.write_text("<h1>", encoding="utf-8")
    record.record_report(TaskPaths("toy"), "bleu", {"frontier_gap": 1.3}, [page], [], None, "twice as fast", {"speedup": [2.0]})
    report = runs(mlflow)["report"]
    assert (report.data.tags["kind"], report.data.tags["metric"]) == ("report", "bleu")
    assert report.data.metrics == {"frontier_gap": 1.3}
    assert report.data.tags["mlflow.note.content"].startswith("twice as fast\n\nBoth arms in one figure: ")
    assert text_of(mlflow, "report", "report/report.html") == "<h1>"
    assert json.loads(text_of(mlflow, "report", "frontier.json")) == {"columns": ["speedup"], "data": [[2.0]]}


def test_what_alignment_gives_stands_first_on_the_pages_of_the_run_and_of_the_experiment(mlflow: FaultyClient) -> None:
    known = ["A helps.", "B is open."]
    record.record_report(TaskPaths("toy"), "bleu", {}, [], [], None, "2.0 times as fast", {"speedup": [2.0]}, known)
    compared = "## Aligned against unaligned\n\n- A helps.\n- B is open.\n\n"
    assert runs(mlflow)["report"].data.tags["mlflow.note.content"].startswith(f"{compared}2.0 times as fast\n\nBoth arms in ")
    experiment = mlflow.client.get_experiment_by_name("toy")
    view = "aligned-against-unaligned"
    link = f"(#/experiments/{experiment.experiment_id}/runs?viewStateShareKey={view}&compareRunsMode=CHART)"
    said = f"{compared}[Both arms in one chart]{link}\n\nBoth arms in one figure: "
    assert experiment.tags["mlflow.note.content"].startswith(said)
    # Its only chart compares what the runs of points hold.
    shown = json.loads(experiment.tags[f"mlflow.sharedViewState.{view}"])
    [chart] = shown["compareRunCharts"]
    axes = chart["yaxis"]["key"], chart["xaxis"]["key"]
    assert axes == ("quality", "relative_latency") and record.point_metrics(measured_record(TIMED)).keys() >= {*axes}


def test_large_files_of_outputs_are_not_uploaded(tmp_path: Path) -> None:
    sizes = {"hypotheses-test.parquet": 20_000_000, "hypotheses-validation.parquet": 20_000_001, "rows.jsonl": 1}
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert [file.name for file in record.uploaded_hypotheses(tmp_path)] == ["hypotheses-test.parquet"]


def test_a_sweep_sends_nothing_before_its_end_and_keeps_points(mlflow: FaultyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_FLUSH_SECONDS", 300.0)
    with pytest.raises(RuntimeError), record.SweepRecord(TaskPaths("toy"), "aligned", "native", {}, []) as sweep:
        sweep.point(*records([TIMED]))
        assert mlflow.requests == []
        raise RuntimeError
    assert {run.info.run_name: run.info.status for run in runs_of(mlflow)} == {"sweep aligned": "FAILED", NAME: "FINISHED"}
