"""The report as one HTML file that needs nothing else: no network, no folder beside it.

`page.html.j2` is the template; `page.css`, `page.js` and the script that draws the charts are put into it. Everything that
comes from data is escaped: sources may hold anything.
"""

from __future__ import annotations

import base64
import functools
import gzip
import sys

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

# The figures register themselves where they are imported.
from tasks.evaluation.report import charts, figures, figures_detail, formatting, recommendation, tables  # noqa: F401
from tasks.evaluation.report.charts import Figure, Spec
from tasks.evaluation.results import rows as records
from tasks.evaluation.results.summary import Summary, Sweeps, fastest_choice, reported_row
from tasks.paths import ARMS

Facts = list[tuple[str, str]]
"""Names and their texts."""
PROPOSERS = {"s": "small", "l": "large", "c": "corrected"}
"""Who proposed a piece of text, as rows abbreviate it."""


def page(summary: Summary, sweeps: Sweeps, drawn: dict[str, Figure]) -> str:
    """The whole page.

    Args:
        summary: The task's results.
        sweeps: For each arm the rows that the summary was made of: single examples' times and outputs are in them.
        drawn: All figures of both.

    Returns:
        HTML, about 0.4 MB of it scripts; the same input gives the same text.
    """
    datasets = Spec()
    panels = {name: charts.page_specs(figure, datasets) for name, figure in drawn.items()}
    specs = {"config": charts.CONFIG, "datasets": datasets, "panels": panels}
    loader = PackageLoader("tasks.evaluation.report", ".")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["breakable"] = formatting.breakable
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    modules = {"formatting": formatting, "recommendation": recommendation, "tables": tables}
    shown = {"summary": summary, "sweeps": sweeps, "figures": drawn, "charts": specs, "vega": vega_script()}
    rendered = tables.rendered_tables(summary)
    return made.get_template("page.html.j2").render(page=sys.modules[__name__], rendered_tables=rendered, **modules, **shown)


def all_figures(summary: Summary, sweeps: Sweeps) -> dict[str, Figure]:
    """Every figure that has data, by the name of its file; the Pareto figure first."""
    made = {name: make(summary, sweeps) for name, make in charts.FIGURES.items()}
    return {name: found for name, found in made.items() if found is not None}


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed from the copies that vl-convert ships, as base64 of gzip: less than half as long."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def sweep_facts(summary: Summary) -> list[tuple[str, Facts]]:
    """For each sweep the plan, the error of its predictions, the costs and the machine."""
    facts = {arm: tables.shown("sweep", pair) for arm, pair in summary.pairs.items()}
    return [(arm, [one for one in own.items() if one[1] != formatting.NOTHING]) for arm, own in facts.items()]


def examples(summary: Summary, sweeps: Sweeps) -> list[tuple[records.TimedPoint, str, list[records.ShownExample]]]:
    """Outputs of the recommended point and of each arm's fastest chosen point, with a title each."""
    wanted = {} if summary.recommended is None else {summary.index_of(summary.recommended): "recommended"}
    for choice, point in filter(None, (fastest_choice(summary, arm) for arm in ARMS)):
        wanted.setdefault(summary.index_of(point), formatting.CHOICE_NAMES[choice])
    found = []
    for index, words in wanted.items():
        point = summary.timed_point(index)
        row = reported_row(point, sweeps)
        if row is not None and row.shown:
            found.append((point, f"{formatting.point_text(point)}: {words}, on {row.split}", row.shown))
    return found


def point_rows(summary: Summary) -> list[tuple[int, records.OperatingPoint, dict[str, str]]]:
    """All points with their indices and their cells by heading: the recommended one, the chosen ones, then by speed;
    untimed points come last."""
    best, found = summary.recommendation.point, list[tuple[int, records.OperatingPoint, dict[str, str]]]()
    indexed = sorted(enumerate(summary.points), key=lambda one: (one[0] != best, not one[1].chosen, -(one[1].speedup or 0.0)))
    for index, point in indexed:
        cells = tables.shown("points", point)
        same = f" = {formatting.settings_text(point.same_as)}" if point.same_as else ""
        cells |= {"method": formatting.method_name(point.method), "settings": cells["settings"] + same}
        found.append((index, point, cells))
    return found
