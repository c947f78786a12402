"""A finished result of two small sweeps, made by hand: a summary as `tasks.report` writes it, and rows with latencies."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from tasks.compare import LoadedResult
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.rows import row_from
from tasks.evaluation.results.summary import Summary

Row = dict[str, Any]

_TIMED = 40
_POINTS = {0.5: (58.0, 2.0), 0.7: (59.5, 1.6), 0.9: (60.0, 1.2)}
"""Quality and speed-up of BiLD by its fallback threshold; vanilla has 60 points."""


def _around(value: float, reach: float) -> list[float]:
    return [value - reach, value + reach]


def _settings(threshold: float) -> Row:
    return {"drafter": "small", "fallback_threshold": threshold, "rollback_threshold": "inf", "max_draft": 10}


def _measured(quality: float, speedup: float) -> Row:
    return {
        "quality": quality,
        "quality_interval": _around(quality, 1.0),
        "quality_difference_interval": _around(quality - 60.0, 0.2),
        "speedup": speedup,
        "speedup_interval": _around(speedup, 0.1),
        "qualities": {"bleu": quality},
        "latency_ms": 30 / speedup,
        "latency_ms_p50": 30 / speedup,
        "latency_ms_p95": 50 / speedup,
        "relative_latency": 1 / speedup,
        "counts": {"tokens": 100},
        "timed_examples": _TIMED,
    }


def _row(arm: str, split: str, threshold: float, speedup: float, rng: np.random.Generator) -> Row:
    lengths = np.random.default_rng(1).uniform(10, 50, _TIMED)
    return {
        "arm": arm,
        "split": split,
        "method": "bild",
        "settings": _settings(threshold),
        "lossless": False,
        "metric": "bleu",
        "quality": {"bleu": 60.0},
        "counts": {"tokens": 100},
        "speedup": speedup,
        "vanilla_latency_ms": (lengths * np.exp(0.05 * rng.normal(size=_TIMED))).tolist(),
        "latency_ms": (lengths / speedup * np.exp(0.05 * rng.normal(size=_TIMED))).tolist(),
    }


def finished(*, faster: float = 1.0, better: float = 0.0, seed: int = 0) -> tuple[Row, dict[str, list[Row]]]:
    """The summary, and the rows of each sweep.

    Args:
        faster: what every speed-up of the aligned drafter is multiplied by.
        better: what is added to every quality of the aligned drafter, points.
        seed: of the noise in the latencies.
    """
    rng = np.random.default_rng(seed)
    points: list[Row] = []
    rows: dict[str, list[Row]] = {"unaligned": [], "aligned": []}
    for arm in rows:
        gain, lift = (faster, better) if arm == "aligned" else (1.0, 0.0)
        for threshold, (quality, speedup) in _POINTS.items():
            measured: dict[str, Row] = {}
            for split in ("validation", "test"):
                row = _row(arm, split, threshold, speedup * gain, rng)
                rows[arm].append(row)
                found = sum(row["vanilla_latency_ms"]) / sum(row["latency_ms"])
                measured[split] = _measured(quality + lift, found)
            named = {"arm": arm, "method": "bild", "settings": _settings(threshold), "lossless": False, "timed": True}
            points.append({**named, **measured["validation"], "test": measured["test"]})
    chosen = dict(zip(itertools.product(rows, ("no_loss", "one_point")), (2, 1, 5, 4), strict=True))
    summary = {
        "task": "toy",
        "metric": "bleu",
        "vanilla": {
            "large": {**_measured(60.0, 1.0), "test": _measured(60.0, 1.0)},
            "small": {**_measured(50.0, 4.0), "test": None},
            "small_aligned": None,
        },
        "points": points,
        "choices": [{"arm": arm, "method": "bild", "choice": kind, "point": index} for (arm, kind), index in chosen.items()],
        "pairs": {arm: _pair(arm) for arm in rows},
        "split": "validation",
        "frontier": {"split": "validation", "method": "bild", "unaligned": [0, 1, 2], "aligned": [3, 4, 5]},
        "pareto": [],
        "failed": [],
        "definitions": {},
        "tables": {"shares": [], "cascade": [], "speculative": [], "lenience": []},
        "verdict": {"text": "", "changes": []},
        "table": [],
    }
    return summary, rows


def _pair(arm: str) -> Row:
    rate = {"unaligned": 0.6, "aligned": 0.8}[arm]
    return {
        "runtime": "native",
        "lineage": {
            "git_commit": "a" * 40,
            "host_cpu": "a processor",
            "input data/toy/corpus/validation.jsonl": "1" * 32,
            "input data/toy/corpus/test.jsonl": "1" * 32,
            "settings": {"sweep": {"seed": 1, "latency_examples": _TIMED}},
        },
        "acceptance": [{"rate": rate, "interval": _around(rate, 0.02), "tokens": 1000}],
    }


def loaded(name: str, summary: Row, rows: dict[str, list[Row]]) -> LoadedResult:
    """The result as `tasks.compare` reads it."""
    source = Source(name, "correct the test")
    records = {arm: [row_from(row, source) for row in lines] for arm, lines in rows.items()}
    return LoadedResult(name, decode(Summary, summary, source), records)


def write(folder: Path, summary: Row, rows: dict[str, list[Row]]) -> Path:
    """Writes a result as the stages leave it; gives the folder."""
    folder.mkdir(parents=True)
    for arm, lines in rows.items():
        sweep = folder / "sweep" / arm
        sweep.mkdir(parents=True)
        (sweep / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder
