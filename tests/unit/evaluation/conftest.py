"""Two small sweeps with known choices, as the sweep stage writes them, and their summary."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tasks.evaluation.report.summarize import summarize
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import DecodingCounts, MeasuredRow, SweepRow, TimedRow, row_from
from tasks.evaluation.results.summary import CostModel, Summary, summary_json
from tasks.evaluation.scoring.metrics import metric_of, points_of
from tasks.evaluation.settings import Experiment

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]
Records = dict[str, list[SweepRow]]
SIZES: Row = {
    "parameters": 1000,
    "encoder_parameters": 0,
    "memory_parameters": 0,
    "decoder_parameters": 400,
    "head_parameters": 5,
    "encoder_layers": 2,
    "layers": 2,
    "width": 8,
    "attention_width": 0,
    "cache_width": 0,
    "weight_bytes": 4,
    "cache_bytes": 4,
    "feed_forward_width": 32,
}
"""Of a model without attention and encoder: the weights of the decoder are all that costs."""
COSTS: Row = {
    "encode_small_ms": 0.2,
    "encode_large_ms": 0.4,
    "small_step_ms": 0.4,
    "verify_ms": {"1": 2.0, "4": 3.0, "8": 5.0},
    "cost_ratio": 0.2,
}
"""Milliseconds of a pair."""
PRICES = CostModel(text_ms=1.0, large_call_ms=2.0, checked_position_ms=0.5, drafter_step_ms=0.25)
"""What a pair's counts cost."""
_SOURCE = Source("the test", "correct it")


def records(rows: Sequence[Row]) -> list[SweepRow]:
    """JSON rows as they are read back from disk, those of validation with bounds."""
    return [row_from(row, _SOURCE) for row in bounded(rows)]


def bounded(rows: Sequence[Row]) -> list[Row]:
    """The rows of validation with bounds 0.05 points from their quality differences, where they have none."""
    vanilla = [row["quality"] for row in rows if (row["split"], row["method"]) == ("validation", "vanilla_large")]
    return [{"difference_bounds": _bounds(row, vanilla[-1]), **row} if vanilla and _may_be_chosen(row) else row for row in rows]


def _may_be_chosen(row: Row) -> bool:
    if row["split"] != "validation" or row["method"].startswith("vanilla"):
        return False
    return row.get("quality", {}).get(metric_of(row["metric"]).name) is not None


def _bounds(row: Row, vanilla: Row) -> Row:
    name = metric_of(row["metric"]).name
    difference = points_of(name, row["quality"][name]) - points_of(name, vanilla[name])
    return {"lower": difference - 0.05, "upper": difference + 0.05, "compared": 4}


def measured_record(row: Row) -> MeasuredRow:
    """One JSON row that did not fail."""
    [found] = records([row])
    assert isinstance(found, MeasuredRow)
    return found


def pair_record(pair: Row) -> PairRecord:
    """A `pair.json` as it is read back from disk."""
    return decode(PairRecord, pair, _SOURCE)


def summary_record(
    metric: str, sweeps: Sweeps, pairs: Mapping[str, Row] | None = None, task: str = "toy", dataset: str = "none"
) -> Summary:
    """The summary of sweeps given as JSON rows."""
    about = {arm: pair_record((pairs or {}).get(arm, {})) for arm in sweeps}
    return summarize(
        task, metric, {(arm, 1): (records(rows), about[arm]) for arm, rows in sweeps.items()}, Experiment(dataset=dataset)
    )


def summarized(metric: str, sweeps: Sweeps, pairs: Mapping[str, Row] | None = None, dataset: str = "none") -> dict[str, Any]:
    """The same as its users read it: the values of `summary.json`."""
    values: dict[str, Any] = json.loads(summary_json(summary_record(metric, sweeps, pairs, dataset=dataset)))
    return values


def measured_by(metric: str, sweeps: Sweeps) -> Sweeps:
    """Both sweeps with another metric, of which every value is the BLEU."""
    for row in (row for rows in sweeps.values() for row in rows):
        row["metric"] = metric
        if "quality" in row:
            row["quality"] = {metric_of(metric).name: row["quality"]["bleu"]}
    return sweeps


