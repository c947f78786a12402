"""Grids and presets: every combination of values once, and the ranges of the papers."""

import dataclasses
import json

import pytest

from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import CASCADE_RULES
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint, expand, expand_entry, preset_values


def test_an_entry_expands_to_every_combination() -> None:
    grid = GridSettings(method="bild", values={"fallback_threshold": [0.5, 0.6], "rollback_threshold": [1, float("inf")]})
    assert list(expand_entry(grid)) == [
        SweepPoint("bild", BildSettings(fallback_threshold=fallback, rollback_threshold=rollback))
        for fallback in (0.5, 0.6)
        for rollback in (1.0, float("inf"))
    ]


def test_points_of_two_entries_are_expanded_once_and_in_order() -> None:
    grid = [
        GridSettings(method="speculative", values={"draft_length": [5, 3]}),
        GridSettings(method="speculative", preset="block_sizes"),
        GridSettings(method="bild", values={"rollback_threshold": [2]}),
        GridSettings(method="bild", values={"rollback_threshold": [2.0], "max_draft": [10]}),
    ]
    assert expand(grid) == [
        SweepPoint("speculative", SpeculativeSettings(draft_length=5)),
        SweepPoint("speculative", SpeculativeSettings(draft_length=3)),
        SweepPoint("speculative", SpeculativeSettings(draft_length=7)),
        SweepPoint("bild", BildSettings(rollback_threshold=2.0)),
    ]


def test_equal_settings_of_two_methods_are_two_points() -> None:
    grid = [GridSettings(method="vanilla_large"), GridSettings(method="vanilla_small")]
    assert tuple(expand(grid)) == BASELINES
    assert SweepPoint("vanilla_large", VanillaSettings()) == VANILLA


def test_a_row_names_a_point_by_plain_values() -> None:
    settings = SweepPoint("bild", BildSettings(rollback_threshold=float("inf"), max_draft=4)).plain_settings
    assert json.loads(json.dumps(settings, allow_nan=False)) == settings
    assert settings == {**dataclasses.asdict(BildSettings(max_draft=4)), "rollback_threshold": "inf"}


PRESETS = {name: method.presets for name, method in METHODS.items() if method.presets}
NAMES = [(method, name) for method, presets in PRESETS.items() for name in presets]


def test_every_preset_makes_points_of_its_method() -> None:
    for method, name in NAMES:
        found = list(expand_entry(GridSettings(method=method, preset=name)))
        assert len(set(found)) == len(found) > 1, (method, name)
        assert {(point.method, type(point.settings)) for point in found} == {(method, METHODS[method].settings)}


@pytest.mark.parametrize(
    ("name", "fallback", "rollback", "max_draft"),
    [
        ("translation", (0.5, 0.9), (1, 10), (10, 10)),
        ("summarization", (0.2, 0.6), (2, 6), (10, 10)),
        ("early_exit", (0.2, 0.8), (0.5, 1.5), (10, 10)),
        ("v1", (0.4, 0.8), (1, 4), (10, 10)),
        ("language_modelling", (0.01, 0.2), (float("inf"), float("inf")), (10, 10)),
        ("no_fallback", (0, 0), (2, 10), (3, 10)),
        ("no_rollback", (0.2, 0.9), (float("inf"), float("inf")), (10, 10)),
    ],
)
def test_ranges_end_where_the_paper_says(
    name: str, fallback: tuple[float, float], rollback: tuple[float, float], max_draft: tuple[int, int]
) -> None:
    values = PRESETS["bild"][name].values
    ends = [(min(values[key]), max(values[key])) for key in ("fallback_threshold", "rollback_threshold", "max_draft")]
    assert ends == [fallback, rollback, max_draft]


def test_every_deferral_rule_has_a_preset() -> None:
    assert tuple(PRESETS["speculative_cascade"]) == CASCADE_RULES


def test_an_entry_replaces_values_of_its_preset_and_adds_others() -> None:
    entry = GridSettings(method="bild", preset="v1", values={"rollback_threshold": [2.5], "drafter": ["copy", "bigram"]})
    values = preset_values(entry)
    assert values["rollback_threshold"] == [2.5]
    assert values["fallback_threshold"] == (0.4, 0.5, 0.6, 0.7, 0.8)
    assert len(list(expand_entry(entry))) == 5 * 1 * 2
