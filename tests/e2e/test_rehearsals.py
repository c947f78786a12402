"""The papers' experiments run through every stage, on models of their classes: one in forked processes, all as by hand."""

import json
from pathlib import Path

import pytest

from tasks.evaluation.scoring.metrics import PROGRAMS
from tasks.presets import VARIANTS, variant_of
from tests.e2e.conftest import run_stages
from tests.rehearse import make_project, rehearse
from tests.sandbox import sandboxed

QUICK = "xsum-bild"
"""It starts from published checkpoints. A decoder-only pair is trained and measured in integration/test_causal_pair.py."""
ALL = [pytest.param(one.name, marks=sandboxed if one.metric == PROGRAMS else ()) for one in VARIANTS]


def check(name: str, folder: Path) -> None:
    """The report of a rehearsed variant says what it is worth, and holds every method of the grid."""
    variant = variant_of(name)
    summary = json.loads((folder / "results" / name / "summary.json").read_text(encoding="utf-8"))
    assert summary["verdict"]["warnings"][0].endswith("Its numbers mean nothing.")
    assert not summary["failed"]
    assert {point["method"] for point in summary["points"]} >= {entry["method"] for entry in variant.grid}
    page = (folder / "results" / name / "report.html").read_text(encoding="utf-8")
    assert ("None: the unaligned drafter is the small model as it is" in page) == (variant.align.get("unaligned") == "as_it_is")


def test_an_experiment_is_rehearsed(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    make_project(variant_of(QUICK), folder)
    run_stages(folder)
    check(QUICK, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_experiment_is_rehearsed_with_prefect_and_mlflow(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "rehearsal"
    assert rehearse(variant_of(name), folder) == 0
    check(name, folder)
    assert list((folder / "mlruns").rglob("*")) or (folder / "mlflow.db").is_file()
