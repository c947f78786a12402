"""Measurements of one row, with the ratios of its raw counts: made here and nowhere else."""

from __future__ import annotations

import numpy as np

from tasks.evaluation.results.codec import encode, joined
from tasks.evaluation.results.rows import MeasuredRow, Measurements, TimedMeasurements, TimedRow


def measure(row: MeasuredRow) -> Measurements:
    """Measurements of a row on its split; a `TimedMeasurements` where the row was timed."""
    return measure_timed(row) if isinstance(row, TimedRow) else _counted(row)


def measure_timed(row: TimedRow) -> TimedMeasurements:
    """Measurements of a timed row on its split."""
    latencies = np.asarray(row.latency_ms, dtype=np.float64)
    return joined(
        TimedMeasurements,
        _counted(row),
        speedup=row.speedup,
        speedup_interval=row.speedup_interval,
        latency_ms=float(latencies.mean()),
        latency_ms_p50=float(np.percentile(latencies, 50)),
        latency_ms_p95=float(np.percentile(latencies, 95)),
        latency_ms_p99=float(np.percentile(latencies, 99)),
        chrf=row.chrf,
        loss_share=row.loss_share,
        by_length=row.by_length,
        relative_latency=1.0 / row.speedup,
        time_ms=row.time_ms,
        timed_examples=len(latencies),
    )


def _counted(row: MeasuredRow) -> Measurements:
    counts = row.counts
    return Measurements(
        quality=row.value,
        quality_interval=row.quality_interval,
        quality_difference_interval=row.quality_difference_interval,
        difference_bounds=row.difference_bounds,
        qualities=dict(row.quality),
        predicted=row.predicted,
        large_calls_per_token=ratio(counts.large_calls, counts.tokens),
        small_steps_per_token=ratio(counts.small_steps, counts.tokens),
        accepted_share=ratio(counts.accepted, counts.drafted),
        mean_accepted_length=ratio(counts.accepted, counts.large_calls),
        tokens_per_large_call=ratio(counts.tokens, counts.large_calls),
        fallback_rate=ratio(counts.fallbacks, counts.tokens),
        rollback_rate=ratio(counts.rollbacks, counts.large_calls),
        counts=counts,
        outputs=row.outputs,
        examples=row.examples,
    )


def point_metrics(row: MeasuredRow) -> dict[str, float]:
    """The numbers of one row under flat names, for a tracker.

    Predictions stand under names of their own, `predicted_speedup` and `predicted_latency_ms`.
    """
    found = encode(measure(row))
    flat = {**found.pop("qualities"), **{f"count_{name}": value for name, value in found.pop("counts").items()}}
    found.pop("by_length")
    for name in ("predicted", "time_ms", "outputs", "difference_bounds"):
        flat |= {f"{name}_{part}": value for part, value in (found.pop(name) or {}).items()}
    for name in [name for name in found if name.endswith("_interval")]:
        interval = found.pop(name)
        if interval:
            flat[f"{name}_low"], flat[f"{name}_high"] = interval
    return {name: float(value) for name, value in {**found, **flat}.items() if isinstance(value, int | float)}


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient; None over nothing."""
    return numerator / denominator if denominator else None
