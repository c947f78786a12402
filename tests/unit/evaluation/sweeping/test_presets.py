"""The papers' ranges: every one makes points, and what is given beside it counts."""

from __future__ import annotations

import pytest

from tasks.decoding.settings import CASCADE_RULES, METHOD_SETTINGS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.grid import expand_entry
from tasks.evaluation.sweeping.presets import PRESETS, preset_values, presets_table

NAMES = [(method, name) for method, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(("method", "name"), NAMES)
def test_every_preset_makes_points_of_its_method(method: str, name: str) -> None:
    found = list(expand_entry(GridSettings(method=method, preset=name)))
    assert len(set(found)) == len(found) > 1
    assert {type(one) for one in found} == {METHOD_SETTINGS[method]}


@pytest.mark.parametrize(
    ("name", "fallback", "rollback", "longest"),
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
    name: str, fallback: tuple[float, float], rollback: tuple[float, float], longest: tuple[int, int]
) -> None:
    values = PRESETS["bild"][name].values
    ends = [(min(values[key]), max(values[key])) for key in ("fallback_threshold", "rollback_threshold", "max_draft")]
    assert ends == [fallback, rollback, longest]


def test_every_deferral_rule_has_a_preset_within_its_bounds() -> None:
    assert tuple(PRESETS["speculative_cascade"]) == CASCADE_RULES


def test_values_replace_the_presets_or_stand_beside_them() -> None:
    entry = GridSettings(method="bild", preset="v1", values={"rollback_threshold": [2.5], "drafter": ["copy", "bigram"]})
    values = preset_values(entry)
    assert values["rollback_threshold"] == [2.5]
    assert values["fallback_threshold"] == (0.4, 0.5, 0.6, 0.7, 0.8)
    assert len(list(expand_entry(entry))) == 5 * 1 * 2


@pytest.mark.parametrize(
    ("method", "preset", "words"),
    [
        ("bild", "poetry", "bild has no preset 'poetry'; it has translation, summarization, early_exit, v1"),
        ("beam_large", "paper", "beam_large has no preset 'paper'; it has none: give values"),
        ("bold", "v1", "unknown method 'bold'; known are vanilla_large"),
    ],
)
def test_an_unknown_preset_is_refused_with_those_of_the_method(method: str, preset: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        preset_values(GridSettings(method=method, preset=preset))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_table_counts_the_points_of_every_preset() -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in presets_table().splitlines()[2:]]
    counts = {(method, name): int(count) for method, name, count, _, _ in rows}
    assert counts == {
        (method, name): len(list(expand_entry(GridSettings(method=method, preset=name)))) for method, name in NAMES
    }
