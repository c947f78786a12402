"""What a sweep writes, what it keeps when something changes, and what is measured anew."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from tasks import sweep as stage
from tasks.corpora.example import read_jsonl
from tasks.evaluation.model_sizes import sizes_of
from tasks.evaluation.quality import value_of
from tasks.evaluation.results.files import point_key, read_hypotheses
from tasks.evaluation.sweep.point import PointEvaluator
from tests.architectures import models
from tests.sweeps import in_file
from tests.ticking import LIMIT
from tests.toy_sweep import BILD, PATHS, SPECULATIVE, Recorded, named, opened, swept
from tests.toys import prefix_pair, whole_runs


def test_a_sweep_writes_its_rows_and_the_record_of_its_pair(records: list[Recorded]) -> None:
    rows = swept(BILD, SPECULATIVE)
    path = PATHS.rows("aligned")
    validation = [row for row in rows if row["split"] == "validation"]
    assert len(validation) == len(named(validation)) == 2 + 6 + 4
    assert {(row["task"], row["arm"]) for row in rows} == {("toy", "aligned")}
    assert sorted(in_file(path), key=str) == sorted(rows, key=str)
    assert any("speedup" not in row for row in rows)
    pair = json.loads(path.with_name("pair.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    of_pair = {
        "drafter",
        "seed",
        "training",
        "draft_vocabulary",
        "runtime",
        "acceptance",
        "sizes",
        "outputs",
        "costs",
        "unsupported_script",
    }
    assert pair.keys() == of_pair | {
        "version",
        "plan",
        "vanilla_scatter",
        "lineage",
        "margins",
        "risk",
        "grid",
        "memory",
        "batches",
        "unsupported_script",
    }
    small, large = models("t5")
    assert pair["sizes"]["small"] == dataclasses.asdict(sizes_of(small))
    assert pair["sizes"]["large"] == dataclasses.asdict(sizes_of(large))
    assert pair["memory"]["large"]["weights"] > pair["memory"]["small"]["weights"] > 0
    assert (pair["memory"]["source_tokens"], pair["memory"]["target_tokens"]) == (32, LIMIT)
    assert pair["batches"] is None, "switched off"
    assert pair["acceptance"]["greedy"]["temperature"] == 0
    assert pair["acceptance"]["sampled"]["temperature"] == 1
    assert pair["acceptance"].pop("others") == [], "the small model alone drafts"
    for found in pair["acceptance"].values():
        assert found["interval"][0] <= found["rate"] <= found["interval"][1]
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
    assert {name for name, value in record.pairs[0].items() if value is not None} == {
        "drafter",
        "seed",
        "runtime",
        "acceptance",
        "sizes",
        "memory",
    }
    assert record.pairs[-1]["plan"] == pair["plan"]
    outputs = ["hypotheses-test.parquet", "hypotheses-validation.parquet"]
    assert [file.name for file in record.kept] == ["rows.jsonl", "pair.json", *outputs]


def test_chosen_points_are_timed_by_batch_size_without_touching_rows(
    records: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = swept(SPECULATIVE, BILD)
    monkeypatch.setattr(PointEvaluator, "time", lambda *_: pytest.fail("timed again"))
    assert swept(SPECULATIVE, BILD, batch_sizes=(1, 3), batch_examples=3) == rows
    timings = json.loads(PATHS.rows("aligned").with_name("pair.json").read_text(encoding="utf-8"))["batches"]
    assert timings["error"] is None and timings["split"] == "test" and timings["examples"] == 3
    chosen = {(row["method"], str(row["settings"])) for row in rows if row["split"] == "test"}
    assert {(one["method"], str(one["settings"])) for one in timings["points"]} <= chosen
    assert {one["batch_size"] for one in timings["points"]} == {one["batch_size"] for one in timings["vanilla"]} == {1, 3}


def test_the_outputs_of_every_row_are_kept_beside_the_rows(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, folder = swept(BILD, SPECULATIVE), PATHS.rows("aligned").parent
    files = {name: folder / f"hypotheses-{name}.parquet" for name in ("validation", "test")}
    whole = {name: read_hypotheses(file) for name, file in files.items()}
    assert {(name, *key) for name, found in whole.items() for key in found} == {
        (row["split"], *point_key(row["method"], row["settings"])) for row in rows
    }
    for row in rows:
        texts = whole[row["split"]][point_key(row["method"], row["settings"])]
        references = [example.references for example in read_jsonl(PATHS.split(row["split"]))]
        assert value_of(texts, references, "bleu") == pytest.approx(row["quality"]["bleu"])
        assert row["outputs"]["exact"] == sum(a in b for a, b in zip(texts, references, strict=True))
    # A finished sweep writes what was lost, without timing anything.
    files["test"].unlink()
    monkeypatch.setattr(PointEvaluator, "time", lambda *_: pytest.fail("timed again"))
    assert swept(BILD, SPECULATIVE)
    assert {name: read_hypotheses(file) for name, file in files.items()} == whole


def test_measured_rows_are_kept_when_the_grid_changes(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = swept(SPECULATIVE, plan=False)
    written = PATHS.rows("aligned").read_bytes()
    with monkeypatch.context() as forbidden:
        forbidden.setattr(PointEvaluator, "time", lambda *_: pytest.fail("timed again"))
        assert swept(SPECULATIVE, plan=False) == whole
        assert swept(SPECULATIVE, plan=True, near=0.5, sample=9)
    larger = swept(SPECULATIVE, BILD, sample=0)
    assert PATHS.rows("aligned").read_bytes().startswith(written)
    assert named(whole) < named(larger)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"latency_rounds": 2}])
def test_other_settings_are_measured_anew(records: list[Recorded], changed: dict[str, Any]) -> None:
    notes = PATHS.resume("sweep-aligned-1")
    before = {row["fingerprint"] for row in swept(SPECULATIVE)}
    assert {folder.name for folder in notes.iterdir()} == before
    after = {row["fingerprint"] for row in swept(SPECULATIVE, **changed)}
    assert len(before) == len(after) == 1
    assert before != after
    assert {row["fingerprint"] for row in in_file(PATHS.rows("aligned"))} == after
    assert {folder.name for folder in notes.iterdir()} == after


def test_rows_of_another_machine_are_measured_anew(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    before = {row["fingerprint"] for row in swept(SPECULATIVE)}
    monkeypatch.setattr(stage, "lineage", lambda **_: {"host_cpu": "another", "git_commit": "abc"})
    assert before.isdisjoint(row["fingerprint"] for row in swept(SPECULATIVE))


def test_a_broken_pair_leaves_failed_rows(
    records: list[Recorded], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = map(whole_runs, models("t5"))
    broken = prefix_pair(small, lambda source, prefix: torch.full_like(large(source, prefix), math.nan))
    monkeypatch.setattr(stage, "load_pair", lambda *_: opened(broken))
    rows = swept(SPECULATIVE)
    assert len(rows) == 6 + 2
    assert all("large model gave NaN" in row["error"] for row in rows)
    assert json.loads(PATHS.rows("aligned").with_name("pair.json").read_text(encoding="utf-8"))["acceptance"] == {
        "greedy": None,
        "sampled": None,
        "others": [],
    }
