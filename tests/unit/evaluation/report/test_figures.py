from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from tasks.evaluation.report.figures import all_figures, described_charts, pareto_figure, save
from tasks.evaluation.report.figures.bild import ablations, oracle_curve, threshold_map
from tasks.evaluation.report.figures.cascades import cascade_curves
from tasks.evaluation.report.figures.draw import draw
from tasks.evaluation.report.figures.series import Chart, Heat, Panel
from tasks.evaluation.report.figures.speed import latency_scatter, operations_bars, prediction, time_parts
from tasks.evaluation.report.labels import Label, place_labels
from tasks.evaluation.report.summary import summarize

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]

NAMES = (
    "pareto",
    "thresholds",
    "ablations",
    "oracle",
    "cascades",
    "latency",
    "acceptance",
    "time",
    "operations",
    "prediction",
)


def present(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


def points(summary: Row, drafter: str, method: str) -> list[Row]:
    return [point for point in summary["points"] if (point["drafter"], point["method"]) == (drafter, method)]


def test_the_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = pareto_figure(summarize("toy", "bleu", sweeps))
    everything, close = figure.axes
    named = {text.get_text() for text in close.texts}
    assert {"1.30× speculative, no loss", "1.50× BiLD, ≤ 1 point", "1.60× BiLD, no loss, ≤ 1 point"} <= named
    assert {"large", "small, unaligned 4.0×", "small, aligned 4.0×"} == {text.get_text() for text in everything.texts}
    assert "toy" in figure.get_suptitle() and "BLEU" in figure.get_suptitle()


def test_frontiers_are_steps_through_the_points_of_all_methods(sweeps: Sweeps) -> None:
    figure = pareto_figure(summarize("toy", "bleu", sweeps))
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]  # type: ignore[arg-type]  # an array
    aligned = next(line for line in lines if line.get_linestyle() == "-")
    # The last corner is speculative decoding, which beats BiLD's best quality there.
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 58.9), (1 / 1.6, 59.9), (1 / 1.5, 59.9), (1 / 1.5, 60.0), (1.0, 60.0)]
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


def test_every_figure_is_drawn_and_small(full_summary: Row, full_sweeps: Sweeps, tmp_path: Path) -> None:
    figures = all_figures(full_summary, full_sweeps)
    assert tuple(figures) == NAMES
    for name, figure in figures.items():
        save(figure, tmp_path / f"{name}.png")
        assert 20_000 < (tmp_path / f"{name}.png").stat().st_size < 300_000, name


