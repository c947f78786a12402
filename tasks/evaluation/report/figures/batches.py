"""Speed by batch size: where drafting stops paying, and what a batch gives vanilla itself."""

from __future__ import annotations

import altair as alt

from tasks.evaluation.report.batches import batch_sentence, point_name, timings_of
from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import DASHED, SOLID, Record, Series, data
from tasks.evaluation.report.figures.theme import PALETTE, REFERENCE, SHAPES
from tasks.evaluation.results.summary import Summary

_MOST_SERIES = 8
_SAME, _ALONE = "over vanilla at the same batch size (×)", "throughput over vanilla at batch 1 (×)"


def speed_by_batch(summary: Summary) -> Figure | None:
    """Speed-ups and throughputs of vanilla and of the fastest chosen points; None where none was timed in batches."""
    found = timings_of(summary)
    if not any(timings.points for timings in found.values()):
        return None
    vanilla = Series("vanilla large", REFERENCE)
    series, same, alone = [vanilla], list[Record](), list[Record]()
    for arm, timings in found.items():
        gained = {one.batch_size: one.throughput for one in timings.vanilla}
        for size, gain in gained.items():
            text = f"vanilla large, batch {size}\n{gain:.2f}× its throughput at batch 1"
            alone.append({"x": size, "y": gain, "series": vanilla.name, "curve": arm, "text": text})
        for point in timings.by_point():
            if len(series) == _MOST_SERIES:
                break
            name, number = point_name(point[0], arm), len(series) - 1
            look = Series(name, PALETTE[number], SHAPES[number], SOLID if arm == "aligned" else DASHED)
            series.append(look)
            for one in point:
                low, high, gain = min(one.rounds), max(one.rounds), one.speedup * gained[one.batch_size]
                text = (
                    f"{name}, batch {one.batch_size}\n{one.speedup:.2f}× ({low:.2f} to {high:.2f}) vanilla at this batch size"
                )
                mark = {"x": one.batch_size, "series": name, "curve": name}
                same.append({**mark, "y": one.speedup, "low": low, "high": high, "text": text})
                alone.append({**mark, "y": gain, "text": f"{name}, batch {one.batch_size}\n{gain:.2f}× vanilla at batch 1"})
    sizes = sorted({record["x"] for record in alone})
    scale = alt.Scale(type="log", base=2, padding=10, nice=False)
    x = alt.X("x:Q", title="batch size", scale=scale, axis=alt.Axis(values=sizes, format="d"))
    spread = alt.Chart(data(same)).mark_rule(strokeWidth=1, opacity=0.4)
    spread = spread.encode(x=x, y=alt.Y("low:Q", title=_SAME), y2="high:Q", color=parts.color(series))
    panels: list[Panel] = [
        alt.layer(*parts.reference_line(1.0, "vanilla"), spread, *parts.curves(same, series, x, _SAME, "text:N")),
        alt.layer(*parts.curves(alone, series, x, _ALONE, "text:N")),
    ]
    results = [f"{arm.capitalize()}: {batch_sentence(timings)}." for arm, timings in found.items()]
    caption = (
        "The fastest chosen points on the same test texts in batches, the median of the rounds; lines span them. "
        f"From batch 2 on all methods run in the general loop, with Python between two model runs. {' '.join(results)}"
    )
    return Figure("Where drafting stops paying", caption, panels)
