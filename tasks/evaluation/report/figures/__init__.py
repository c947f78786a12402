"""Every figure of a report. What a chart shows is described once (`bild`, `cascades`, `speed`, `acceptance`) and drawn twice:
here for PNG and SVG, in `tasks.evaluation.report.charts` for the page. The Pareto figure has a module of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from tasks.evaluation.report.figures.acceptance import accepted_lengths
from tasks.evaluation.report.figures.bild import ablations, oracle_curve, threshold_map
from tasks.evaluation.report.figures.cascades import cascade_curves
from tasks.evaluation.report.figures.draw import draw
from tasks.evaluation.report.figures.lookup import Sweeps
from tasks.evaluation.report.figures.pareto import pareto_figure
from tasks.evaluation.report.figures.series import Chart
from tasks.evaluation.report.figures.speed import latency_scatter, operations_bars, prediction, time_parts
from tasks.evaluation.report.figures.style import save

__all__ = ["all_figures", "described_charts", "pareto_figure", "save"]


def described_charts(summary: Mapping[str, Any], sweeps: Sweeps) -> dict[str, Chart]:
    """Every chart but the Pareto figure, by the name of its file; those without data are left out."""
    found = {
        "thresholds": threshold_map(summary),
        "ablations": ablations(summary),
        "oracle": oracle_curve(summary),
        "cascades": cascade_curves(summary),
        "latency": latency_scatter(summary, sweeps),
        "acceptance": accepted_lengths(summary),
        "time": time_parts(summary),
        "operations": operations_bars(summary),
        "prediction": prediction(summary),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def all_figures(summary: Mapping[str, Any], sweeps: Sweeps) -> dict[str, Figure]:
    """Every figure by the name of its file.

    Args:
        summary: from `tasks.evaluation.report.summary.summarize`.
        sweeps: for each drafter the rows that the summary was made of.
    """
    charts = described_charts(summary, sweeps)
    return {"pareto": pareto_figure(summary), **{name: draw(chart) for name, chart in charts.items()}}
