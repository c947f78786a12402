"""What a grid stands for."""

from __future__ import annotations

import pytest

from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.grid import expand, expand_entry


def test_an_entry_is_every_combination() -> None:
    grid = GridSettings(method="bild", values={"fallback_threshold": [0.5, 0.6], "rollback_threshold": [1, float("inf")]})
    assert list(expand_entry(grid)) == [
        BildSettings(fallback_threshold=fallback, rollback_threshold=rollback)
        for fallback in (0.5, 0.6)
        for rollback in (1.0, float("inf"))
    ]


def test_what_two_entries_have_in_common_is_there_once_and_in_order() -> None:
    grid = [
        GridSettings(method="speculative", values={"draft_length": [5, 3]}),
        GridSettings(method="speculative", preset="block_sizes"),
        GridSettings(method="bild", values={"rollback_threshold": [2]}),
        GridSettings(method="bild", values={"rollback_threshold": [2.0], "max_draft": [10]}),
    ]
    assert expand(grid) == [
        ("speculative", SpeculativeSettings(draft_length=5)),
        ("speculative", SpeculativeSettings(draft_length=3)),
        ("speculative", SpeculativeSettings(draft_length=7)),
        ("bild", BildSettings(rollback_threshold=2.0)),
    ]


def test_equal_settings_of_two_methods_are_two_points() -> None:
    grid = [GridSettings(method="vanilla_large"), GridSettings(method="vanilla_small")]
    assert expand(grid) == [("vanilla_large", VanillaSettings()), ("vanilla_small", VanillaSettings())]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fallback_threshold": []}, "fallback_threshold has no values, which makes no point"),
        ({"fallback_threshold": [2]}, "fallback_threshold is 2.0; it must be at most 1"),
        ({"fallback": [0.5]}, "unknown setting fallback"),
        ({"max_draft": ["many"]}, "max_draft: Input should be a valid integer"),
    ],
)
def test_a_mistake_is_named_in_one_line(values: dict[str, list[object]], words: str) -> None:
    with pytest.raises(InputError) as caught:
        expand([GridSettings(method="bild", values=values)])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
