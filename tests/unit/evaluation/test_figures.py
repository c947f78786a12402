from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from tasks.evaluation.figures import pareto_figure, save
from tasks.evaluation.labels import Label, place_labels
from tasks.evaluation.summary import summarize

Sweeps = dict[str, list[dict[str, Any]]]


def test_the_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = pareto_figure(summarize("toy", "bleu", sweeps))
    everything, close = figure.axes
    named = {text.get_text() for text in close.texts}
    assert {"1.20× no loss", "1.50× ≤ 1 point", "1.60× no loss, ≤ 1 point", "1.50× speculative"} <= named
    assert {"large", "small, unaligned 4.0×", "small, aligned 4.0×"} == {text.get_text() for text in everything.texts}
    assert "toy" in figure.get_suptitle() and "BLEU" in figure.get_suptitle()


def test_frontiers_are_steps_through_their_points(sweeps: Sweeps) -> None:
    figure = pareto_figure(summarize("toy", "bleu", sweeps))
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]  # type: ignore[arg-type]  # an array
    aligned = next(line for line in lines if line.get_linestyle() == "-")
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 58.9), (1 / 1.6, 59.9), (1 / 1.4, 59.9), (1 / 1.4, 60.0), (1.0, 60.0)]
    found = list(zip(aligned.get_xdata(), aligned.get_ydata(), strict=True))  # type: ignore[arg-type]  # arrays
    assert [value for corner in found for value in corner] == pytest.approx(
        [value for corner in corners for value in corner], rel=1e-5
    )


def test_files_are_small_and_the_same_again(sweeps: Sweeps, tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        save(pareto_figure(summarize("toy", "bleu", sweeps)), tmp_path / name)
    for kind in ("png", "svg"):
        first = (tmp_path / f"a.{kind}").read_bytes()
        assert first == (tmp_path / f"b.{kind}").read_bytes()
        assert 10_000 < len(first) < 300_000


def test_a_sweep_of_vanilla_alone_is_drawn(sweeps: Sweeps, tmp_path: Path) -> None:
    alone = {drafter: rows[:1] for drafter, rows in sweeps.items()}
    save(pareto_figure(summarize("toy", "bleu", alone)), tmp_path / "alone.png")
    assert (tmp_path / "alone.png").stat().st_size > 5_000


def test_labels_of_crowded_marks_do_not_overlap_and_stay_inside() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    spots = [(0.5, 0.5), (0.5, 0.51), (0.51, 0.5), (0.99, 0.99), (0.01, 0.02)]
    axes.set(xlim=(0, 1), ylim=(0, 1))
    figure.canvas.draw()
    place_labels(axes, [Label(x, y, f"label {x} {y}", "black") for x, y in spots], spots)
    figure.canvas.draw()
    boxes = [text.get_bbox_patch().get_window_extent() for text in axes.texts if isinstance(text, Annotation)]  # type: ignore[union-attr]  # place_labels gives each a box
    assert len(boxes) == len(spots)
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        assert axes.bbox.padded(4).contains(box.x0, box.y0) and axes.bbox.padded(4).contains(box.x1, box.y1)
        assert not any(box.contains(*axes.transData.transform(spot)) for spot in spots)
