"""What figures show, read from their specifications: which records each layer draws, and how."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.evaluation.report.figures import acceptance, all_figures, bild, speed
from tasks.evaluation.report.figures.dvc_template import PATH, frontier_template
from tasks.evaluation.report.figures.figure import Figure, Panel, page_specs, picture_spec, save
from tasks.evaluation.report.figures.pareto import pareto
from tasks.evaluation.results.points import TimedPoint, UntimedPoint
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.results.summary import Summary
from tests.unit.evaluation.conftest import records, summary_record

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]
Records = dict[str, list[SweepRow]]

NAMES = ("pareto", "thresholds", "ablations", "oracle", "cascades", "latency", "acceptance", "time", "operations", "prediction")


@pytest.fixture(scope="module")
def figures(full_record: Summary, full_rows: Records) -> dict[str, Figure]:
    return all_figures(full_record, full_rows)


def present(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def layers(panel: Panel) -> Iterator[tuple[Row, list[Row]]]:
    """Each layer with the records that its filters leave."""
    spec = panel.to_dict()
    for layer in spec["layer"]:
        found = spec["datasets"][(layer.get("data") or spec["data"])["name"]]
        for step in layer.get("transform", ()):
            field, _, wanted = str(step["filter"]).removeprefix("(datum.").removesuffix(")").partition(" === ")
            found = [record for record in found if not wanted or str(record.get(field)) == wanted.strip("'")]
        yield layer, found


def drawn(panel: Panel, mark: str, **look: Any) -> list[Row]:
    """The records of all layers with a mark of that kind and look."""
    return [
        record
        for layer, found in layers(panel)
        if layer["mark"]["type"] == mark and all(layer["mark"].get(name) == value for name, value in look.items())
        for record in found
    ]


def channels(panel: Panel, *names: str) -> list[Row]:
    """The encodings of some channels in all layers."""
    found = [layer.get("encoding", {}) for layer in panel.to_dict()["layer"]]
    return [encoding[name] for encoding in found for name in names if name in encoding]


def points(summary: Summary, drafter: str, method: str) -> list[TimedPoint | UntimedPoint]:
    return [point for point in summary.points if (point.drafter, point.method) == (drafter, method)]


def test_every_figure_is_a_picture(figures: dict[str, Figure], tmp_path: Path) -> None:
    assert tuple(figures) == NAMES
    for name, figure in figures.items():
        save(figure, tmp_path / f"{name}.svg")
        drawing = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert drawing.count("<path") > 20 and figure.title.split("'")[0] in drawing, name


def test_the_same_figure_gives_the_same_bytes(full_record: Summary, tmp_path: Path) -> None:
    figure = present(speed.time_parts(full_record))
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        save(figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    picture = (tmp_path / "a.png").read_bytes()
    assert picture == (tmp_path / "b.png").read_bytes() and len(picture) < 600_000
    width, height = struct.unpack(">II", picture[16:24])
    assert 1000 < width < 2000 and 400 < height < 2000


def test_every_chart_names_its_axes_and_has_few_legend_entries(figures: dict[str, Figure], full_record: Summary) -> None:
    for name, figure in {**figures, "pareto of the page": pareto(full_record, predicted=True)}.items():
        for panel in figure.panels:
            assert {channel.get("title") for channel in channels(panel, "x", "y")} - {None}, name
            domains = [(channel.get("scale") or {}).get("domain", ()) for channel in channels(panel, "color", "shape")]
            legend = {label for domain in domains for label in domain if isinstance(label, str)}
            assert all(len(set(domain)) == len(domain) for domain in domains) and len(legend) <= 8, name


def test_a_sweep_of_vanilla_alone_has_its_pareto_figure(sweeps: Sweeps, tmp_path: Path) -> None:
    alone = {drafter: rows[:1] for drafter, rows in sweeps.items()}
    figures = all_figures(summary_record("bleu", alone), {drafter: records(rows) for drafter, rows in alone.items()})
    assert list(figures) == ["pareto"]
    save(figures["pareto"], tmp_path / "alone.svg")
    assert "vanilla large" in (tmp_path / "alone.svg").read_text(encoding="utf-8")


def test_the_pareto_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = pareto(summary_record("bleu", sweeps))
    everything, close = figure.panels
    letters = {record["letter"]: (record["x"], record["y"]) for record in drawn(close, "text") if "letter" in record}
    places = {"A": (1 / 1.6, 59.9), "B": (1 / 1.3, 60.0), "C": (1 / 1.5, 59.2)}
    assert letters == {letter: pytest.approx(place, rel=1e-5) for letter, place in places.items()}
    key = close.to_dict()["title"]["subtitle"]
    assert key == [
        "A  1.60× BiLD, aligned: no loss, ≤ 1 point",
        "B  1.30× speculative, unaligned: no loss",
        "C  1.50× BiLD, unaligned: ≤ 1 point",
    ]
    named = {record["text"] for record in drawn(everything, "text") if "text" in record}
    assert named == {"vanilla large", "small 4.0×"}
    assert figure.title == "toy: BLEU against latency (validation split, 200 examples)"


def test_frontiers_are_steps_through_the_points_of_all_methods(sweeps: Sweeps) -> None:
    everything = pareto(summary_record("bleu", sweeps)).panels[0]
    steps = [record for record in drawn(everything, "line", interpolate="step-after") if record["series"] == "aligned"]
    # The last corner is speculative decoding, which beats BiLD's best quality there.
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 59.9), (1 / 1.5, 60.0), (1.0, 60.0)]
    assert [value for step in steps for value in (step["x"], step["y"])] == pytest.approx(
        [value for corner in corners for value in corner], rel=1e-5
    )


def test_intervals_of_a_speedup_lie_on_the_axis_of_latency(sweeps: Sweeps) -> None:
    close = pareto(summary_record("bleu", sweeps)).panels[1]
    chosen = next(record for record in drawn(close, "rule") if record.get("letter") == "A")
    assert (chosen["left"], chosen["right"]) == pytest.approx((1 / 1.65, 1 / 1.55), rel=1e-5)
    order = [layer["mark"]["type"] for layer, _ in layers(close)]
    assert order.index("rule") < order.index("point"), "intervals lie under the points"
    scales = [channel["scale"] for channel in channels(close, "y") if "scale" in channel]
    assert {scale["domain"][0] for scale in scales} == {58.0}, "two points below vanilla"


def test_points_that_were_not_timed_are_hollow_and_on_the_page_alone(full_record: Summary) -> None:
    for predicted in (False, True):
        everything = pareto(full_record, predicted=predicted).panels[0]
        marked = drawn(everything, "point")
        shown = {index for record in marked if (index := record.get("point")) is not None}
        hollow = {record["point"] for record in drawn(everything, "point", filled=False)}
        untimed_points = {index for index, point in enumerate(full_record.points) if isinstance(point, UntimedPoint)}
        timed_points = {index for index, point in enumerate(full_record.points) if isinstance(point, TimedPoint)}
        assert hollow == (untimed_points if predicted else set())
        assert shown - hollow == timed_points
        rims = [record for record in marked if record.get("state") == "chosen"]
        assert len(rims) == sum(point.chosen is not None for point in full_record.points)


def heat_maps(summary: Summary, drafter: str) -> list[list[Row]]:
    """The cells of a drafter's two maps."""
    panels = present(bild.threshold_maps(summary)).panels
    return [drawn(panel, "rect", filled=None) for panel in panels if panel.to_dict()["title"].startswith(drafter)]


