"""Timed tokens checked against replayed or decoded ones: a difference beyond the runtimes' promise fails the point."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.corpora.example import Example
from tasks.decoding import native_loop
from tasks.decoding.decoder import Capabilities, Runtime, TokenGuarantee
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import DecodingMethod, Pair, Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import build_method
from tasks.decoding.turn import LoopParts
from tasks.evaluation.mismatches import TimedTokensError, count_mismatches, guarantee_of
from tasks.evaluation.sweep import point as point_evaluator
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.replay import Outputs, Split, replay_grid
from tasks.models.settings import TextSettings
from tests.architectures import pair_of
from tests.sweeps import GRID, Sweep, by_name, in_file, named
from tests.ticking import LIMIT, Clock, Words, evaluator_of, split_of, sweep_settings, ticking_pair
from tests.toys import Prefix, prefix_pair

BILD = SweepPoint("bild", BildSettings(fallback_threshold=0.4))
RIGHT = (5, 6, 7, 1)


def pair_with(guarantee: TokenGuarantee, margin: float = 20.0) -> Pair:
    """Models that prefer the tokens of `RIGHT` by this margin, in a runtime of that guarantee."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = torch.zeros(8)
        logits[RIGHT[len(prefix) - 1]] = margin
        return logits

    pair = prefix_pair(predict, predict)
    for model in (pair.small, pair.large):
        model.capabilities = Capabilities(tokens=guarantee)  # type: ignore[misc]
    return pair


def check(pair: Pair, text: Sequence[int], expected: Sequence[int] = RIGHT) -> int:
    """Compares the timed text of one example, the second of two, with the expected text."""
    examples = [Example("w2", ("w3",)), Example("w4", ("w3",))]
    split = Split("validation", examples, Words(), TextSettings(max_source_tokens=9), sweep_settings())
    split.timed = [1]
    outputs = Outputs("replayed", tokens=[(9, 9), tuple(expected)])
    return count_mismatches(BILD, [Generation(list(text), "l" * len(text), Counts())], outputs, split, pair)


@pytest.mark.parametrize(
    ("text", "expected", "facts"),
    [
        ((5, 6, 4, 1), RIGHT, ("position 2", "token 4", "token 7")),
        ((5, 6, 7), RIGHT, ("position 3", "no token", "token 1")),
        (RIGHT, (5, 6), ("position 2", "token 7", "no token")),
        ((4, 6, 7, 1), RIGHT, ("position 0", "token 4", "token 5")),
    ],
    ids=["another token", "it ends early", "it ends late", "the first token"],
)
def test_a_difference_names_point_example_position_and_both_tokens(
    text: Sequence[int], expected: Sequence[int], facts: tuple[str, ...]
) -> None:
    with pytest.raises(TimedTokensError) as caught:
        check(pair_with(TokenGuarantee.EQUAL), text, expected)
    message = str(caught.value)
    assert all(fact in message for fact in ("bild", "fallback_threshold=0.4", "validation example 1", "replayed", *facts))
    assert "\n" not in message


@pytest.mark.parametrize(("margin", "fails"), [(9e-5, False), (2e-4, True)])
def test_float32_may_differ_at_a_margin_below_the_tolerance(margin: float, fails: bool) -> None:
    pair = pair_with(TokenGuarantee.EQUAL_BEYOND_TOLERANCE, margin)
    if fails:
        with pytest.raises(TimedTokensError):
            check(pair, (5, 4))
    else:
        assert check(pair, (5, 4)) == 1
    with pytest.raises(TimedTokensError):  # a promise of equal logits is kept at any margin
        check(pair_with(TokenGuarantee.EQUAL, margin), (5, 4))


def test_reduced_precision_without_a_promise_is_counted() -> None:
    assert check(pair_with(TokenGuarantee.NONE), (5, 4)) == 1


