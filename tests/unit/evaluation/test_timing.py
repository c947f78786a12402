"""Timing: neighbouring runs on a simulated clock, and timed calls whose tokens differ from the expected ones."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.corpora.example import Example
from tasks.decoding import native_loop
from tasks.decoding.decoder import Capabilities, Runtime, TokenGuarantee
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair, Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import METHODS
from tasks.decoding.turn import LoopParts
from tasks.evaluation.sweep import clock
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.replay import GridReplay, Outputs, Split, replay_grid
from tasks.evaluation.timing import TimedTokensError, count_mismatches, guarantee_of, measure_in_turn
from tasks.machine import on_threads
from tasks.models.settings import TextSettings
from tests.architectures import pair_of
from tests.sweeps import GRID, Sweep, by_name, in_file, named
from tests.ticking import LIMIT, Clock, Words, evaluator_of, split_of, sweep_settings, ticking_pair
from tests.toys import Prefix, prefix_pair


class Machine(Clock):
    """A simulated clock that notes the runs which advance it."""

    def __init__(self, slowness: Callable[[float], float] = lambda now: 1.0) -> None:
        super().__init__(slowness)
        self.runs: list[tuple[str, int]] = []

    def run(self, name: str, cost: Callable[[int], float]) -> Callable[[int], None]:
        def run(example: int) -> None:
            self.runs.append((name, example))
            self.spend(1000 * cost(example))

        return run


def timed(
    machine: Machine, examples: list[int], rounds: int = 1, warmup: int = 0, seed: int = 0
) -> tuple[list[float], list[float]]:
    """Times a method that takes 1 second plus the example's number; vanilla takes twice as long. Means over the rounds."""
    rng = random.Random(seed)
    calls = {
        "vanilla": machine.run("vanilla", lambda example: 2.0 + 2.0 * example),
        "method": machine.run("method", lambda example: 1.0 + example),
    }
    found = [measure_in_turn(calls, examples, warmup=warmup, rng=rng, clock=machine)[0] for _ in range(rounds)]
    method, vanilla = (
        [fmean(times) for times in zip(*(one[name] for one in found), strict=True)] for name in ("method", "vanilla")
    )
    return method, vanilla


def test_milliseconds_of_each_example_in_the_order_given() -> None:
    method, vanilla = timed(Machine(), [3, 0, 9])
    assert method == pytest.approx([4000, 1000, 10000])
    assert vanilla == pytest.approx([8000, 2000, 20000])


SLOW: dict[str, Callable[[float], float]] = {
    "slower and slower": lambda now: 1.0 + now / 2000,
    "slow from then on": lambda now: 5.0 if now > 2100 else 1.0,
    "slow for a while": lambda now: 5.0 if 1500 < now < 9000 else 1.0,
}


@pytest.mark.parametrize("slowness", SLOW.values(), ids=SLOW)
def test_a_machine_that_slows_down_slows_both(slowness: Callable[[float], float]) -> None:
    method, vanilla = timed(Machine(slowness), list(range(20)), rounds=10)
    assert sum(vanilla) > 1.3 * sum(2000.0 + 2000.0 * example for example in range(20))
    assert sum(vanilla) / sum(method) == pytest.approx(2, rel=0.06)


def test_both_run_back_to_back_in_a_random_order() -> None:
    machine = Machine()
    timed(machine, [5, 6, 7, 8], rounds=8)
    pairs = list(zip(machine.runs[::2], machine.runs[1::2], strict=True))
    assert len(pairs) == 32
    for first, second in pairs:
        assert first[1] == second[1]
        assert {first[0], second[0]} == {"method", "vanilla"}
    assert 8 <= sum(first[0] == "method" for first, _ in pairs) <= 24
    orders = [tuple(first[1] for first, _ in pairs[begin : begin + 4]) for begin in range(0, 32, 4)]
    assert {tuple(sorted(order)) for order in orders} == {(5, 6, 7, 8)}
    assert len(set(orders)) > 3


def test_warm_up_runs_both_and_is_not_timed() -> None:
    machine = Machine(lambda now: 100.0 if now < 2000 else 1.0)
    method, vanilla = timed(machine, [4, 5, 6], warmup=2)
    assert machine.runs[:4] == [("vanilla", 4), ("method", 4), ("vanilla", 5), ("method", 5)]
    assert method == pytest.approx([5000, 6000, 7000])
    assert vanilla == pytest.approx([10000, 12000, 14000])


