"""The recommended pair as a folder, and as the model that MLflow registers."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.evaluation.report.export import accepted, measured, registered_pair
from tasks.evaluation.results.rows import DecodingCounts
from tasks.evaluation.results.summary import Summary
from tasks.models.settings import TextSettings
from tasks.tracking import RegisteredModel
from tests.finished import finished, loaded


@pytest.fixture
def summary() -> Summary:
    """Point 4 is recommended: BiLD with the aligned drafter, 59.5 points at 1.6 times vanilla's speed."""
    values, rows = finished()
    values["verdict"] = {"text": "", "changes": [], "point": 4}
    return loaded("toy", values, rows).summary


def counted(summary: Summary, *, lossless: bool) -> Summary:
    """The summary with counts in every point: 6 of 10 drafted tokens are kept."""
    counts = DecodingCounts(tokens=12, large_calls=5, drafted=10, accepted=6)
    points = [dataclasses.replace(point, counts=counts, lossless=lossless) for point in summary.points]
    return dataclasses.replace(summary, points=points)


def test_numbers_of_both_splits_stand_beside_vanillas(summary: Summary) -> None:
    found = measured(summary)
    best = summary.recommended
    assert found["metric"] == "bleu"
    assert found["validation"]["speedup"] == best.speedup
    assert found["validation"]["speedup_interval"] == list(best.speedup_interval or ())
    assert found["vanilla"]["validation"]["quality"] == summary.vanilla.large.quality
    assert (found["test"] is None) == (best.test is None)
    # Where vanilla is recommended there is no point beside it.
    bare = dataclasses.replace(summary, recommendation=dataclasses.replace(summary.recommendation, point=None))
    found = measured(bare)
    assert found["validation"] is None and found["vanilla"]["validation"]["quality"] == summary.vanilla.large.quality


def test_only_the_recommended_point_counts_among_lossy_ones(summary: Summary) -> None:
    [line] = accepted(counted(summary, lossless=False), "aligned")
    assert line["settings"]["fallback_threshold"] == 0.7
    assert line["accepted_share"] == pytest.approx(0.6)
    assert (line["drafted"], line["accepted"], line["split"]) == (10, 6, "validation")


def test_every_lossless_point_of_the_drafter_counts(summary: Summary) -> None:
    ours = [point for point in summary.points if point.arm == "aligned"]
    assert len(list(accepted(counted(summary, lossless=True), "aligned"))) == len(ours) > 1
    assert not list(accepted(counted(summary, lossless=True), "another"))


TEST: dict[str, Any] = {
    "quality": 76.41,
    "quality_interval": [75.0, 77.5],
    "quality_difference": -0.19,
    "quality_difference_interval": [-0.44, 0.08],
    "speedup": 1.45,
    "speedup_interval": [1.34, 1.56],
}


MEASURED: dict[str, Any] = {
    "metric": "bleu",
    "processor": "a processor",
    "validation": {**TEST, "speedup": 9.0},
    "test": TEST,
    "vanilla": {"validation": {"quality": 70.0}, "test": {"quality": 76.6}},
    "accepted": [{"method": "speculative"}],
}


BILD = {"fallback_threshold": 0.5, "rollback_threshold": 2.0}


def registered(folder: Path, measured: dict[str, Any], method: str = "bild") -> RegisteredModel:
    (folder / "model").mkdir()
    point = configure_method(method, BILD if method == "bild" else {})
    manifest = PairManifest(point, TextSettings(), "toy", "The headline.", measured, {"drafter": "aligned", "seed": 1})
    return registered_pair(write_pair_folder(folder / "pair", manifest, folder / "model", folder / "model", ["a text"]))


def test_the_verdict_is_the_description_and_its_numbers_are_tags(tmp_path: Path) -> None:
    found = registered(tmp_path, MEASURED)
    assert (found.name, found.path, found.examples) == ("draftline-toy", str(tmp_path / "pair"), ["a text"])
    numbers = {
        "task": "toy",
        "method": "bild",
        "settings": "α_FB 0.5 α_RB 2 ≤ 10",
        "arm": "aligned",
        "metric": "bleu",
        "processor": "a processor",
        "split": "test",
        "quality": "76.41 [75.00, 77.50]",
        "quality_difference": "-0.19 [-0.44, +0.08]",
        "speedup": "1.45× [1.34, 1.56]",
    }
    assert found.tags == numbers
    listed = [f"- {name.replace('_', ' ')}: {value}" for name, value in numbers.items()]
    assert found.description.splitlines() == ["The headline.", "", *listed]
    assert found.metadata["operating_point"]["settings"]["fallback_threshold"] == 0.5
    assert found.metadata["measured"]["test"]["speedup_interval"] == [1.34, 1.56]
    assert "accepted" not in found.metadata["measured"]


def test_without_a_test_split_the_numbers_are_those_of_validation(tmp_path: Path) -> None:
    found = registered(tmp_path, {**MEASURED, "test": None})
    assert (found.tags["split"], found.tags["speedup"]) == ("validation", "9.00× [1.34, 1.56]")
    assert "- split: validation" in found.description and "- speedup: 9.00×" in found.description


@pytest.mark.parametrize("split", ["test", "validation"])
def test_the_large_model_alone_has_its_own_numbers(tmp_path: Path, split: str) -> None:
    values = {**copy.deepcopy(MEASURED), "validation": None, "test": None}
    if split == "validation":
        values["vanilla"]["test"] = None
    found = registered(tmp_path, values, "vanilla_large")
    assert (found.tags["split"], found.tags["quality"]) == (split, "76.60" if split == "test" else "70.00")
    assert "settings" not in found.tags and "speedup" not in found.description
