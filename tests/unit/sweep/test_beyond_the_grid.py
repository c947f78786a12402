"""What a sweep measures beside its grid: further test sets and temperatures, other metrics, CALM's valid threshold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tasks.corpora.example import Example, read_jsonl, write_jsonl
from tasks.decoding.method import SamplingSettings
from tasks.evaluation.metrics import metric_of
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.summary import summarize
from tasks.evaluation.report.table import as_markdown
from tasks.evaluation.results.files import point_key, read_hypotheses
from tasks.evaluation.results.rows import Timing
from tasks.evaluation.selection import fixed_sequence, hoeffding_bentkus
from tasks.evaluation.settings import GridSettings, MarginSettings, RiskSettings
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.point import PointEvaluator
from tasks.evaluation.sweep.replay import Outputs, Split
from tasks.paths import ARMS
from tasks.report import read_rows_of
from tests.architectures import pair_of
from tests.sandbox import sandboxed
from tests.sweeps import Row, in_file
from tests.ticking import Words, examples_of, sweep_settings
from tests.toy_sweep import PATHS, SPECULATIVE, Recorded, swept


def write_test_set(name: str, seed: int) -> None:
    PATHS.tests.mkdir(exist_ok=True)
    write_jsonl(examples_of(pair_of("t5"), 6, seed), PATHS.split(f"test.{name}"))


def test_further_test_sets_are_measured_beside_the_main_one(records: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = swept(SPECULATIVE)
    main = PATHS.rows("aligned").read_bytes()
    chosen = {(row["method"], str(row["settings"])) for row in alone if row["split"] == "test"}
    folder, timed, time = PATHS.rows("aligned").parent, list[str](), PointEvaluator.time

    def counting(self: PointEvaluator, point: SweepPoint, outputs: Outputs, split: Split, *rest: Any) -> Timing:
        timed.append(split.name)
        return time(self, point, outputs, split, *rest)

    monkeypatch.setattr(PointEvaluator, "time", counting)

    def measured(*names: str) -> dict[str, set[tuple[str, str]]]:
        timed.clear()
        rows = [row for row in swept(SPECULATIVE) if row["split"].startswith("test.")]
        assert sorted(rows, key=str) == sorted(
            (row for name in names for row in in_file(PATHS.rows("aligned", test=name))), key=str
        )
        return {name: {(row["method"], str(row["settings"])) for row in rows if row["split"] == name} for name in names}

    write_test_set("a", 2)
    write_test_set("b", 3)
    assert measured("test.a", "test.b") == {"test.a": chosen, "test.b": chosen}
    assert {*timed} == {"test.a", "test.b"} and PATHS.rows("aligned").read_bytes() == main, "the others stay valid"
    assert (folder / "hypotheses-test.a.parquet").is_file()
    assert {row["split"] for row in records[-1].points} == {"validation", "test", "test.a", "test.b"}
    assert [file.name for file in records[-1].kept if "rows" in file.name] == [
        "rows-test.a.jsonl",
        "rows-test.b.jsonl",
        "rows.jsonl",
    ]
    # A set that changes is measured again by itself; one that is removed takes its files with it.
    write_test_set("a", 4)
    PATHS.split("test.b").unlink()
    assert measured("test.a") == {"test.a": chosen}
    assert {*timed} == {"test.a"}
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
    assert all(row["outputs"]["length_ratio"] > 0 for row in rows)
    found = read_rows_of(PATHS, metric, "aligned")
    text = as_markdown(summarize("toy", metric, dict.fromkeys(ARMS, found)))
    assert metric_name(metric) in text and "chrF" not in text and "BLEU" not in text


def thresholds(rows: list[Row], split: str) -> dict[float, Row]:
    return {row["settings"]["threshold"]: row for row in rows if (row["split"], row["method"]) == (split, "calm")}


def test_the_valid_threshold_of_calm_is_measured_on_test_although_no_choice_names_it(records: list[Recorded]) -> None:
    grid = GridSettings(method="calm", values={"confidence": ["softmax"], "threshold": [0.2, 1.0, 0.6], "decay": [0.0]})
    margins = MarginSettings(no_loss=0.01, one_point=0.01, confidence=0.99)
    # So few texts show nothing unless nearly all may be lost.
    rows = swept(grid, margins=margins, risk=RiskSettings(tolerance=0.9, level=0.5))
    measured, order = thresholds(rows, "validation"), (1.0, 0.6, 0.2)
    losses = [measured[threshold]["loss_share"] for threshold in order]
    assert losses[0] == 0 < losses[2], "λ = 1 never exits early"
    valid = fixed_sequence([hoeffding_bentkus(loss, 6, 0.9) for loss in losses], 0.5)
    # Margins choose vanilla's own output, Learn then Test what is faster.
    assert valid > 1 and thresholds(rows, "test").keys() == {1.0, order[valid - 1]}
    pair = json.loads(PATHS.rows("aligned").with_name("pair.json").read_text(encoding="utf-8"))
    assert pair["risk"] == {"tolerance": 0.9, "level": 0.5}
    changed = swept(grid, margins=margins, risk=RiskSettings(tolerance=0.01, level=0.01))
    assert thresholds(changed, "test").keys() == {1.0}
    assert thresholds(changed, "validation") == measured, "other tolerances leave measured rows valid"


@pytest.mark.parametrize("temperatures", [(1.0, 0.5), (0.5, 0.5), (-1.0,), (0.0, 0.5), (math.inf,), (math.nan,)])
def test_temperatures_ascend_beside_the_sweep_s_own(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"temperatures is .*; it must ascend from 0"):
        sweep_settings(temperatures=temperatures)
    assert sweep_settings(temperatures=(0.0, 0.5), sampling=SamplingSettings(temperature=1.0)).temperatures == (0.0, 0.5)


def test_further_temperatures_are_swept_beside_vanilla_at_the_same_one(records: list[Recorded]) -> None:
    beams = GridSettings(method="beam_large", values={"beams": [2]})
    grid = (GridSettings(method="speculative", values={"draft_length": [2]}), beams)
    alone = swept(*grid)
    main, folder = PATHS.rows("aligned").read_bytes(), PATHS.rows("aligned").parent
    rows = [row for row in swept(*grid, temperatures=(0.5, 2.0)) if row not in alone]
    assert {(row["split"], row["sampling"]["temperature"]) for row in rows} == {
        ("validation.T0.5", 0.5),
        ("validation.T2", 2.0),
    }
    # A beam search draws nothing; all others are decoded and timed, and nothing is chosen or tested.
    assert sorted(row["method"] for row in rows) == sorted(["vanilla_large", "vanilla_small", "speculative"] * 2)
    assert {row["how"] for row in rows} == {"decoded"} and all("speedup" in row for row in rows)
    assert PATHS.rows("aligned").read_bytes() == main, "the main rows stay valid"
    warm = read_hypotheses(folder / "hypotheses-validation.T2.parquet")
    greedy = read_hypotheses(folder / "hypotheses-validation.parquet")
    assert warm[point_key("vanilla_large", {})] != greedy[point_key("vanilla_large", {})]
    hot = next(row for row in rows if (row["split"], row["method"]) == ("validation.T2", "vanilla_large"))
    assert hot["quality_difference_interval"] == [0, 0], "vanilla is compared with itself at that temperature"
    assert in_file(PATHS.rows("aligned", test="validation.T0.5")) == [row for row in rows if row["split"].endswith("T0.5")]
    swept(*grid, temperatures=(2.0,))
    assert {file.name for file in folder.glob("rows*.jsonl")} == {"rows.jsonl", "rows-validation.T2.jsonl"}
    assert not (folder / "hypotheses-validation.T0.5.parquet").exists()
    assert in_file(PATHS.rows("aligned", test="validation.T2")) == [row for row in rows if row["split"].endswith("T2")]