def point_row(arm: str, split: str, method: str, settings: Row, quality: float, speedup: float) -> Row:
    """A timed row, measured by BLEU and ROUGE-L."""
    small = 0 if method == "vanilla_large" else 90
    return {
        "task": "toy",
        "split": split,
        "method": method,
        "arm": arm,
        "settings": settings,
        "lossless": method in ("vanilla_large", "speculative"),
        "metric": "bleu",
        "quality": {"bleu": quality, "rougeL": quality + 10},
        "quality_interval": [quality - 2, quality + 2],
        "latency_ms": [10 / speedup, 30 / speedup],
        "vanilla_latency_ms": [10.0, 30.0],
        "speedup": speedup,
        "speedup_interval": [speedup - 0.05, speedup + 0.05],
        "counts": {
            "tokens": 100,
            "small_steps": small,
            "large_calls": 40,
            "drafted": small,
            "accepted": 60 if small else 0,
            "fallbacks": 25,
            "rollbacks": 10,
            "verified": {"1": 20, "2": 20},
            "kept": {"3/3": 20, "3/0": 10} if small else {},
        },
        "examples": 200,
        "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    }


def timed(method: str, speedup: float, quality: float = 60.0, split: str = "validation", **more: Any) -> TimedRow:
    """A row of one text and one token, as choices and frontiers read it, or with other fields."""
    times: dict[str, Any] = {"latency_ms": [1.0], "vanilla_latency_ms": [speedup], "speedup": speedup}
    about: dict[str, Any] = {"arm": "aligned", "settings": {}, "lossless": False, "metric": "bleu"}
    found: dict[str, Any] = {"quality": {"bleu": quality}, "counts": DecodingCounts(tokens=1), **about, **times, **more}
    return TimedRow(split=split, method=method, **found)


def untimed(row: Row, speedup: float) -> Row:
    """The row as it would be had the point been replayed and predicted alone."""
    times = ("latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval")
    kept = {name: value for name, value in row.items() if name not in times}
    return {**kept, "how": "replayed", "predicted": {"latency_ms": 20 / speedup, "speedup": speedup}}


def _bild(arm: str, split: str, threshold: float, quality: float, speedup: float) -> Row:
    return point_row(arm, split, "bild", {"fallback_threshold": threshold, "rollback_threshold": 2.0}, quality, speedup)


def _speculative(arm: str, split: str, length: int, speedup: float) -> Row:
    return point_row(arm, split, "speculative", {"draft_length": length}, 60.0, speedup)


def _baselines(arm: str, split: str, small: float) -> list[Row]:
    return [point_row(arm, split, "vanilla_large", {}, 60.0, 1.0), point_row(arm, split, "vanilla_small", {}, small, 4.0)]


@pytest.fixture
def sweeps() -> Sweeps:
    """Unaligned: no loss is 0.9 (1.2x), at most one point is 0.7 (1.5x). Aligned: 0.7 (1.6x), on the edge, is both."""
    failed = {"split": "validation", "method": "bild", "arm": "unaligned", "settings": {"fallback_threshold": 0.1}}
    return {
        "unaligned": [
            *_baselines("unaligned", "validation", 40.0),
            _bild("unaligned", "validation", 0.9, 59.95, 1.2),
            _bild("unaligned", "validation", 0.7, 59.2, 1.5),
            _bild("unaligned", "validation", 0.5, 58.0, 2.0),
            _speculative("unaligned", "validation", 3, 1.1),
            _speculative("unaligned", "validation", 5, 1.3),
            {**failed, "metric": "bleu", "lossless": False, "error": "RuntimeError: out of memory"},
            *_baselines("unaligned", "test", 39.0),
            _bild("unaligned", "test", 0.9, 59.5, 1.25),
        ],
        "aligned": [
            *_baselines("aligned", "validation", 42.0),
            _bild("aligned", "validation", 0.9, 60.0, 1.4),
            _bild("aligned", "validation", 0.7, 59.9, 1.6),
            _bild("aligned", "validation", 0.5, 58.9, 2.1),
            _speculative("aligned", "validation", 3, 1.5),
            *_baselines("aligned", "test", 41.0),
            _bild("aligned", "test", 0.7, 59.4, 1.55),
            _speculative("aligned", "test", 3, 1.45),
        ],
    }
