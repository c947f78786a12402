"""A batch gives each example the tokens and counts that it has alone."""

import copy
from typing import Any

import pytest

from tasks import console
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.methods import GREEDY_ONLY, SETTINGS
from tests.toys import END, Toys, toy_sources

SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)
CASES = [(name, several[-1], SamplingSettings() if name in GREEDY_ONLY else SAMPLED) for name, several in SETTINGS.items()]
"""Greedy batches of all methods are compared with single rows in `runtimes/test_native`."""


@pytest.fixture(scope="module")
def pair(toys: Toys) -> Pair:
    """The toys with two more end tokens, so that the rows of a batch end at different lengths."""
    small, large = copy.deepcopy(toys.small), copy.deepcopy(toys.large)
    for model in (small, large):
        model.generation_config.eos_token_id = [END, 5, 9]
    return Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large"))


@pytest.mark.parametrize(("name", "settings", "sampling"), CASES)
def test_a_batch_equals_single_rows(pair: Pair, name: str, settings: Any, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(6, seed=9), Request(12, sampling, seed=2)
    alone = [decode(name, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({tuple(one.tokens) for one in alone}) > 3
    assert len({len(one.tokens) for one in alone}) > 2
    assert decode_all(name, settings, pair, sources, request, 4) == alone


def test_draws_are_keyed_by_the_example_not_by_its_row(toys: Toys) -> None:
    sources, request = toy_sources(6, seed=1), Request(12, SAMPLED, seed=0)
    settings = SpeculativeSettings(draft_length=3)
    whole = decode("speculative", settings, toys.cached, sources, request)
    order = [4, 1, 5]
    some = decode("speculative", settings, toys.cached, [sources[number] for number in order], request, order)
    assert some == [whole[number] for number in order]
    twins = decode("speculative", settings, toys.cached, [sources[0]] * 4, request)
    assert len({tuple(one.tokens) for one in twins}) > 1


def test_progress_is_shown_where_it_has_a_label(
    toys: Toys, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SHORT", 0.0)
    for label in (None, "decoding"):
        decode_all("vanilla_small", VanillaSettings(), toys.cached, toy_sources(2), Request(3), 2, label)
        assert ("decoding: 2 of 2 examples" in capsys.readouterr().err) == (label is not None)


def test_every_method_has_settings_that_need_no_torch() -> None:
    assert METHODS.keys() == SETTINGS.keys()
    for name, several in SETTINGS.items():
        assert {type(settings) for settings in several} == {METHODS[name].settings}
        assert METHODS[name].name == name