def test_the_threshold_map_sets_each_point_in_its_cell(full_record: Summary) -> None:
    quality, speedup = heat_maps(full_record, "unaligned")
    assert {cell["y"] for cell in quality} == {"1", "2", "3", "5", "∞"}
    cells = {(cell["x"], cell["y"]): cell for cell in speedup}
    assert len(cells) == len(speedup) == len(quality) == 30
    for point in points(full_record, "unaligned", "bild"):
        if point.settings["max_draft"] == 12:  # of another grid
            continue
        rollback = f"{float(point.settings['rollback_threshold'] or 0):g}".replace("inf", "∞")
        cell = cells[f"{point.settings['fallback_threshold']:g}", rollback]
        assert cell["difference"] == pytest.approx(point.quality_difference)
        assert cell["measured"] is isinstance(point, TimedPoint)
        expected = point.speedup if point.speedup is not None else point.predicted and point.predicted.speedup
        assert cell["speedup"] == pytest.approx(expected)


def test_a_heat_map_is_even_about_vanilla(full_record: Summary) -> None:
    for panel in present(bild.threshold_maps(full_record)).panels:
        layer, cells = next(layers(panel))
        low, middle, high = layer["encoding"]["color"]["scale"]["domain"]
        field, middle_expected = ("speedup", 1.0) if "speed-up" in panel.to_dict()["title"] else ("difference", 0.0)
        assert middle == middle_expected and high - middle == pytest.approx(middle - low)
        assert high - middle == pytest.approx(max(abs(cell[field] - middle) for cell in cells))


