"""What holds for every figure, and how figures are written."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tasks.evaluation.report.figures import all_figures, bild, speed
from tasks.evaluation.report.figures.dvc_template import PATH, frontier_template
from tasks.evaluation.report.figures.figure import Figure, page_specs, picture_spec, save
from tasks.evaluation.report.figures.pareto import pareto
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.results.summary import Summary
from tests.charts import channels, present
from tests.unit.evaluation.conftest import records, summary_record

Sweeps = dict[str, list[dict[str, Any]]]
Records = dict[str, list[SweepRow]]

NAMES = (
    "pareto",
    "everything",
    "thresholds",
    "ablations",
    "oracle",
    "deferrals",
    "cascades",
    "tokens",
    "windows",
    "speed",
    "latency",
    "acceptance",
    "time",
    "operations",
    "prediction",
)


@pytest.fixture(scope="module")
def figures(full_record: Summary, full_rows: Records) -> dict[str, Figure]:
    return all_figures(full_record, full_rows)


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
    alone = {arm: rows[:1] for arm, rows in sweeps.items()}
    figures = all_figures(summary_record("bleu", alone), {arm: records(rows) for arm, rows in alone.items()})
    assert list(figures) == ["pareto", "everything"]
    save(figures["pareto"], tmp_path / "alone.svg")
    assert "vanilla large" in (tmp_path / "alone.svg").read_text(encoding="utf-8")


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
