"""Presets: each makes points of its method, has the range of its paper, and accepts additional values."""

from __future__ import annotations

import pytest

from tasks.decoding.methods.cascades import CASCADE_RULES
from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import expand_entry
from tasks.evaluation.sweep.presets import preset_values, presets_table

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


def test_sequential_cascades_are_those_of_the_paper() -> None:
    # Equation 1 thresholds the probability of the whole answer; Table 3 has two rules of each kind.
    assert PRESETS["sequence_cascade"]["paper"].values["confidence"] == ("sum",)
    assert [one.values["rule"] for one in PRESETS["token_cascade"].values()] == [("chow",), ("chow_log",)]
    assert [one.values["rule"] for one in PRESETS["diff_oracle"].values()] == [("diff",), ("diff_log",)]


def test_an_entry_replaces_values_of_its_preset_and_adds_others() -> None:
    entry = GridSettings(method="bild", preset="v1", values={"rollback_threshold": [2.5], "drafter": ["copy", "bigram"]})
    values = preset_values(entry)
    assert values["rollback_threshold"] == [2.5]
    assert values["fallback_threshold"] == (0.4, 0.5, 0.6, 0.7, 0.8)
    assert len(list(expand_entry(entry))) == 5 * 1 * 2


@pytest.mark.parametrize(
    ("method", "preset", "facts"),
    [
        ("bild", "poetry", ("bild", "'poetry'", "translation, summarization, early_exit, v1")),
        ("beam_large", "paper", ("beam_large", "'paper'", "give values")),
        ("bold", "v1", ("unknown method 'bold'", "vanilla_large")),
    ],
)
def test_an_unknown_preset_is_refused_with_those_of_the_method(method: str, preset: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        preset_values(GridSettings(method=method, preset=preset))
    assert all(fact in str(caught.value) for fact in facts)
    assert "\n" not in str(caught.value)


def test_the_table_counts_the_points_of_every_preset() -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in presets_table().splitlines()[2:]]
    counts = {(method, name): int(count) for method, name, count, _, _ in rows}
    assert counts == {
        (method, name): len(list(expand_entry(GridSettings(method=method, preset=name)))) for method, name in NAMES
    }
