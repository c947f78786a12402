"""The first line of the verdict: how fast, how sure, at what cost, on which processor, and what a lossless choice gives."""

from __future__ import annotations

from tasks.evaluation.report.candidates import Candidate
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.selection import fastest_lossless, is_faster, reported
from tasks.evaluation.results.rows import OperatingPoint, TestMeasurements, TimedMeasurements
from tasks.evaluation.results.summary import Summary

_SPLITS = {
    "test": "on the test split, which played no part in the choice",
    "validation": "on validation, which chose it: test did not measure it",
}


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


def unit_of(metric: str) -> str:
    """What a loss is counted in: `BLEU`, `points of exact match`, `points of perplexity`."""
    name = metric_name(metric).removeprefix("−")
    return name if name[0].isupper() else f"points of {name}"


def cost_text(measured: OperatingPoint | TestMeasurements, metric: str, *, lossless: bool) -> str:
    """What a point costs in quality: `costs 0.19 BLEU (95 % interval: from a loss of 0.44 to a gain of 0.08)`."""
    name, difference = metric_name(metric), measured.quality_difference
    if lossless:
        return "costs nothing: the output is the large model's own"
    interval = measured.quality_difference_interval
    if interval is None or difference is None:
        seen = "its quality was not compared" if difference is None else f"its {name} differs by {difference:+.2f}"
        return f"{seen}, and how far that is noise was not measured"
    ends = [f"a {'loss' if end < 0 else 'gain'} of {abs(end):.2f}" for end in interval]
    sure = f"(95 % interval: from {ends[0]} to {ends[1]})"
    return f"{'gains' if difference > 0 else 'costs'} {abs(difference):.2f} {unit_of(metric)} {sure}"


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
