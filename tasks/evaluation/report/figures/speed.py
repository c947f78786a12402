"""Where time goes, example by example and part by part, and how well it was foretold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.report.figures.lookup import Point, Sweeps, best_chosen_point, chosen_points, reported_row, timed
from tasks.evaluation.report.figures.series import Bars, Chart, Panel, Rule, Spots
from tasks.evaluation.report.figures.theme import COLORS, DRAFTERS, FAINT, INK, PARTS, point_name, tooltip_lines
from tasks.evaluation.report.table import CHOICE_WORDS
from tasks.evaluation.report.tables import method_name

_MOST = 8
"""Bars of the chart of times."""


def latency_scatter(summary: Mapping[str, Any], sweeps: Sweeps) -> Chart | None:
    """Each timed example under the chosen point against its own vanilla run; None where nothing was chosen."""
    panels = []
    for drafter in DRAFTERS:
        chosen = best_chosen_point(summary, drafter)
        row = reported_row(chosen[1], sweeps) if chosen else None
        if chosen is None or row is None or not row["latency_ms"]:
            continue
        pairs = list(zip(row["vanilla_latency_ms"], row["latency_ms"], strict=True))
        share = sum(own < vanilla for vanilla, own in pairs) / len(pairs)
        texts = [f"vanilla {vanilla:.2f} ms\nhere {own:.2f} ms\n{vanilla / own:.2f}×" for vanilla, own in pairs]
        xs, ys = [vanilla for vanilla, _ in pairs], [own for _, own in pairs]
        spots = [Spots(point_name(chosen[1]), xs, ys, COLORS[drafter], texts, size=4.5, listed=False)]
        words = f"{drafter}, {method_name(chosen[1]['method'])} ({row['split']})"
        title = f"{words}: {share:.0%} of {len(pairs)} faster"
        axes = ("vanilla large, ms for the example", "the chosen point, ms")
        panels.append(Panel(title, *axes, spots, rules=[Rule("as fast as vanilla")], square=True))
    if not panels:
        return None
    return Chart(
        "Example by example",
        "One mark an example: its time by the chosen point above its time by the vanilla large model, run one right after the "
        "other. Marks under the line are faster.",
        "Kim et al., first arXiv version, Figure 6",
        panels,
    )


def operations_bars(summary: Mapping[str, Any]) -> Chart | None:
    """Computed work beside measured speed, of the chosen points; None where the models' sizes are not known."""
    names = {"flops": "FLOPs (theory)", "bytes": "bytes moved (theory)", "intensity": "FLOPs / byte (theory)"}
    series = [Bars("vanilla large", [1.0] * 4, FAINT, ["vanilla large is 1 by definition"] * 4, said=["1"] * 4)]
    for drafter in DRAFTERS:
        chosen = best_chosen_point(summary, drafter)
        if chosen is None or not chosen[1].get("operations"):
            continue
        point = chosen[1]
        values = [*(point["operations"][name] for name in names), point["speedup"]]
        texts = [tooltip_lines(point, summary["metric"])] * 4
        label = f"{method_name(point['method'])}, {drafter}, {CHOICE_WORDS[chosen[0]]}"
        series.append(Bars(label, values, COLORS[drafter], texts, said=["–" if v is None else f"{v:.2f}" for v in values]))
    if len(series) == 1:
        return None
    categories = [*names.values(), "speed-up (measured)"]
    rules = [Rule(y=1.0), Rule(x=2.5, dotted=True)]
    return Chart(
        "Work and speed",
        "All relative to the vanilla large model. The first three are computed from the models' sizes and from counts; "
        "only the last was timed. Checking several tokens in one run reads the weights once for all of them.",
        "Kim et al. 2023, Figure 8",
        [Panel("", "", "relative to vanilla large", bars=series, categories=categories, rules=rules)],
        columns=1,
    )


def time_parts(summary: Mapping[str, Any]) -> Chart | None:
    """Milliseconds an example by part, of the models alone and of what was chosen; None where no row was taken apart."""
    entries = _baseline_times(summary)
    chosen = sorted(chosen_points(summary), key=lambda entry: -entry[1]["speedup"])
    entries += [
        (f"{method_name(point['method'])},\n{point['drafter']}", point["time_ms"])
        for _, point in chosen
        if point.get("time_ms")
    ]
    if not entries:
        return None
    entries = entries[:_MOST]
    totals = [f"{sum(parts.values()):.2f}" for _, parts in entries]
    series = [
        Bars(
            part,
            [parts.get(part) for _, parts in entries],
            color,
            [f"{part} {parts.get(part, 0.0):.3f} ms" for _, parts in entries],
            hatched=part == "other",
            said=totals if part == list(PARTS)[-1] else (),
        )
        for part, color in PARTS.items()
    ]
    return Chart(
        "Where time goes",
        "Mean milliseconds an example. Encoders, small and large are what was counted times what one run costs; other is what "
        "was measured on the clock less these three, and may be slightly negative.",
        "",
        [Panel("", "", "milliseconds an example", bars=series, categories=[name for name, _ in entries], stacked=True)],
        columns=1,
    )


def _baseline_times(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    words = {"large": "vanilla large", "small": "small,\nunaligned", "small_aligned": "small,\naligned"}
    entries = [(label, summary["vanilla"][name]) for name, label in words.items()]
    return [(label, entry["time_ms"]) for label, entry in entries if entry is not None and entry.get("time_ms")]


def prediction(summary: Mapping[str, Any]) -> Chart | None:
    """Measured against predicted speed-up; None where nothing was predicted before it was timed."""
    spots = []
    for drafter, color in COLORS.items():
        own = [point for point in timed(summary) if point["drafter"] == drafter and point.get("predicted")]
        for sample, words in ((True, "random sample"), (False, "timed by plan")):
            group = [point for point in own if (point.get("why") == "sample") is sample]
            if group:
                spots.append(_foretold(summary, group, f"{drafter}, {words}", color, hollow=not sample))
    if not spots:
        return None
    rules = [Rule("as predicted")]
    return Chart(
        "Prediction against measurement",
        "The cost model's speed-up, from counts alone, beside the clock's, with its interval. Only the random sample is fair: "
        f"the others were timed because they were predicted to be fast.{_errors(summary)}",
        "",
        [Panel("", "predicted speed-up", "measured speed-up", spots, rules=rules, square=True)],
        columns=1,
    )


def _foretold(summary: Mapping[str, Any], points: Sequence[Point], name: str, color: str, hollow: bool) -> Spots:
    return Spots(
        name,
        [point["predicted"]["speedup"] for point in points],
        [point["speedup"] for point in points],
        color if color else INK,
        [f"{tooltip_lines(point, summary['metric'])}\npredicted {point['predicted']['speedup']:.2f}×" for point in points],
        marker="o" if not hollow else "D",
        hollow=hollow,
        y_intervals=[point["speedup_interval"] for point in points],
    )


def _errors(summary: Mapping[str, Any]) -> str:
    """The mean error of each sweep's random sample, in a sentence."""
    found = []
    for drafter, pair in (summary.get("pairs") or {}).items():
        error = (((pair or {}).get("plan") or {}).get("prediction_error") or {}).get("sample")
        if error and error["points"]:
            found.append(
                f"{drafter} {error['mean']:.1%} on average and {error['worst']:.1%} at worst over {error['points']} points"
            )
    return f" Error of the sample: {'; '.join(found)}." if found else ""