def test_a_point_that_behaves_like_a_timed_one_has_its_speed(full_record: Summary) -> None:
    timed = next(point for point in points(full_record, "unaligned", "bild") if isinstance(point, TimedPoint))
    values = {field.name: getattr(timed, field.name) for field in dataclasses.fields(UntimedPoint)}
    settings = {**timed.settings, "rollback_threshold": 9.0}
    twin = UntimedPoint(**{**values, "timed": False, "speedup": None, "same_as": timed.settings, "settings": settings})
    summary = dataclasses.replace(full_record, points=[*full_record.points, twin])
    (cell,) = [cell for cell in heat_maps(summary, "unaligned")[1] if cell["y"] == "9"]
    assert (cell["speedup"], cell["measured"]) == (timed.speedup, True)


def test_the_oracle_curve_is_over_the_share_of_replaced_tokens(full_record: Summary) -> None:
    (panel,) = present(bild.oracle_curve(full_record)).panels
    marks = drawn(panel, "point")
    for drafter in ("aligned", "unaligned"):
        own = points(full_record, drafter, "bild_oracle")
        shares = [100 * point.counts.rollbacks / point.counts.tokens for point in own]
        assert [mark["x"] for mark in marks if mark["series"] == drafter] == pytest.approx(shares, abs=1e-4)
        band = [(mark["low"], mark["high"]) for mark in drawn(panel, "area") if mark["series"] == drafter]
        assert band == [pytest.approx(point.quality_interval) for point in own] and len(own) == 4


def test_ablations_keep_the_policies_apart(full_record: Summary) -> None:
    figure = present(bild.ablations(full_record))
    assert [panel.to_dict()["title"] for panel in figure.panels] == ["aligned", "unaligned"]
    for panel in figure.panels:
        kinds: dict[str, set[tuple[bool, bool]]] = {}
        for record in drawn(panel, "point"):
            settings = full_record.points[record["point"]].settings
            off = (settings["fallback_threshold"] == 0, settings["rollback_threshold"] == "inf")
            kinds.setdefault(record["series"], set()).add(off)
        assert kinds["BiLD"] == {(False, False)} and kinds["without rollback"] == {(False, True)}
        assert {off[0] for off in kinds["without fallback"]} == {True}


def test_rejection_is_of_the_judged_tokens(full_record: Summary) -> None:
    rejected, calls = present(acceptance.cascade_curves(full_record)).panels[:2]
    shares = [record["x"] for record in drawn(rejected, "point") if record["series"] == "speculative"]
    # Speculative decoding stops at the first token that it rejects, so 9 of 10 verified tokens stay whatever the window.
    assert shares == pytest.approx([10, 10, 10], abs=0.5)
    assert "token cascade" not in {record["series"] for record in drawn(rejected, "point")}, "it verifies nothing"
    assert {"token cascade", "speculative cascade [opt]"} <= {record["series"] for record in drawn(calls, "point")}


def test_a_curve_changes_nothing_but_alpha(full_record: Summary) -> None:
    point = points(full_record, "aligned", "speculative_cascade")[0]
    other = dataclasses.replace(point, settings={**point.settings, "draft_length": 9}, quality=50.0)
    summary = dataclasses.replace(full_record, points=[*full_record.points, other])
    marks = drawn(present(acceptance.cascade_curves(summary)).panels[1], "point")
    own = [record["curve"] for record in marks if record["series"] == "speculative cascade [chow]"]
    assert sorted(own.count(curve) for curve in set(own)) == [1, 4]


def test_the_share_of_faster_examples_is_counted(sweeps: Sweeps) -> None:
    chosen = next(row for row in sweeps["aligned"] if row["split"] == "test" and row["method"] == "bild")
    chosen["latency_ms"], chosen["vanilla_latency_ms"] = [5.0, 40.0, 2.0, 9.0], [10.0, 30.0, 10.0, 10.0]
    rows = {drafter: records(rows) for drafter, rows in sweeps.items()}
    figure = present(speed.latency_scatter(summary_record("bleu", sweeps), rows))
    panel = figure.panels[0]
    assert panel.to_dict()["title"]["text"] == ["aligned, BiLD (test)", "75% of 4 examples faster"] and figure.square
    marks = drawn(panel, "point")
    assert [mark["x"] for mark in marks] == chosen["vanilla_latency_ms"]
    assert [mark["y"] for mark in marks] == chosen["latency_ms"] and "2.00×" in marks[0]["text"]


