"""Expanding a grid into points, and naming its mistakes."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint, expand, expand_entry


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
    settings = SweepPoint("bild", BildSettings(rollback_threshold=float("inf"), max_draft=4)).row_settings
    assert json.loads(json.dumps(settings, allow_nan=False)) == settings
    assert settings == {**dataclasses.asdict(BildSettings(max_draft=4)), "rollback_threshold": "inf"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"fallback_threshold": []}, "fallback_threshold has no values"),
        ({"fallback_threshold": [2]}, "fallback_threshold is 2.0; it must be at most 1"),
        ({"fallback": [0.5]}, "unknown setting fallback"),
        ({"max_draft": ["many"]}, "max_draft: Input should be a valid integer"),
    ],
)
def test_a_mistake_is_named_in_one_line(values: dict[str, list[object]], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        expand([GridSettings(method="bild", values=values)])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
