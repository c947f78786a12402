"""What the registry of models says of a recommended pair: where from, how good, how fast, on which processor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.evaluation.report.registered_pair import registered_pair
from tasks.models.settings import TextSettings
from tasks.tracking import RegisteredModel

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
    assert found.description.splitlines() == [
        "The headline.",
        "",
        "- operating point: BiLD (α_FB 0.5 α_RB 2 ≤ 10), with the aligned drafter",
        "- BLEU on test: 76.41 [75.00, 77.50]; difference from the large model alone: -0.19 [-0.44, +0.08]",
        "- speed-up over the large model alone on test: 1.45× [1.34, 1.56]",
        "- processor: a processor",
    ]
    assert found.tags == {
        "task": "toy",
        "method": "bild",
        "settings": "α_FB 0.5 α_RB 2 ≤ 10",
        "drafter": "aligned",
        "metric": "bleu",
        "processor": "a processor",
        "split": "test",
        "quality": "76.41 [75.00, 77.50]",
        "quality_difference": "-0.19 [-0.44, +0.08]",
        "speedup": "1.45× [1.34, 1.56]",
    }
    assert found.metadata["operating_point"]["settings"]["fallback_threshold"] == 0.5
    assert found.metadata["measured"]["test"]["speedup_interval"] == [1.34, 1.56]
    assert "accepted" not in found.metadata["measured"]


def test_without_a_test_split_the_numbers_are_those_of_validation(tmp_path: Path) -> None:
    found = registered(tmp_path, {**MEASURED, "test": None})
    assert (found.tags["split"], found.tags["speedup"]) == ("validation", "9.00× [1.34, 1.56]")
    assert "on validation: 9.00×" in found.description


@pytest.mark.parametrize("split", ["test", "validation"])
def test_the_large_model_alone_has_its_own_numbers(tmp_path: Path, split: str) -> None:
    measured = {**copy.deepcopy(MEASURED), "validation": None, "test": None}
    if split == "validation":
        measured["vanilla"]["test"] = None
    found = registered(tmp_path, measured, "vanilla_large")
    assert (found.tags["split"], found.tags["quality"]) == (split, "76.60" if split == "test" else "70.00")
    assert "settings" not in found.tags and "speed-up" not in found.description
