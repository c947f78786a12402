"""The chosen points that the Pareto figure names by letters: on validation, where they were chosen, and on test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from tasks.evaluation.report.figures.figure import Panel
from tasks.evaluation.report.figures.labels import Domain, names
from tasks.evaluation.report.figures.series import DRAFTER_SERIES, Record, color, data, reference_line
from tasks.evaluation.report.figures.theme import COLORS, CONTRADICTED, LATENCY_TICKS, REFERENCE
from tasks.evaluation.report.formatting import CHOICE_NAMES, difference_text, method_name, metric_name
from tasks.evaluation.report.marks import is_contradicted, marks_of_point
from tasks.evaluation.report.selection import chosen, fastest
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.settings import CHOICES

SIDES = {"aligned": "above left", "unaligned": "below right"}
"""Where a letter is put first: above and left of aligned points, where nothing lies that beats them; else below and right."""
_LATENCY = "latency relative to vanilla large, and speed-up (×)"


@dataclass(frozen=True)
class Lettered:
    """A chosen point with its letter."""

    letter: str
    index: int
    point: TimedPoint
    names: tuple[str, ...]
    """What it was chosen for, and whether it is recommended."""
    contradicted: bool
    """Whether test contradicts any of that."""

    @property
    def key(self) -> str:
        """Its line under the title of the validation panel."""
        warning = " (contradicted on test)" if self.contradicted else ""
        method = f"{method_name(self.point.method)}, {self.point.arm}"
        return f"{self.letter}  {self.point.speedup:.2f}× {method}: {', '.join(self.names)}{warning}"

    @property
    def test_key(self) -> str:
        """Its line under the title of the test panel."""
        test = self.point.test
        if test is None:
            return f"{self.letter}  not measured on test"
        warning = ", contradicted" if self.contradicted else ""
        return f"{self.letter}  {test.speedup:.2f}×, {difference_text(test)}{warning}"


def lettered_points(summary: Summary) -> list[Lettered]:
    """For each drafter and kind of choice the fastest chosen point of all methods, and the recommended point."""
    purposes: dict[int, list[str]] = {}
    for arm, (choice, name) in itertools.product(COLORS, CHOICE_NAMES.items()):
        point = fastest(chosen(summary, choice, arm))
        if point is not None:
            purposes.setdefault(summary.index_of(point), []).append(name)
    if summary.recommended is not None:
        purposes.setdefault(summary.index_of(summary.recommended), []).append("recommended")
    return [
        Lettered(
            letter=chr(65 + place),
            index=index,
            point=summary.timed_point(index),
            names=tuple(own),
            contradicted=is_contradicted(marks_of_point(summary, index)),
        )
        for place, (index, own) in enumerate(purposes.items())
    ]


def on_test(summary: Summary, points: Sequence[Lettered]) -> Panel | None:
    """Each lettered point on test, joined to where validation saw it, by the difference from vanilla on the same split.

    Returns:
        None where no lettered point was measured on test.
    """
    records = [record for one in points if (record := _record(one)) is not None]
    if not records:
        return None
    across = _padded([1.0, *(record[name] for record in records for name in ("left", "right", "from_x"))], 0.12)
    # The names of the limits stand right of vanilla's latency.
    across = across[0], across[1] + 0.12 * (across[1] - across[0])
    upwards = _padded([0.0, *(record[name] for record in records for name in ("low", "high", "from_y"))], 0.08)
    x_scale, y_scale = (alt.Scale(domain=list(domain), nice=False) for domain in (across, upwards))
    x = alt.X("x:Q", title=_LATENCY, scale=x_scale, axis=LATENCY_TICKS)
    y = alt.Y("y:Q", title=f"{metric_name(summary.metric)} − vanilla large (points)", scale=y_scale)
    base = alt.Chart(data(records)).encode(x=x, y=y, color=color(DRAFTER_SERIES))
    seen = alt.Chart(data({**one, "x": one["from_x"], "y": one["from_y"], "where": "on validation"} for one in records))
    seen = seen.encode(x=x, y=y, color=color(DRAFTER_SERIES), tooltip=["point:Q"])
    rules = base.mark_rule(strokeWidth=1.3, opacity=0.45)
    limits = reference_line(0.0, "vanilla", x=1.0)
    for margin in map(summary.margins.of, CHOICES):
        if -margin > upwards[0]:
            limits += reference_line(-margin, f"− {margin:g}", x=1.0, dotted=True)
    title = alt.TitleParams("on test", subtitle=[one.test_key for one in points])
    return alt.layer(
        alt.Chart(data([{}])).mark_rule(color=REFERENCE).encode(x=alt.datum(1.0)),
        rules.encode(x2="from_x:Q", y2="from_y:Q", strokeDash=alt.value([2, 2])),
        rules.encode(y="low:Q", y2="high:Q"),
        rules.encode(x="left:Q", x2="right:Q"),
        seen.mark_point(filled=False, size=45, opacity=0.8),
        base.encode(tooltip=["point:Q"]).mark_point(filled=True, shape="diamond", size=130, opacity=1),
        *limits,
        *names(records, across, upwards, SIDES, [{"x": one["from_x"], "y": one["from_y"]} for one in records]),
        title=title,
    )


def _padded(values: Sequence[float], share: float) -> Domain:
    """From the least to the largest value, with this share of their span on either side."""
    room = share * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + room


def tone(one: Lettered) -> str:
    """The colour of a point's letter."""
    return CONTRADICTED if one.contradicted else COLORS[one.point.arm]


def _record(one: Lettered) -> Record | None:
    point, test = one.point, one.point.test
    if test is None or test.quality_difference is None or point.quality_difference is None:
        return None
    fast, slow = test.speedup_interval or (test.speedup, test.speedup)
    low, high = test.quality_difference_interval or (test.quality_difference, test.quality_difference)
    place = {"x": test.relative_latency, "y": test.quality_difference, "left": 1 / slow, "right": 1 / fast}
    before = {"from_x": point.relative_latency, "from_y": point.quality_difference}
    name = f"{one.letter} contradicted" if one.contradicted else one.letter
    look = {"series": point.arm, "where": "on test", "name": name, "tone": tone(one), "point": one.index}
    return {**place, **before, **look, "low": low, "high": high}
