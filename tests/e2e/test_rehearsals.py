"""The papers' experiments run through every stage, DVC, Prefect and MLflow, on models of their classes."""

import json
from pathlib import Path

import pytest

from tasks.presets import VARIANTS, variant_of
from tests.rehearse import rehearse

QUICK = ("xsum-bild",)
"""More of them would take `make test` beyond its ten minutes of processor time."""


def run(name: str, folder: Path) -> None:
    variant = variant_of(name)
    assert rehearse(variant, folder) == 0
    summary = json.loads((folder / "results" / name / "summary.json").read_text(encoding="utf-8"))
    assert summary["verdict"]["warnings"][0].endswith("Its numbers mean nothing.")
    assert {point["method"] for point in summary["points"]} >= {entry["method"] for entry in variant.grid}
    page = (folder / "results" / name / "report.html").read_text(encoding="utf-8")
    assert ("None: the unaligned drafter is the small model as it is" in page) == (variant.align.get("unaligned") == "as_it_is")
    assert list((folder / "mlruns").rglob("*")) or (folder / "mlflow.db").is_file()


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_is_rehearsed(name: str, tmp_path: Path) -> None:
    run(name, tmp_path / "rehearsal")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({one.name for one in VARIANTS} - set(QUICK)))
def test_every_experiment_is_rehearsed(name: str, tmp_path: Path) -> None:
    run(name, tmp_path / "rehearsal")
