"""Every figure of a report: each is described once, and saved as pictures and embedded in the page from that description."""

from __future__ import annotations

from tasks.evaluation.report.figures.acceptance import accepted_lengths
from tasks.evaluation.report.figures.batches import speed_by_batch
from tasks.evaluation.report.figures.bild import ablations, oracle_curve, threshold_maps
from tasks.evaluation.report.figures.cascades import by_block_size, cascade_curves, deferral_curves
from tasks.evaluation.report.figures.figure import Figure
from tasks.evaluation.report.figures.pareto import everything, pareto
from tasks.evaluation.report.figures.speed import latency_scatter, operations_bars, prediction, time_parts
from tasks.evaluation.report.figures.temperatures import by_temperature
from tasks.evaluation.report.figures.theory import best_windows, speed_and_operations, tokens_by_acceptance
from tasks.evaluation.report.figures.trace import token_trace
from tasks.evaluation.report.figures.variants import bild_variants, lossy_variants
from tasks.evaluation.report.selection import Sweeps
from tasks.evaluation.results.summary import Summary


def all_figures(summary: Summary, sweeps: Sweeps, predicted: bool = False) -> dict[str, Figure]:
    """Every figure by the name of its file; those without data are left out.

    Args:
        summary: The task's results.
        sweeps: For each drafter the rows that the summary was made of.
        predicted: Whether the Pareto figure shows points that were not timed.
    """
    found = {
        "pareto": pareto(summary, predicted),
        "everything": everything(summary, predicted),
        "thresholds": threshold_maps(summary),
        "ablations": ablations(summary),
        "oracle": oracle_curve(summary),
        "deferrals": deferral_curves(summary),
        "cascades": cascade_curves(summary),
        "block_sizes": by_block_size(summary),
        "temperatures": by_temperature(summary),
        "bild_variants": bild_variants(summary),
        "lossy_variants": lossy_variants(summary),
        "tokens": tokens_by_acceptance(summary),
        "windows": best_windows(summary),
        "speed": speed_and_operations(summary),
        "trace": token_trace(summary, sweeps),
        "latency": latency_scatter(summary, sweeps),
        "batches": speed_by_batch(summary),
        "acceptance": accepted_lengths(summary),
        "time": time_parts(summary),
        "operations": operations_bars(summary),
        "prediction": prediction(summary),
    }
    return {name: figure for name, figure in found.items() if figure is not None}