def test_shares_of_drafts_add_up_to_all_drafts(full_record: Summary) -> None:
    histogram, positions = present(acceptance.accepted_lengths(full_record)).panels
    names = {bar["series"] for bar in drawn(histogram, "bar")}
    assert names == {f"{method}, {drafter}" for method in ("BiLD", "speculative") for drafter in ("aligned", "unaligned")}
    for name in names:
        assert sum(bar["y"] for bar in drawn(histogram, "bar") if bar["series"] == name) == pytest.approx(100, abs=0.01)
    first = [mark["y"] for mark in drawn(positions, "point") if mark["series"] == "speculative, aligned"]
    assert first == pytest.approx([90] * len(first), abs=1) and len(first) > 2


def test_parts_of_the_time_add_up(full_record: Summary) -> None:
    (panel,) = present(speed.time_parts(full_record)).panels
    bars, totals = drawn(panel, "bar"), [record for record in drawn(panel, "text") if "total" in record]
    assert [bar["series"] for bar in bars[:3]] == ["encoders", "small", "large"]
    order = next(layer for layer, _ in layers(panel))["encoding"]["y"]["sort"]
    assert order[:3] == ["vanilla large", "vanilla small|unaligned", "vanilla small|aligned"] and len(order) == 8
    expected = sum((full_record.vanilla.large.time_ms or {}).values())
    assert totals[0]["total"] == pytest.approx(expected)
    assert sum(bar["x"] for bar in bars if bar["y"] == "vanilla large") == pytest.approx(expected)


def test_negative_rests_of_time_lie_left_of_zero(full_record: Summary) -> None:
    times = {**(full_record.vanilla.large.time_ms or {}), "other": -1.0}
    large = dataclasses.replace(full_record.vanilla.large, time_ms=times)
    vanilla = dataclasses.replace(full_record.vanilla, large=large)
    (panel,) = present(speed.time_parts(dataclasses.replace(full_record, vanilla=vanilla))).panels
    assert next(layer for layer, _ in layers(panel))["encoding"]["x"]["stack"] == "zero"
    total = next(record for record in drawn(panel, "text") if record["y"] == "vanilla large")
    assert (total["x"] - total["total"]) == pytest.approx(1.0), "the sum stands behind the positive parts"


def test_theory_and_measurement_are_named(full_record: Summary) -> None:
    (panel,) = present(speed.operations_bars(full_record)).panels
    bars = drawn(panel, "bar")
    *theory, measured = next(layer for layer, _ in layers(panel))["encoding"]["x"]["sort"]
    assert all(name.endswith("(theory)") for name in theory) and measured == "speed-up|(measured)"
    own = [bar["y"] for bar in bars if ", aligned, " in bar["series"]]
    assert own[1] == pytest.approx(1.15 / own[2]), "bytes are operations over intensity"
    without = [dataclasses.replace(point, operations=None) for point in full_record.points]
    assert speed.operations_bars(dataclasses.replace(full_record, points=without)) is None


def test_the_random_sample_stands_apart(full_record: Summary) -> None:
    figure = present(speed.prediction(full_record))
    marks = [record for layer, found in layers(figure.panels[0]) if layer["mark"]["type"] == "rule" for record in found]
    sample = [mark for mark in marks if mark["kind"] == "random sample" and mark["series"] == "aligned"]
    expected = [point for point in full_record.timed_points("aligned") if point.why == "sample" and point.predicted]
    assert [mark["y"] for mark in sample] == [point.speedup for point in expected]
    assert [mark["x"] for mark in sample] == [point.predicted and point.predicted.speedup for point in expected]
    assert {mark["kind"] for mark in marks} == {"random sample", "timed by plan"}
    assert "aligned 2.1% on average and 4.6% at worst over 10 points" in figure.caption


def test_the_page_shares_data_between_panels(full_record: Summary) -> None:
    figure, datasets = present(bild.threshold_maps(full_record)), dict[str, Any]()
    specs = page_specs(figure, datasets)
    names = {(layer.get("data") or spec["data"])["name"] for spec in specs for layer in spec["layer"]}
    assert len(specs) == 4 and names <= datasets.keys() and len(names) == 2
    assert not any({"config", "datasets", "width", "height"} & spec.keys() for spec in specs)
    whole = picture_spec(figure)
    assert whole["resolve"]["scale"]["color"] == "independent" and len(whole["concat"]) == 4


def test_dvc_draws_the_frontier_by_the_template_of_the_repository() -> None:
    assert PATH.read_text(encoding="utf-8") == frontier_template(), f"python -m {frontier_template.__module__} writes it"
    assert all(f"<DVC_METRIC_{name}>" in frontier_template() for name in ("DATA", "X", "Y"))
    assert "template: frontier" in Path("dvc.yaml").read_text(encoding="utf-8")
