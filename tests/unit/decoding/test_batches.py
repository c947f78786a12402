"""Decoded side by side, each example comes out as it does alone: tokens and counts."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.decoding.batches import decode_all
from tasks.decoding.registry import METHODS, Request, decode
from tasks.decoding.settings import METHOD_SETTINGS, SamplingSettings, SpeculativeSettings, VanillaSettings
from tests.methods import SETTINGS, with_samplings
from tests.toys import Toys, toy_sources

SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)
CASES = [
    (name, settings, sampling)
    for name, sampling in with_samplings(SETTINGS, SamplingSettings(), SAMPLED)
    for settings in SETTINGS[name]
]


@pytest.mark.parametrize(("name", "settings", "sampling"), CASES)
def test_batched_equals_one_at_a_time(toys: Toys, name: str, settings: Any, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(20, seed=9), Request(12, sampling, seed=2)
    alone = [decode(name, settings, toys.cached, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({tuple(one.tokens) for one in alone}) > 8
    assert len({len(one.tokens) for one in alone}) > 2
    for batch_size in (7, 20):
        assert decode_all(name, settings, toys.cached, sources, request, batch_size) == alone


def test_draws_are_keyed_by_the_example_not_by_its_place(toys: Toys) -> None:
    sources, request = toy_sources(6, seed=1), Request(12, SAMPLED, seed=0)
    settings = SpeculativeSettings(draft_length=3)
    whole = decode("speculative", settings, toys.cached, sources, request)
    order = [4, 1, 5]
    some = decode("speculative", settings, toys.cached, [sources[number] for number in order], request, order)
    assert some == [whole[number] for number in order]
    twins = decode("speculative", settings, toys.cached, [sources[0]] * 4, request)
    assert len({tuple(one.tokens) for one in twins}) > 1


def test_a_seed_repeats_and_another_differs(toys: Toys) -> None:
    sources, settings = toy_sources(6, seed=1), SpeculativeSettings(draft_length=3)
    runs = [decode("speculative", settings, toys.cached, sources, Request(12, SAMPLED, seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_bar_is_shown_where_it_has_a_label(toys: Toys, capsys: pytest.CaptureFixture[str]) -> None:
    for label in (None, "decoding"):
        decode_all("vanilla_small", VanillaSettings(), toys.cached, toy_sources(2), Request(3), 2, label)
        assert ("decoding: 100%" in capsys.readouterr().err) == (label is not None)


def test_every_method_has_settings_that_need_no_torch() -> None:
    assert METHOD_SETTINGS.keys() == METHODS.keys() == SETTINGS.keys()
    for name, several in SETTINGS.items():
        assert {type(settings) for settings in several} == {METHOD_SETTINGS[name]}
        assert METHODS[name].name == name
