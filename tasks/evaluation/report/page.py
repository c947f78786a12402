"""The report as one HTML file that needs nothing else: no network, no folder beside it.

`page.html.j2` is the template; `page.css` and `page.js` are put into it, and so is plotly.js. Whatever comes from data is
escaped: sources may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tasks.evaluation.report import sections
from tasks.evaluation.report.charts import panel_specs, plotly_script
from tasks.evaluation.report.definitions import DEFINITIONS
from tasks.evaluation.report.figures import described_charts
from tasks.evaluation.report.figures.explored import pareto_chart
from tasks.evaluation.report.figures.lookup import Sweeps
from tasks.evaluation.report.figures.series import Chart
from tasks.evaluation.report.published import SOURCE
from tasks.evaluation.report.rendered_tables import rendered_tables
from tasks.evaluation.report.table import METRIC_NAMES, notes


def page(summary: Mapping[str, Any], sweeps: Sweeps) -> str:
    """The whole page.

    Args:
        summary: from `tasks.evaluation.report.summary.summarize`.
        sweeps: for each drafter the rows that it was made of: single examples' times and outputs are taken from there.

    Returns:
        HTML, about 5 MB of it plotly.js; the same input gives the same text.
    """
    charts = {"pareto": pareto_chart(summary), **described_charts(summary, sweeps)}
    place = summary["verdict"]["point"]
    own, published, rows = sections.first_table(summary)
    return _environment().get_template("page.html.j2").render(
        task=summary["task"],
        metric=METRIC_NAMES[summary["metric"]],
        split=summary["split"],
        verdict=summary["verdict"],
        cards=sections.cards(summary),
        settings=[] if place is None else sections.settings_lines(summary["points"][place]),
        table={"own": own, "published": published, "rows": rows, "notes": notes(summary), "source": SOURCE},
        protocol=sections.protocol(summary),
        grounds=sections.grounds(summary),
        charts=[_drawn(name, chart) for name, chart in charts.items()],
        examples=sections.examples(summary, sweeps),
        headings=sections.POINT_HEADINGS,
        points=sections.point_rows(summary),
        failed=summary["failed"],
        tables=rendered_tables(summary),
        definitions=DEFINITIONS,
        plotly=Markup(plotly_script()),  # noqa: S704 (the package's own script)
    )  # fmt: skip


def _drawn(name: str, chart: Chart) -> dict[str, Any]:
    """A chart for the template, the panels of which are embedded as JSON."""
    return {
        "name": name,
        "title": chart.title,
        "caption": chart.caption,
        "follows": chart.follows,
        "alone": chart.columns == 1 or len(chart.panels) == 1,
        "panels": panel_specs(chart),
    }


def _environment() -> Environment:
    """Templates beside this module, everything escaped, a missing name an error."""
    loader = PackageLoader("tasks.evaluation.report", ".")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