@pytest.mark.parametrize(
    ("small", "large", "guarantee"),
    [
        (TokenGuarantee.EQUAL, TokenGuarantee.EQUAL, TokenGuarantee.EQUAL),
        (TokenGuarantee.EQUAL, TokenGuarantee.EQUAL_BEYOND_TOLERANCE, TokenGuarantee.EQUAL_BEYOND_TOLERANCE),
        (TokenGuarantee.NONE, TokenGuarantee.EQUAL_BEYOND_TOLERANCE, TokenGuarantee.NONE),
    ],
)
def test_a_pair_promises_what_its_weaker_runtime_does(
    small: TokenGuarantee, large: TokenGuarantee, guarantee: TokenGuarantee
) -> None:
    pair = dataclasses.replace(pair_with(small), large=pair_with(large).large)
    assert guarantee_of(pair) is guarantee


def test_a_native_loop_that_drifts_from_the_replay_fails_its_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, sweep = pair_of("t5", Runtime("native")), sweep_settings()
    split, evaluator = split_of(pair, sweep), evaluator_of(pair, time.perf_counter, sweep)
    outputs = replay_grid([BILD], pair, Request(LIMIT), split, tmp_path, "test").outputs[0]
    evaluator.time(BILD, outputs, split, None)
    victim = split.timed[2]
    generate = native_loop.generate

    def drifting(parts: LoopParts, sources: Any, examples: Sequence[int], limit: int) -> list[Generation]:
        [generation] = generate(parts, sources, examples, limit)
        return [wrong_at(generation, 1) if examples[0] == victim else generation]

    monkeypatch.setattr(native_loop, "generate", drifting)
    with pytest.raises(TimedTokensError, match=f"validation example {victim}, position 1:.* was replayed"):
        evaluator.time(BILD, outputs, split, None)


def wrong_at(generation: Generation, position: int) -> Generation:
    tokens = list(generation.tokens)
    tokens[position] += 1
    return dataclasses.replace(generation, tokens=tokens)


class Drifting:
    """A method that decodes one example otherwise."""

    def __init__(self, method: DecodingMethod, victim: int) -> None:
        self.method, self.victim = method, victim

    def run(self, sources: Any, examples: Sequence[int], limit: int) -> list[Generation]:
        done = self.method.run(sources, examples, limit)
        return [wrong_at(one, 0) if example == self.victim else one for one, example in zip(done, examples, strict=True)]


def drift(monkeypatch: pytest.MonkeyPatch, victim: int, which: Callable[[str], bool]) -> None:
    def build(name: str, *rest: Any) -> DecodingMethod:
        method = build_method(name, *rest)
        return Drifting(method, victim) if which(name) else method

    monkeypatch.setattr(point_evaluator, "build_method", build)


def test_the_sweep_continues_without_a_point_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path)
    victim, grid = sweep.validation.timed[1], [*GRID[:3], *GRID[12:14]]
    drift(monkeypatch, victim, lambda name: name == "bild")
    rows = by_name(sweep.validate(grid))
    assert rows.keys() == named(*BASELINES, *grid)
    failed = {name: row["error"] for name, row in rows.items() if "error" in row}
    assert failed
    assert {method for method, _ in failed} == {"bild"}
    for error in failed.values():
        assert error.startswith("TimedTokensError: bild ")
        assert f"validation example {victim}, position 0" in error
        assert "was replayed" in error
    assert any("speedup" in row for (method, _), row in rows.items() if method == "speculative")
    assert {str(row) for row in rows.values()} == {str(row) for row in in_file(sweep.path)}


def test_vanilla_is_checked_with_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sweep = Clock(), sweep_settings()
    pair = ticking_pair(clock)
    split, evaluator = split_of(pair, sweep), evaluator_of(pair, clock, sweep)
    outputs = evaluator.decoded(BILD, split)
    drift(monkeypatch, split.timed[0], lambda name: name == VANILLA.method)
    with pytest.raises(TimedTokensError, match=f"vanilla_large.* example {split.timed[0]}, position 0"):
        evaluator.time(BILD, outputs, split, None)
