"""The theory of speculative decoding as lines, and what was measured as marks (Leviathan et al., 2023, Figures 2 to 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from tasks.decoding.method import DRAFTERS, LOOK_UPS
from tasks.decoding.methods.speculative import (
    best_draft_length,
    expected_operations,
    expected_speedup,
    expected_tokens,
    oracle_speedup,
    oracle_tokens,
)
from tasks.evaluation.measurements import ratio
from tasks.evaluation.report.drafting import acceptance_of, cost_of, work_of
from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.labels import names
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import INK, PALETTE, REFERENCE, SHAPES
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary

_ALPHAS = [number / 50 for number in range(50)]
"""Where lines are drawn through."""
_COSTS = (0.02, 0.05, 0.1, 0.2, 0.4)
_LONGEST = 16
"""The largest γ of the figure of best ones."""
_ORACLE, _OTHERS, _FREE = "oracle for γ", "other drafters", "drafters without a model"
_MOST_LENGTHS = 5
"""Values of γ that have a line."""
_ALPHA = alt.X("x:Q", title="acceptance rate α", scale=alt.Scale(domain=[0, 1], nice=False))
_MEASURED = "measured"
_MARKS = "Lines are theory; marks are measured."
Line = Callable[[float], float]
"""From α to y."""


@dataclass(frozen=True)
class _Measured:
    """A point of speculative decoding whose α is known."""

    point: OperatingPoint
    alpha: float
    length: int
    drafter: str
    """What drafts: `small, aligned`, or the name of another drafter."""
    cost: float | None
    work: float | None

    @property
    def series(self) -> str:
        """Its entry in the legend of colours."""
        return f"γ {self.length}"

    @property
    def source(self) -> str:
        """Its entry in the legend of shapes, which has few."""
        return _OTHERS if self.drafter in DRAFTERS else self.drafter


def tokens_by_acceptance(summary: Summary) -> Figure | None:
    """Tokens for each run of the large model against α (Figure 2); None where no α is known."""
    found = _measured(summary)
    if not found:
        return None
    lengths = _lengths(found)
    lines: dict[str, Line] = {f"γ {length}": _with(expected_tokens, length) for length in lengths}
    records = [_mark(summary, one, one.point.tokens_per_large_call) for one in found if one.length in lengths]
    top = max(lengths) + 1.0
    panel = _panel("tokens for each run of the large model", lines, records, oracle_tokens, top)
    caption = (
        f"{_MARKS} A line is (1 − α^(γ+1)) / (1 − α), which takes each token to be kept independently of the others; grey: an "
        "oracle chooses γ. α is of prefixes that the large model generates; marks are tokens over calls of whole texts."
    )
    return Figure("Tokens by acceptance rate", caption, [panel], "Leviathan et al. 2023, Figure 2")


def best_windows(summary: Summary) -> Figure | None:
    """The best γ against α for several c (Figure 3); None where nothing was timed at two values of γ."""
    by_drafter: dict[str, list[_Measured]] = {}
    for one in _measured(summary):
        if isinstance(one.point, TimedPoint):
            by_drafter.setdefault(one.drafter, []).append(one)
    several = {name: own for name, own in by_drafter.items() if len({one.length for one in own}) > 1}
    if not several:
        return None
    lines = {f"c {cost:g}": _best_of(cost) for cost in _COSTS}
    series = [Series(name, PALETTE[place]) for place, name in enumerate(lines)]
    upwards = (0.0, _LONGEST + 1.0)
    y = alt.Y("y:Q", title="best γ (tokens)", axis=alt.Axis(format="d"), scale=alt.Scale(domain=list(upwards), nice=False))
    steps = alt.Chart(parts.data(_line_records(lines))).mark_line(interpolate="step-after", strokeWidth=1.4)
    marks = [_fastest(summary, name, own) for name, own in several.items()]
    base = alt.Chart(parts.data(marks)).encode(x=_ALPHA, y=y)
    panel = alt.layer(
        steps.encode(x=_ALPHA, y=y, color=parts.color(series)),
        base.mark_point(filled=True, size=70, color=INK, opacity=1).encode(tooltip=["point:Q"]),
        *names(marks, (0.0, 1.0), upwards, {_MEASURED: "above left"}),
    )
    caption = (
        f"{_MARKS} A line is the γ with the greatest speed-up by Theorem 3.8 at a cost ratio c, up to {_LONGEST}. A mark is "
        "the γ of the fastest measured point, of those in the grid, with the measured c."
    )
    return Figure("The best window by acceptance rate", caption, [panel], "Leviathan et al. 2023, Figure 3")


def speed_and_operations(summary: Summary) -> Figure | None:
    """Speed-up and operations against α, at each drafter's c and ĉ (Figure 4); None where neither is known."""
    groups: dict[str, list[_Measured]] = {}
    for one in _measured(summary):
        groups.setdefault(_FREE if one.drafter in LOOK_UPS else one.drafter, []).append(one)
    lengths = _lengths([one for own in groups.values() for one in own])
    panels: list[Panel] = []
    for name, own in groups.items():
        shown, cost, work = [one for one in own if one.length in lengths], own[0].cost, own[0].work
        if cost is not None and (timed := [one for one in shown if isinstance(one.point, TimedPoint)]):
            speeds = {f"γ {length}": _with(expected_speedup, length, cost) for length in lengths}
            marks = [_mark(summary, one, one.point.speedup) for one in timed]
            oracle, top = _oracle_at(cost), 1.2 * max(line(_ALPHAS[-1]) for line in speeds.values())
            panels.append(_panel("speed-up (×)", speeds, marks, oracle, top, f"{name}: c {cost:.3g}"))
        if work is not None and shown:
            counted = {f"γ {length}": _with(expected_operations, length, work) for length in lengths}
            marks = [_mark(summary, one, _operations(one, work)) for one in shown]
            panels.append(_panel("operations over vanilla large (×)", counted, marks, title=f"{name}: ĉ {work:.3g}"))
    caption = (
        f"{_MARKS} The paper draws c = ĉ = 0; here both are those of the drafter. Speed-ups were timed; a mark among "
        "operations is counted: the positions that the large model checked, and ĉ for each run of the small model, over the "
        "tokens. Grey: an oracle chooses γ."
    )
    title, after = "Speed and operations by acceptance rate", "Leviathan et al. 2023, Figure 4"
    return Figure(title, caption, panels, after) if panels else None


