"""What a bench says of a point: quality, counts, latency on a clock that only runs of models move, and what is shown."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tasks.decoding.generation import Counts
from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.strategies import Request
from tasks.evaluation.sweeping.costs import Costs, measure_costs
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator, counts_as_json
from tasks.evaluation.sweeping.points import VANILLA, Split, SweepPoint
from tests.ticking import (
    LARGE,
    LIMIT,
    SMALL,
    Clock,
    TickingDecoder,
    Words,
    evaluator_of,
    split_of,
    sweep_settings,
    ticking_pair,
)

BILD = SweepPoint("bild", BildSettings(fallback_threshold=0.4))
SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=3))
ALONE = SweepPoint("vanilla_small", VanillaSettings())
COSTS = Costs(SMALL.encode, LARGE.encode, SMALL.step, {1: LARGE.step, 2: LARGE.step + LARGE.position})


def ready(clock: Clock | None = None, **settings: Any) -> tuple[PointEvaluator, Split]:
    """A bench and its split; both go by the same settings."""
    clock, sweep = clock or Clock(), sweep_settings(**settings)
    pair = ticking_pair(clock)
    return evaluator_of(pair, clock, sweep), split_of(pair, sweep)


def test_what_is_known_of_a_point_beforehand() -> None:
    evaluator, split = ready()
    fields = evaluator.fields(SPECULATIVE, split)
    assert fields["settings"]["draft_length"] == 3
    assert fields["sampling"] == {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    assert {name: fields[name] for name in ("split", "method", "lossless", "metric", "examples")} == {
        "split": "validation",
        "method": "speculative",
        "lossless": True,
        "metric": "bleu",
        "examples": 8,
    }
    assert not evaluator.fields(BILD, split)["lossless"]


def test_counts_have_text_for_keys() -> None:
    counts = Counts(tokens=9, large_calls=3, verified=Counter({4: 1, 1: 2}), kept=Counter({(3, 2): 1, (1, 1): 4}))
    written = counts_as_json(counts)
    assert json.loads(json.dumps(written)) == written
    assert written["verified"] == {"1": 2, "4": 1}
    assert written["kept"] == {"1/1": 4, "3/2": 1}
    assert written["tokens"] == 9


def test_quality_is_told_beside_vanillas() -> None:
    evaluator, split = ready(bootstrap_samples=300)
    vanilla = evaluator.assessed(evaluator.vanilla(split), split)
    assert vanilla["how"] == "decoded"
    assert vanilla["quality_difference_interval"] == [0.0, 0.0]
    assert vanilla["signature"].startswith("nrefs:1")
    small = evaluator.assessed(evaluator.decoded(ALONE, split), split)
    low, high = small["quality_difference_interval"]
    assert low < small["quality"]["bleu"] - vanilla["quality"]["bleu"] < min(high, 0)
    assert small["quality_interval"][0] < small["quality"]["bleu"] < small["quality_interval"][1]
    same = evaluator.assessed(evaluator.decoded(SPECULATIVE, split), split)
    assert {name: same[name] for name in same if name != "counts"} == {
        name: vanilla[name] for name in vanilla if name != "counts"
    }
    assert same["counts"]["large_calls"] < vanilla["counts"]["large_calls"]


def test_vanilla_is_decoded_once_a_split() -> None:
    evaluator, split = ready()
    other = split_of(evaluator.pair, evaluator.sweep, "test")
    assert evaluator.vanilla(split).tokens != evaluator.vanilla(other).tokens
    large = evaluator.pair.large
    assert isinstance(large, TickingDecoder)
    ran = large.ran
    assert evaluator.vanilla(split).tokens == evaluator.decoded(VANILLA, split).tokens
    once = large.ran - ran
    evaluator.vanilla(split), evaluator.vanilla(other)
    assert large.ran == ran + once


@pytest.mark.parametrize("point", [VANILLA, ALONE, BILD, SPECULATIVE], ids=lambda point: point.method)
def test_latencies_are_those_of_the_clock(point: SweepPoint) -> None:
    evaluator, split = ready(latency_trials=2)
    outputs = evaluator.decoded(point, split)
    row = evaluator.timed(point, outputs, split, COSTS)
    for name, measured in (("latency_ms", outputs), ("vanilla_latency_ms", evaluator.vanilla(split))):
        wanted = [sum(COSTS.parts(measured.by_example[example]).values()) for example in split.timed]
        assert row[name] == pytest.approx(wanted, abs=0.001)
    assert row["speedup"] == pytest.approx(sum(row["vanilla_latency_ms"]) / sum(row["latency_ms"]), rel=1e-3)
    low, high = row["speedup_interval"]
    assert low <= row["speedup"] <= high
    if point == VANILLA:
        assert (low, high) == pytest.approx((1, 1))


@pytest.mark.parametrize("slowness", [1.0, 2.5])
def test_where_the_time_went_in_the_rows_own_time(slowness: float) -> None:
    clock = Clock()
    evaluator, split = ready(clock)
    outputs = evaluator.decoded(BILD, split)
    clock.slowness = lambda now: slowness  # since the costs were measured
    row = evaluator.timed(BILD, outputs, split, COSTS)
    parts = [COSTS.parts(outputs.by_example[example]) for example in split.timed]
    assert list(row["time_ms"]) == ["encoders", "small", "large", "other"]
    for name in parts[0]:
        assert row["time_ms"][name] == pytest.approx(slowness * sum(part[name] for part in parts) / len(parts))
    assert row["time_ms"]["other"] == pytest.approx(0, abs=1e-6)
    unknown = dataclasses.replace(COSTS, small_step_ms=0.0)
    assert evaluator.timed(BILD, outputs, split, unknown)["time_ms"]["other"] == pytest.approx(row["time_ms"]["small"])
    assert "time_ms" not in evaluator.timed(BILD, outputs, split, None)


SLOW: dict[str, Callable[[float], float]] = {
    "slower and slower": lambda now: 1.0 + now / 4,
    "slow from then on": lambda now: 5.0 if now > 4 else 1.0,
    "slow for a while": lambda now: 5.0 if 2 < now < 12 else 1.0,
}


@pytest.mark.parametrize("slowness", SLOW.values(), ids=SLOW)
def test_a_machine_that_slows_down_slows_both_sides_of_a_row(slowness: Callable[[float], float]) -> None:
    rows = []
    for machine in (lambda now: 1.0, slowness):
        clock = Clock()
        evaluator, split = ready(clock, latency_trials=20, latency_examples=8)
        outputs = evaluator.decoded(SPECULATIVE, split)
        clock.now, clock.slowness = 0.0, machine
        rows.append(evaluator.timed(SPECULATIVE, outputs, split, None))
    sound, slowed = rows
    assert sum(slowed["vanilla_latency_ms"]) > 1.3 * sum(sound["vanilla_latency_ms"])
    assert sum(slowed["latency_ms"]) > 1.3 * sum(sound["latency_ms"])
    assert slowed["speedup"] == pytest.approx(sound["speedup"], rel=0.06)


def test_costs_of_the_parts_come_from_the_same_clock() -> None:
    evaluator, split = ready()
    found = measure_costs(evaluator.pair, split.sources, evaluator.request, evaluator.clock)
    assert found.cost_ratio == pytest.approx(SMALL.step / LARGE.step)


@pytest.mark.parametrize("point", [VANILLA, ALONE, BILD, SPECULATIVE], ids=lambda point: point.method)
def test_what_is_shown(point: SweepPoint) -> None:
    evaluator, split = ready(latency_examples=7)
    outputs, words = evaluator.decoded(point, split), Words()
    shown = evaluator.timed(point, outputs, split, None)["shown"]
    assert len(shown) == 6
    for example, one in zip(split.timed, shown, strict=False):
        assert one["source"] == split.examples[example].source
        assert one["reference"] == split.examples[example].references[0]
        assert one["vanilla"] == words.decode(evaluator.vanilla(split).tokens[example], skip_special_tokens=True)
        assert "".join(text for text, _ in one["pieces"]) == words.decode(outputs.tokens[example], skip_special_tokens=True)
        proposers = [proposer for _, proposer in one["pieces"]]
        assert all(one != other for one, other in itertools.pairwise(proposers))
        assert set(proposers) <= {VANILLA: {"l"}, ALONE: {"s"}}.get(point, {"s", "l", "c"})


class Halves(Words):
    """Every token is half a letter, as bytes can be; a half that stands alone is not known yet."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = [token for token in tokens if token > 1]
        whole = "".join(chr(ord("a") + (one + other) % 26) for one, other in zip(text[::2], text[1::2], strict=False))
        return whole + "\ufffd" * (len(text) % 2)


def test_pieces_are_the_text_even_where_a_letter_is_cut() -> None:
    words, split = ready(latency_examples=7)
    evaluator = PointEvaluator(words.pair, Halves(), "bleu", Request(LIMIT), words.sweep, "cpu")
    outputs = evaluator.decoded(SPECULATIVE, split)
    shown = evaluator.timed(SPECULATIVE, outputs, split, None)["shown"]
    assert any(len(one["pieces"]) > 3 for one in shown)
    for example, one in zip(split.timed, shown, strict=False):
        text = Halves().decode(outputs.tokens[example], skip_special_tokens=True)
        assert "".join(piece for piece, _ in one["pieces"]) == text
