"""The first line of the verdict: how fast, how sure, at what cost, on which processor, and what a lossless choice gives."""

from __future__ import annotations

import math

from tasks.evaluation.report.candidates import Candidate
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.selection import fastest_lossless, is_faster, reported
from tasks.evaluation.results.points import OperatingPoint, TestMeasurements, TimedMeasurements
from tasks.evaluation.results.summary import Summary

_SPLITS = {"test": "on test, where nothing was chosen", "validation": "on validation, which chose it: test did not measure it"}


def headline(summary: Summary, found: Candidate | None) -> str:
    """One line for a reader who reads no other.

    Args:
        summary: with points, vanilla and pairs.
        found: the point to deploy; None for the large model alone.
    """
    where = f"on this processor, {processor(summary)}"
    if found is None:
        milliseconds = _milliseconds((summary.vanilla.large.test or summary.vanilla.large).latency_ms)
        return (
            f"Stay with the large model alone: nothing is faster and as good for certain {where} ({milliseconds} for a text)."
        )
    point = found.point
    measured, split = reported(point)
    clauses = [_gain(measured, where), cost_text(measured, summary.metric, lossless=point.lossless)]
    if not point.lossless:
        clauses.append(_lossless(summary))
    return f"{'; '.join(clauses)}. Measured {_SPLITS[split]}."


def processor(summary: Summary) -> str:
    """The hardware that the sweeps name."""
    pairs = (summary.pairs.unaligned, summary.pairs.aligned)
    names = (pair.origin("host_gpu") or pair.origin("host_cpu") for pair in pairs if pair is not None)
    return next(filter(None, names), "its name was not recorded")


def vanilla_milliseconds(measured: TimedMeasurements) -> float:
    """What vanilla took for the same texts, timed one by one beside this point."""
    return measured.latency_ms * measured.speedup


def cost_text(measured: OperatingPoint | TestMeasurements, metric: str, *, lossless: bool) -> str:
    """What a point costs in quality, as the 95 % interval of the loss: `costs 0.0 to 0.4 BLEU`, ends rounded outwards."""
    name, interval = metric_name(metric), measured.quality_difference_interval
    counted = name if name[0].isupper() else f"points of {name}"
    if lossless:
        return "costs nothing: the output is the large model's own"
    if interval is None:
        difference = measured.quality_difference
        seen = "its quality was not compared" if difference is None else f"its {name} differs by {difference:+.2f}"
        return f"{seen}, and how far that is noise was not measured"
    least, most = _down(-interval[1]), _up(-interval[0])
    if most <= 0:
        return f"costs no {name}: it gains {-most:.1f} to {-least:.1f}"
    return f"costs {max(least, 0.0):.1f} to {most:.1f} {counted}"


def _gain(measured: TimedMeasurements, where: str) -> str:
    interval, own = measured.speedup_interval, _milliseconds(measured.latency_ms)
    sure = f" (95 % interval {interval[0]:.2f}× to {interval[1]:.2f}×)" if interval else ""
    times = f"{own} for a text instead of the large model's {_milliseconds(vanilla_milliseconds(measured))}"
    return f"{measured.speedup:.2f}× as fast {where}{sure}: {times}"


def _lossless(summary: Summary) -> str:
    point = fastest_lossless(summary)
    if point is None or not is_faster(reported(point)[0]):
        return "no lossless alternative is faster than the large model beyond noise"
    return f"lossless alternative {reported(point)[0].speedup:.2f}×" + ("" if point.test else " (on validation)")


def _milliseconds(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} ms"


def _down(value: float) -> float:
    return math.floor(value * 10 + 1e-6) / 10


def _up(value: float) -> float:
    return math.ceil(value * 10 - 1e-6) / 10