def test_threads_are_restored_after_the_block() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="broken"), on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("broken")
    assert torch.get_num_threads() == before
    with on_threads(0):
        assert torch.get_num_threads() == before


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
def test_a_difference_is_placed_with_both_tokens(text: Sequence[int], expected: Sequence[int], facts: tuple[str, ...]) -> None:
    with pytest.raises(TimedTokensError) as caught:
        check(pair_with(TokenGuarantee.EQUAL), text, expected)
    message = str(caught.value)
    assert all(fact in message for fact in ("bild", "fallback_threshold=0.4", "validation example 1", "replayed", *facts))
    assert "\n" not in message


@pytest.mark.parametrize(("margin", "fails"), [(9e-5, False), (2e-4, True)])
def test_float32_may_differ_at_a_margin_below_the_tolerance_and_reduced_precision_at_any(margin: float, fails: bool) -> None:
    pair = pair_with(TokenGuarantee.EQUAL_BEYOND_TOLERANCE, margin)
    if fails:
        with pytest.raises(TimedTokensError):
            check(pair, (5, 4))
    else:
        assert check(pair, (5, 4)) == 1
    with pytest.raises(TimedTokensError):  # a promise of equal logits is kept at any margin
        check(pair_with(TokenGuarantee.EQUAL, margin), (5, 4))
    assert check(pair_with(TokenGuarantee.NONE), (5, 4)) == 1


@pytest.mark.parametrize(
    ("small", "large", "guarantee"),
    [
        (TokenGuarantee.EQUAL, TokenGuarantee.EQUAL, TokenGuarantee.EQUAL),
        (TokenGuarantee.EQUAL, TokenGuarantee.EQUAL_BEYOND_TOLERANCE, TokenGuarantee.EQUAL_BEYOND_TOLERANCE),
        (TokenGuarantee.NONE, TokenGuarantee.EQUAL_BEYOND_TOLERANCE, TokenGuarantee.NONE),
    ],
)
def test_a_pair_promises_what_its_weaker_does(small: TokenGuarantee, large: TokenGuarantee, guarantee: TokenGuarantee) -> None:
    pair = dataclasses.replace(pair_with(small), large=pair_with(large).large)
    assert guarantee_of(pair) is guarantee


def test_a_native_loop_that_drifts_from_the_replay_fails_its_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, sweep = pair_of("t5", Runtime("native")), sweep_settings()
    split, evaluator = split_of(pair, sweep), evaluator_of(pair, sweep)
    outputs = replay_grid(GridReplay([BILD], Request(LIMIT), split, tmp_path), pair, "test").outputs[0]
    evaluator.time(BILD, outputs, split)
    victim = split.timed[2]
    generate = native_loop.generate

    def drifting(parts: LoopParts, sources: Any, examples: Sequence[int], limit: int) -> list[Generation]:
        [generation] = generate(parts, sources, examples, limit)
        return [wrong_at(generation, 1) if examples[0] == victim else generation]

    monkeypatch.setattr(native_loop, "generate", drifting)
    with pytest.raises(RuntimeError, match=f"TimedTokensError: .*validation example {victim}, position 1:.* was replayed"):
        evaluator.time(BILD, outputs, split)


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
    def drifting(spec: MethodSpec) -> MethodSpec:
        return dataclasses.replace(spec, build=lambda *parts: Drifting(spec.build(*parts), victim))

    found = {name: drifting(spec) if which(name) else spec for name, spec in METHODS.items()}
    monkeypatch.setattr(clock, "METHODS", found)


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
    simulated, sweep = Clock(), sweep_settings()
    pair = ticking_pair(simulated)
    split, evaluator = split_of(pair, sweep), evaluator_of(pair, sweep, clock=simulated)
    outputs = evaluator.decoded(BILD, split)
    drift(monkeypatch, split.timed[0], lambda name: name == VANILLA.method)
    with pytest.raises(RuntimeError, match=f"TimedTokensError: vanilla_large.* example {split.timed[0]}, position 0"):
        evaluator.time(BILD, outputs, split)