def _measured(summary: Summary) -> list[_Measured]:
    found = []
    for point in summary.points:
        pair = summary.pairs.of(point.arm)
        alpha = acceptance_of(pair, point) if point.method == "speculative" else None
        if alpha is not None:
            drafter = str(point.settings.get("drafter", "small"))
            name = f"small, {point.arm}" if drafter == "small" else drafter
            length = int(point.settings["draft_length"] or 0)
            found.append(_Measured(point, alpha.rate, length, name, cost_of(pair, point), work_of(pair, point)))
    return found


def _lengths(found: Iterable[_Measured]) -> list[int]:
    """The values of γ that are drawn, evenly spread over those of the grid."""
    lengths = sorted({one.length for one in found})
    return lengths[:: max(1, math.ceil(len(lengths) / _MOST_LENGTHS))]


def _with(theory: Callable[..., float], *settings: float) -> Line:
    return lambda alpha: theory(alpha, *settings)


def _best_of(cost: float) -> Line:
    return lambda alpha: best_draft_length(alpha, cost, _LONGEST)


def _oracle_at(cost: float) -> Line:
    return lambda alpha: oracle_speedup(alpha, cost)


def _operations(one: _Measured, work: float) -> float | None:
    """Operations for each token over those of the large model alone: counts, and the sizes of the models."""
    counts = one.point.counts
    if counts.verified is None:
        return None
    positions = sum(width * runs for width, runs in counts.verified.items())
    return ratio(positions + work * counts.small_steps, counts.tokens)


def _mark(summary: Summary, one: _Measured, y: float | None) -> Record:
    return parts.point_record(summary, one.point, x=round(one.alpha, 5), y=y, series=one.series, source=one.source)


def _fastest(summary: Summary, name: str, own: Sequence[_Measured]) -> Record:
    one = max(own, key=lambda found: found.point.speedup or 0.0)
    cost = "" if one.cost is None else f", c {one.cost:.2g}"
    place: Record = {"x": round(one.alpha, 5), "y": one.length, "name": f"{name}{cost}", "series": _MEASURED, "tone": INK}
    return parts.point_record(summary, one.point, **place)


def _line_records(lines: Mapping[str, Line], top: float | None = None) -> list[Record]:
    records: list[Record] = [{"x": x, "y": round(line(x), 4), "series": name} for name, line in lines.items() for x in _ALPHAS]
    return [record for record in records if top is None or record["y"] <= top]


def _panel(
    y_title: str,
    lines: Mapping[str, Line],
    marks: Sequence[Record],
    oracle: Line | None = None,
    top: float | None = None,
    title: str = "",
) -> Panel:
    """Lines of theory by γ, that of the oracle in grey up to `top`, and measured marks, coloured alike."""
    series = [Series(name, PALETTE[place]) for place, name in enumerate(lines)]
    sources = dict.fromkeys(mark["source"] for mark in marks)
    shapes = [Series(name, INK, SHAPES[place]) for place, name in enumerate(sources)]
    y = alt.Y("y:Q", title=y_title)
    theory = alt.Chart(parts.data(_line_records(lines))).mark_line(strokeWidth=1.4)
    layers = [theory.encode(x=_ALPHA, y=y, color=parts.color(series))]
    if oracle is not None:
        bound = alt.Chart(parts.data(_line_records({_ORACLE: oracle}, top)))
        layers.insert(0, bound.mark_line(strokeWidth=1.4, strokeDash=list(parts.DASHED), color=REFERENCE).encode(x=_ALPHA, y=y))
    points = alt.Chart(parts.data(mark for mark in marks if mark["y"] is not None)).encode(
        x=_ALPHA, y=y, color=parts.color(series)
    )
    points = points.mark_point(filled=True, size=70, opacity=1).encode(tooltip=["point:Q"])
    # One source is named in the panel's title; a legend of shapes would name it once more.
    layers.append(points.encode(shape=parts.shape(shapes, "source")) if len(shapes) > 1 else points)
    return alt.layer(*layers, **({"title": title} if title else {}))
