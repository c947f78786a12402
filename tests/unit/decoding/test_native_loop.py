"""Two models in one call give what the loop gives: tokens, proposers and counts; what does not fit goes through the loop."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import BrokenLogitsError
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.native_loop import NativeSpeculativeLoop
from tasks.decoding.registry import Request, build_method, decode
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.loaded_model import REFERENCE, Runtime
from tasks.decoding.settings import (
    AdaptiveSettings,
    BildOracleSettings,
    BildSettings,
    ConfidentSettings,
    LenientSettings,
    SamplingSettings,
    SpeculativeCascadeSettings,
    SpeculativeSettings,
    TokenCascadeSettings,
)
from tests.architectures import FAST, models, pair_of
from tests.toys import VOCABULARY, toy_sources

SOURCES = toy_sources(24)
FITTING: list[tuple[str, Any]] = [
    ("bild", BildSettings()),
    ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=0.0, max_draft=1)),
    ("bild", BildSettings(fallback_threshold=0.5, rollback_threshold=1.0, max_draft=3, large_first=True)),
    ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=3.0, keep_agreed=True)),
    ("bild", BildSettings(fallback_threshold=1.0)),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=math.inf)),
    ("speculative", SpeculativeSettings(draft_length=1)),
    ("speculative", SpeculativeSettings(draft_length=7)),
    ("speculative_confident", ConfidentSettings(max_draft=6, stop_below=0.4)),
    ("token_cascade", TokenCascadeSettings(deferral_cost=0.5, max_draft=4)),
]


@pytest.mark.parametrize(("method", "settings"), FITTING)
@pytest.mark.parametrize("name", FAST)
def test_a_row_is_what_the_loop_makes_of_it(name: str, method: str, settings: Any) -> None:
    pair = pair_of(name)
    for limit in (1, 2, 3, 9, 20):
        duet = build_method(method, settings, pair, Request(limit))
        assert isinstance(duet, NativeSpeculativeLoop)
        for example, source in enumerate(SOURCES):
            assert duet.run([source], [example], limit) == duet.method.run([source], [example], limit)


def test_rows_side_by_side_go_through_the_loop() -> None:
    duet = build_method("bild", BildSettings(), pair_of("t5"), Request(9))
    together = duet.run(SOURCES, range(len(SOURCES)), 9)
    assert together == [duet.run([source], [example], 9)[0] for example, source in enumerate(SOURCES)]


@pytest.mark.parametrize(
    ("method", "settings", "sampling"),
    [
        ("bild", BildSettings(), SamplingSettings(temperature=1.0)),
        ("bild", BildSettings(drafter="copy"), SamplingSettings()),
        ("bild_oracle", BildOracleSettings(), SamplingSettings()),
        ("speculative_lenient", LenientSettings(lenience=0.5), SamplingSettings()),
        ("speculative_cascade", SpeculativeCascadeSettings(), SamplingSettings()),
        ("speculative_adaptive", AdaptiveSettings(cost_ratio=0.2), SamplingSettings()),
    ],
)
def test_what_is_not_two_numbers_goes_through_the_loop(method: str, settings: Any, sampling: SamplingSettings) -> None:
    assert isinstance(build_method(method, settings, pair_of("t5"), Request(9, sampling)), SpeculativeLoop)


def test_other_runtimes_and_unequal_vocabularies_go_through_the_loop() -> None:
    small, large = models("t5")
    assert isinstance(build_method("bild", BildSettings(), pair_of("t5", REFERENCE), Request(9)), SpeculativeLoop)
    cut = open_pair(small, large, VOCABULARY - 3)
    assert isinstance(build_method("bild", BildSettings(), cut, Request(9)), NativeSpeculativeLoop)
    cut.small.vocabulary -= 1  # type: ignore[misc]
    assert isinstance(build_method("bild", BildSettings(), cut, Request(9)), SpeculativeLoop)


@pytest.mark.parametrize("broken", [0, 1])
def test_broken_logits_are_named_as_by_the_loop(broken: int) -> None:
    small, large = (copy.deepcopy(model) for model in models("t5"))
    with torch.no_grad():
        (small, large)[broken].lm_head.weight[5] = math.nan
    opened = open_pair(small, large, runtime=Runtime("native"))
    for method, settings in (("bild", BildSettings(fallback_threshold=0.2)), ("speculative", SpeculativeSettings())):
        duet = build_method(method, settings, opened, Request(9))
        assert isinstance(duet, NativeSpeculativeLoop)
        with pytest.raises(BrokenLogitsError) as by_loop:
            duet.method.run([SOURCES[0]], [0], 9)
        with pytest.raises(BrokenLogitsError, match=f"the {('small', 'large')[broken]} model") as by_duet:
            duet.run([SOURCES[0]], [0], 9)
        assert str(by_duet.value) == str(by_loop.value)


def test_a_token_that_ends_a_text_for_the_large_model_alone() -> None:
    small, large = models("t5")
    pair = open_pair(small, large)
    first = decode("vanilla_small", None, pair, [SOURCES[1]], Request(6))[0].tokens
    pair.large.end_tokens = frozenset({*pair.large.end_tokens, first[1]})
    for settings in (BildSettings(fallback_threshold=0.0), BildSettings(fallback_threshold=0.0, rollback_threshold=0.5)):
        duet = build_method("bild", settings, pair, Request(12))
        assert isinstance(duet, NativeSpeculativeLoop)
        for example, source in enumerate(SOURCES):
            assert duet.run([source], [example], 12) == duet.method.run([source], [example], 12)
