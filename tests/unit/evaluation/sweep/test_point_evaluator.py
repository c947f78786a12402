"""Evaluating a point: quality, counts, latency on a clock that only model runs advance, and shown texts."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.decoding.generation import Counts
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.evaluation.results.codec import encode
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import Costs, measure_costs
from tasks.evaluation.sweep.point import PointEvaluator, counts_record
from tasks.evaluation.sweep.replay import Split
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
    """An evaluator and its split, with the same settings."""
    clock, sweep = clock or Clock(), sweep_settings(**settings)
    pair = ticking_pair(clock)
    return evaluator_of(pair, clock, sweep), split_of(pair, sweep)


def test_the_header_of_a_row() -> None:
    evaluator, split = ready()
    header = evaluator.header(SPECULATIVE, split, "toy", "aligned")
    assert header.settings["draft_length"] == 3
    assert header.sampling == SamplingSettings()
    assert (header.task, header.arm) == ("toy", "aligned")
    found = (header.split, header.method, header.lossless, header.metric, header.examples)
    assert found == ("validation", "speculative", True, "bleu", 8)
    assert not evaluator.header(BILD, split, "toy", "aligned").lossless


def test_counts_as_rows_hold_them() -> None:
    counts = Counts(tokens=9, large_calls=3, verified=Counter({4: 1, 1: 2}), kept=Counter({(3, 2): 1, (1, 1): 4}))
    record = counts_record(counts)
    assert record.verified == {1: 2, 4: 1}
    assert record.kept == {"1/1": 4, "3/2": 1}
    assert (record.tokens, record.large_calls, record.drafted) == (9, 3, 0)
    written = encode(record)
    assert json.loads(json.dumps(written)) == written
    assert written["verified"] == {"1": 2, "4": 1}


def test_quality_is_compared_with_vanillas() -> None:
    evaluator, split = ready(bootstrap_samples=300)
    vanilla = evaluator.assess(evaluator.vanilla(split), split)
    assert vanilla.how == "decoded"
    assert vanilla.quality_difference_interval == (0.0, 0.0)
    assert vanilla.signature is not None and vanilla.signature.startswith("nrefs:1")
    small = evaluator.assess(evaluator.decoded(ALONE, split), split)
    assert small.quality_difference_interval is not None and small.quality_interval is not None
    low, high = small.quality_difference_interval
    assert low < small.quality["bleu"] - vanilla.quality["bleu"] < min(high, 0)
    assert small.quality_interval[0] < small.quality["bleu"] < small.quality_interval[1]
    same = evaluator.assess(evaluator.decoded(SPECULATIVE, split), split)
    assert dataclasses.replace(same, counts=vanilla.counts) == vanilla
    assert same.counts.large_calls < vanilla.counts.large_calls


def test_vanilla_is_decoded_once_for_each_split() -> None:
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
    evaluator, split = ready()
    outputs = evaluator.decoded(point, split)
    row = evaluator.time(point, outputs, split, COSTS, evaluator.time(point, outputs, split, COSTS))
    assert row.rounds is not None and len(row.rounds) == 2
    for latencies, measured in ((row.latency_ms, outputs), (row.vanilla_latency_ms, evaluator.vanilla(split))):
        wanted = [sum(COSTS.parts(measured.by_example[example]).values()) for example in split.timed]
        assert latencies == pytest.approx(wanted, abs=0.001)
    assert row.speedup == pytest.approx(sum(row.vanilla_latency_ms) / sum(row.latency_ms), rel=1e-3)
    assert row.speedup_interval is not None
    low, high = row.speedup_interval
    assert low <= row.speedup <= high
    if point == VANILLA:
        assert (low, high) == pytest.approx((1, 1))


@pytest.mark.parametrize("slowness", [1.0, 2.5])
def test_the_time_breakdown_uses_the_rows_own_vanilla_times(slowness: float) -> None:
    clock = Clock()
    evaluator, split = ready(clock)
    outputs = evaluator.decoded(BILD, split)
    clock.slowness = lambda now: slowness  # since the costs were measured
    row = evaluator.time(BILD, outputs, split, COSTS)
    parts = [COSTS.parts(outputs.by_example[example]) for example in split.timed]
    assert row.time_ms is not None
    assert list(row.time_ms) == ["encoders", "small", "large", "other"]
    for name in parts[0]:
        assert row.time_ms[name] == pytest.approx(slowness * sum(part[name] for part in parts) / len(parts))
    assert row.time_ms["other"] == pytest.approx(0, abs=1e-6)
    unknown = evaluator.time(BILD, outputs, split, dataclasses.replace(COSTS, small_step_ms=0.0))
    assert unknown.time_ms is not None
    assert unknown.time_ms["other"] == pytest.approx(row.time_ms["small"])
    assert evaluator.time(BILD, outputs, split, None).time_ms is None


def test_a_machine_that_slows_down_slows_both_latencies_of_a_row() -> None:
    rows = []
    for machine in (lambda now: 1.0, lambda now: 5.0 if now > 4 else 1.0):
        clock = Clock()
        evaluator, split = ready(clock, latency_examples=8)
        outputs = evaluator.decoded(SPECULATIVE, split)
        clock.now, clock.slowness = 0.0, machine
        row = None
        for _ in range(20):
            row = evaluator.time(SPECULATIVE, outputs, split, None, row)
        assert row is not None
        rows.append(row)
    sound, slowed = rows
    assert sum(slowed.vanilla_latency_ms) > 1.3 * sum(sound.vanilla_latency_ms)
    assert sum(slowed.latency_ms) > 1.3 * sum(sound.latency_ms)
    assert slowed.speedup == pytest.approx(sound.speedup, rel=0.06)


def test_part_times_come_from_the_same_clock() -> None:
    evaluator, split = ready()
    found = measure_costs(evaluator.pair, split.sources, evaluator.request, evaluator.clock)
    assert found.cost_ratio == pytest.approx(SMALL.step / LARGE.step)


@pytest.mark.parametrize("point", [VANILLA, ALONE, BILD, SPECULATIVE], ids=lambda point: point.method)
def test_shown_texts(point: SweepPoint) -> None:
    evaluator, split = ready(latency_examples=7)
    outputs, words = evaluator.decoded(point, split), Words()
    shown = evaluator.time(point, outputs, split, None).shown
    assert shown is not None
    assert len(shown) == 6
    for example, one in zip(split.timed, shown, strict=False):
        assert one.source == split.examples[example].source
        assert one.references == list(split.examples[example].references)
        assert one.vanilla == words.decode(evaluator.vanilla(split).tokens[example], skip_special_tokens=True)
        assert "".join(text for text, _ in one.pieces) == words.decode(outputs.tokens[example], skip_special_tokens=True)
        proposers = [proposer for _, proposer in one.pieces]
        assert all(one != other for one, other in itertools.pairwise(proposers))
        assert set(proposers) <= {VANILLA: {"l"}, ALONE: {"s"}}.get(point, {"s", "l", "c"})


class Halves(Words):
    """A tokenizer whose tokens are halves of letters, like bytes of characters; a single half decodes to U+FFFD."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = [token for token in tokens if token > 1]
        whole = "".join(chr(ord("a") + (one + other) % 26) for one, other in zip(text[::2], text[1::2], strict=False))
        return whole + "\ufffd" * (len(text) % 2)


def test_pieces_are_the_text_even_where_a_letter_is_cut() -> None:
    words, split = ready(latency_examples=7)
    evaluator = PointEvaluator(words.pair, Halves(), "bleu", Request(LIMIT), words.sweep, "cpu")
    outputs = evaluator.decoded(SPECULATIVE, split)
    shown = evaluator.time(SPECULATIVE, outputs, split, None).shown
    assert shown is not None
    assert any(len(one.pieces) > 3 for one in shown)
    for example, one in zip(split.timed, shown, strict=False):
        text = Halves().decode(outputs.tokens[example], skip_special_tokens=True)
        assert "".join(piece for piece, _ in one.pieces) == text
