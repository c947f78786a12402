"""What a chart draws, read from its specification."""

from collections.abc import Iterator
from typing import Any

from tasks.evaluation.report.charts import Figure, Panel
from tasks.evaluation.results.rows import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import Summary

Row = dict[str, Any]


def present(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def spec_of(panel: Panel) -> Row:
    """Its specification, which `test_figures` validates once for every panel: that takes longer than all else."""
    return panel.to_dict(validate=False)


def layers(panel: Panel) -> Iterator[tuple[Row, list[Row]]]:
    """Each layer with the records that its filters leave."""
    spec = spec_of(panel)
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
    found = [layer.get("encoding", {}) for layer in spec_of(panel)["layer"]]
    return [encoding[name] for encoding in found for name in names if name in encoding]


def points(summary: Summary, arm: str, method: str) -> list[TimedPoint | UntimedPoint]:
    return [point for point in summary.points if (point.arm, point.method) == (arm, method)]
