"""A finished result of two small sweeps, made by hand: a summary as `tasks.report` writes it, and the counts of each text."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.compare import LoadedResult, point_name
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.files import HypothesisFile, KeptOutputs, point_key
from tasks.evaluation.results.summary import Summary
from tasks.files import sealed

Row = dict[str, Any]
Work = dict[str, dict[float, NDArray[np.int32]]]
"""Of each arm and fallback threshold the counts of each text of test, `[texts, 3]`."""

_TEXTS = 40
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
        "timed_examples": _TEXTS,
    }


def _work(speedup: float, rng: np.random.Generator) -> NDArray[np.int32]:
    """Counts of texts that take 100 to 500 large calls alone, with noise of a twentieth."""
    calls = np.random.default_rng(1).uniform(100, 500, _TEXTS) / speedup * np.exp(0.05 * rng.normal(size=_TEXTS))
    return np.stack([calls, 4 * calls, 3 * calls], axis=1).astype(np.int32)


def finished(*, faster: float = 1.0, better: float = 0.0, clock: float = 1.0, seed: int = 0) -> tuple[Row, Work]:
    """The summary, and the counts of each sweep.

    Args:
        faster: what all counts of the aligned drafter are divided by.
        better: what is added to every quality of the aligned drafter, points.
        clock: what every latency but vanilla's is multiplied by, and every price of the cost model.
        seed: of the noise in the counts.
    """
    rng = np.random.default_rng(seed)
    points: list[Row] = []
    work: Work = {"unaligned": {}, "aligned": {}}
    for arm in work:
        gain, lift = (faster, better) if arm == "aligned" else (1.0, 0.0)
        for threshold, (quality, speedup) in _POINTS.items():
            work[arm][threshold] = _work(speedup * gain, rng)
            measured = _measured(quality + lift, speedup * gain / clock)
            named = {"arm": arm, "method": "bild", "settings": _settings(threshold), "lossless": False, "timed": True}
            points.append({**named, **measured, "test": measured})
    chosen = dict(zip(itertools.product(work, ("no_loss", "one_point")), (2, 1, 5, 4), strict=True))
    costs = {"text_ms": 1.0, "large_call_ms": 0.1, "checked_position_ms": 0.01, "drafter_step_ms": 0.02}
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
        "alignment": {"counted": None, "choices": [], "costs": {name: clock * price for name, price in costs.items()}},
        "pairs": {arm: _pair(arm) for arm in work},
        "split": "validation",
        "pareto": [],
        "failed": [],
        "definitions": {},
        "tables": {"shares": [], "cascade": [], "speculative": [], "lenience": []},
        "verdict": {"text": "", "changes": []},
        "table": [],
    }
    return summary, work


def _pair(arm: str) -> Row:
    rate = {"unaligned": 0.6, "aligned": 0.8}[arm]
    return {
        "runtime": "native",
        "lineage": {
            "git_commit": "a" * 40,
            "host_cpu": "a processor",
            "input data/toy/corpus/validation.jsonl": "1" * 32,
            "input data/toy/corpus/test.jsonl": "1" * 32,
            "settings": {"sweep": {"seed": 1}},
        },
        "acceptance": [{"rate": rate, "interval": _around(rate, 0.02), "tokens": 1000}],
    }


def loaded(name: str, summary: Row, work: Work) -> LoadedResult:
    """The result as `tasks.compare` reads it."""
    counts = {
        point_name(arm, "bild", _settings(threshold)): one for arm, points in work.items() for threshold, one in points.items()
    }
    return LoadedResult(name, decode(Summary, summary, Source(name, "correct the test")), counts)


def write(folder: Path, summary: Row, work: Work) -> Path:
    """Writes a result as the stages leave it; gives the folder."""
    folder.mkdir(parents=True)
    for arm, points in work.items():
        (folder / "sweep" / arm).mkdir(parents=True)
        kept = {point_key("bild", _settings(one)): KeptOutputs(["a text"] * _TEXTS, points[one]) for one in points}
        HypothesisFile(folder / "sweep" / arm / "hypotheses-test.parquet", "work").add(kept)
    (folder / "summary.json").write_text(sealed(json.dumps(summary)), encoding="utf-8")
    return folder
