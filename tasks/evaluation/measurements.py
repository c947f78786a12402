"""What one row measured, with the ratios of its raw counts: made here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.evaluation.frontier import point_of

Row = Mapping[str, Any]
"""One line of a sweep's rows.jsonl; rows are only read here."""

_RATIOS = {
    "large_calls_per_token": ("large_calls", "tokens"),
    "small_steps_per_token": ("small_steps", "tokens"),
    "accepted_share": ("accepted", "drafted"),
    "mean_accepted_length": ("accepted", "large_calls"),
    "fallback_rate": ("fallbacks", "tokens"),
    "rollback_rate": ("rollbacks", "large_calls"),
}


def measurements(row: Row) -> dict[str, Any]:
    """What one row measured on its split, with the ratios of its counts; of a row that was not timed every time is None."""
    point, counts = point_of(row), row["counts"]
    latencies = np.asarray(row.get("latency_ms", ()), dtype=np.float64)
    return {
        "quality": row["quality"][row["metric"]],
        "quality_interval": row.get("quality_interval"),
        "quality_difference_interval": row.get("quality_difference_interval"),
        "qualities": row["quality"],
        "speedup": row.get("speedup"),
        "speedup_interval": row.get("speedup_interval"),
        "latency_ms": latencies.mean() if len(latencies) else None,
        "latency_ms_p50": np.percentile(latencies, 50) if len(latencies) else None,
        "latency_ms_p95": np.percentile(latencies, 95) if len(latencies) else None,
        "relative_latency": point.latency if point else None,
        "predicted": row.get("predicted"),
        "time_ms": row.get("time_ms"),
        **{name: _ratio(counts.get(over, 0), counts.get(under, 0)) for name, (over, under) in _RATIOS.items()},
        "counts": counts,
        "examples": row.get("examples"),
        "timed_examples": len(latencies),
    }


def point_metrics(row: Row) -> dict[str, float]:
    """The numbers of one row that did not fail under flat names, for a tracker: what the summary says of the point.

    What is predicted stands under names of its own, `predicted_speedup` and `predicted_latency_ms`.
    """
    found = measurements(row)
    flat = {**found.pop("qualities"), **{f"count_{name}": value for name, value in found.pop("counts").items()}}
    for name in ("predicted", "time_ms"):
        flat |= {f"{name}_{part}": value for part, value in (found.pop(name) or {}).items()}
    for name in [name for name in found if name.endswith("_interval")]:
        interval = found.pop(name)
        if interval:
            flat[f"{name}_low"], flat[f"{name}_high"] = interval
    return {name: float(value) for name, value in {**found, **flat}.items() if isinstance(value, int | float)}


def _ratio(over: float, under: float) -> float | None:
    return over / under if under else None
