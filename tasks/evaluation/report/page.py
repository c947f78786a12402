"""The report as one HTML file that needs nothing else: no network, no folder beside it.

`page.html.j2` is the template; `page.css`, `page.js` and the script that draws the charts are put into it. Everything that
comes from data is escaped: sources may hold anything.
"""

from __future__ import annotations

import base64
import functools
import gzip

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from tasks.evaluation.report import deployment, formatting, headline, marks, outputs, sections, selection, table
from tasks.evaluation.report.figures import all_figures
from tasks.evaluation.report.figures.figure import Spec, page_specs
from tasks.evaluation.report.figures.theme import CONFIG
from tasks.evaluation.report.rendered_tables import rendered_tables
from tasks.evaluation.report.selection import Sweeps
from tasks.evaluation.results.summary import Summary

_MODULES = (deployment, formatting, headline, marks, outputs, sections, selection, table)
"""What the template calls."""


def page(summary: Summary, sweeps: Sweeps) -> str:
    """The whole page.

    Args:
        summary: The task's results.
        sweeps: For each drafter the rows that the summary was made of: single examples' times and outputs are in them.

    Returns:
        HTML, about 0.4 MB of it scripts; the same input gives the same text.
    """
    figures = all_figures(summary, sweeps, predicted=True)
    datasets: Spec = {}
    panels = {name: page_specs(figure, datasets) for name, figure in figures.items()}
    charts = {"config": CONFIG, "datasets": datasets, "panels": panels}
    values = {"summary": summary, "sweeps": sweeps, "figures": figures, "charts": charts, "vega": vega_script()}
    modules = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
    template = _environment().get_template("page.html.j2")
    return template.render(**values, **modules, tables=rendered_tables(summary), margins=summary.margins)


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed from the copies that vl-convert ships, as base64 of gzip: less than half as long."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _environment() -> Environment:
    """Templates beside this module, everything escaped, a missing name an error."""
    loader = PackageLoader("tasks.evaluation.report", ".")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["breakable"] = formatting.breakable
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return made