def test_a_described_figure_is_the_same_again(full_summary: Row, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(draw(present(oracle_curve(full_summary))), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_sweep_of_vanilla_alone_is_drawn(sweeps: Sweeps, tmp_path: Path) -> None:
    alone = {drafter: rows[:1] for drafter, rows in sweeps.items()}
    summary = summarize("toy", "bleu", alone)
    save(pareto_figure(summary), tmp_path / "alone.png")
    assert (tmp_path / "alone.png").stat().st_size > 5_000
    assert described_charts(summary, alone) == {}


def test_points_that_were_not_timed_are_not_in_the_picture(full_summary: Row) -> None:
    everything = pareto_figure(full_summary).axes[0]
    offsets = np.vstack([np.asarray(dots.get_offsets(), dtype=np.float64) for dots in everything.collections])
    drawn = {(round(x, 4), round(y, 4)) for x, y in offsets.tolist()}
    for point in full_summary["points"]:
        speedup = point["speedup"] if point["timed"] else point["predicted"]["speedup"]
        assert ((round(1 / speedup, 4), round(point["quality"], 4)) in drawn) is point["timed"]


def maps(summary: Row, drafter: str) -> tuple[Heat, Heat]:
    found = [panel.heat for panel in present(threshold_map(summary)).panels if panel.title.startswith(drafter)]
    quality, speed = found
    assert quality is not None and speed is not None
    return quality, speed


def test_the_threshold_map_sets_each_point_in_its_cell(full_summary: Row) -> None:
    quality, speed = maps(full_summary, "unaligned")
    assert quality.rows == ["1", "2", "3", "5", "∞"] and quality.columns == ["0", "0.5", "0.6", "0.7", "0.8", "0.9"]
    vanilla = full_summary["vanilla"]["large"]["quality"]
    seen = 0
    for point in points(full_summary, "unaligned", "bild"):
        settings = point["settings"]
        if settings["max_draft"] == 12:  # of another grid
            continue
        row = quality.rows.index(f"{float(settings['rollback_threshold']):g}".replace("inf", "∞"))
        column = quality.columns.index(f"{settings['fallback_threshold']:g}")
        assert quality.values[row][column] == pytest.approx(point["quality"] - vanilla)
        expected = point["speedup"] if point["timed"] else point["predicted"]["speedup"]
        assert speed.values[row][column] == pytest.approx(expected)
        assert speed.marked[row][column] is point["timed"]
        seen += 1
    assert seen == 30


def test_a_point_that_behaves_like_a_timed_one_has_its_speed(full_summary: Row) -> None:
    unaligned = points(full_summary, "unaligned", "bild")
    timed = next(point for point in unaligned if point["timed"])
    twin = {**timed, "timed": False, "speedup": None, "same_as": timed["settings"]}
    twin["settings"] = {**timed["settings"], "rollback_threshold": 9.0}
    summary = {**full_summary, "points": [*full_summary["points"], twin]}
    _, speed = maps(summary, "unaligned")
    row = speed.rows.index("9")
    assert [value for value in speed.values[row] if value is not None] == [timed["speedup"]]
    assert sum(speed.marked[row]) == 1


def test_the_oracle_curve_is_over_the_share_of_replaced_tokens(full_summary: Row) -> None:
    (panel,) = present(oracle_curve(full_summary)).panels
    assert [spots.name for spots in panel.spots] == ["aligned", "unaligned"]
    for spots in panel.spots:
        counts = [point["counts"] for point in points(full_summary, spots.name, "bild_oracle")]
        shares = sorted(100 * one["rollbacks"] / one["tokens"] for one in counts)
        assert list(spots.x) == pytest.approx(shares) and len(shares) == 4


def test_ablations_keep_the_policies_apart(full_summary: Row) -> None:
    chart = present(ablations(full_summary))
    assert [panel.title for panel in chart.panels] == ["aligned", "unaligned"]
    for panel in chart.panels:
        kinds = {spots.name: spots for spots in panel.spots}
        assert set(kinds) == {"BiLD", "without fallback", "without rollback"}
        assert all("α_FB 0 " in text for text in kinds["without fallback"].texts)
        assert all("α_RB ∞" in text for text in kinds["without rollback"].texts)
        assert not any("α_FB 0 " in text or "∞" in text for text in kinds["BiLD"].texts)


def test_rejection_is_of_the_judged_tokens(full_summary: Row) -> None:
    chart = present(cascade_curves(full_summary))
    rejected, calls = chart.panels[:2]
    (curve,) = [spots for spots in rejected.spots if spots.name == "speculative"]
    # Speculative decoding stops at the first token that it rejects, so 9 of 10 judged tokens stay whatever the window.
    assert list(curve.x) == pytest.approx([10, 10, 10], abs=0.5)
    assert "token cascade" not in {spots.name for spots in rejected.spots}, "it verifies nothing"
    assert {"token cascade", "speculative cascade [opt]"} <= {spots.name for spots in calls.spots}


def test_a_curve_changes_nothing_but_its_knob(full_summary: Row) -> None:
    point = points(full_summary, "aligned", "speculative_cascade")[0]
    other = {**point, "settings": {**point["settings"], "draft_length": 9}, "quality": 50.0}
    chart = present(cascade_curves({**full_summary, "points": [*full_summary["points"], other]}))
    curves = [spots for spots in chart.panels[1].spots if spots.name == "speculative cascade [chow]"]
    assert [len(spots.x) for spots in curves] == [4, 1] and [spots.listed for spots in curves] == [True, False]


def test_the_share_of_faster_examples_is_counted(sweeps: Sweeps) -> None:
    chosen = next(row for row in sweeps["aligned"] if row["split"] == "test" and row["method"] == "bild")
    chosen["latency_ms"], chosen["vanilla_latency_ms"] = [5.0, 40.0, 2.0, 9.0], [10.0, 30.0, 10.0, 10.0]
    chart = present(latency_scatter(summarize("toy", "bleu", sweeps), sweeps))
    panel = chart.panels[0]
    assert panel.title == "aligned, BiLD (test): 75% of 4 faster"
    assert list(panel.spots[0].x) == chosen["vanilla_latency_ms"] and list(panel.spots[0].y) == chosen["latency_ms"]


def test_parts_of_the_time_add_up(full_summary: Row) -> None:
    (panel,) = present(time_parts(full_summary)).panels
    assert [bars.name for bars in panel.bars] == ["encoders", "small", "large", "other"] and panel.stacked
    assert panel.categories[:3] == ["vanilla large", "small,\nunaligned", "small,\naligned"]
    first = sum(bars.values[0] or 0.0 for bars in panel.bars)
    assert first == pytest.approx(sum(full_summary["vanilla"]["large"]["time_ms"].values()))
    assert panel.bars[-1].said[0] == f"{first:.2f}"


def test_theory_and_measurement_are_named(full_summary: Row) -> None:
    (panel,) = present(operations_bars(full_summary)).panels
    theory, measured = panel.categories[:3], panel.categories[3]
    assert all(name.endswith("(theory)") for name in theory) and measured == "speed-up (measured)"
    own = panel.bars[1]
    assert own.values[1] == pytest.approx(1.15 / (own.values[2] or 1)), "bytes are operations over intensity"
    without = {**full_summary, "points": [{**point, "operations": None} for point in full_summary["points"]]}
    assert operations_bars(without) is None


def test_the_random_sample_stands_apart(full_summary: Row) -> None:
    chart = present(prediction(full_summary))
    groups = {spots.name: spots for spots in chart.panels[0].spots}
    assert len(groups) == 4
    sample = [point for point in points(full_summary, "aligned", "bild") if point["why"] == "sample"]
    assert sorted(groups["aligned, random sample"].y) == sorted(point["speedup"] for point in sample)
    assert sorted(groups["aligned, random sample"].x) == sorted(point["predicted"]["speedup"] for point in sample)
    assert "aligned 2.1% on average and 4.6% at worst over 10 points" in chart.caption


def test_negative_rests_of_time_are_drawn_left_of_zero(full_summary: Row) -> None:
    (panel,) = present(time_parts(full_summary)).panels
    *others, rest = panel.bars
    negative = Panel("", "", "ms", bars=[*others, type(rest)(rest.name, [-1.0] * len(rest.values), rest.color)], stacked=True,
                     categories=panel.categories)  # fmt: skip
    axes = draw(Chart("", "", "", [negative])).axes[0]
    assert min(patch.get_window_extent().x0 for patch in axes.patches) == pytest.approx(axes.transData.transform((-1, 0))[0])


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
