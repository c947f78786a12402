"""The cost model: by hand, fitted, and measured on a clock that only model runs advance."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.generation import Counts
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, TokenCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.pair import MethodOverhead
from tasks.evaluation.sweep.plan import Costs, Overheads, load_or_measure_costs, measure_costs
from tests.ticking import LARGE, LIMIT, SMALL, Clock, ticking_pair
from tests.toys import toy_sources

SOURCES = toy_sources(8, seed=10)


def hand_made(**changed: Any) -> Costs:
    parts = {"encode_small_ms": 1.0, "encode_large_ms": 4.0, "small_step_ms": 0.5}
    return Costs(**(parts | {"verify_ms": {8: 7.5, 1: 2.0, 2: 2.5, 4: 3.5}} | changed))


def drafted(small_steps: int, verified: dict[int, int]) -> Counts:
    """Counts of one text whose drafts were verified in runs of these widths."""
    return Counts(small_steps=small_steps, drafted=small_steps, large_calls=sum(verified.values()), verified=Counter(verified))


@pytest.mark.parametrize(
    ("positions", "milliseconds"),
    [(1, 2.0), (2, 2.5), (4, 3.5), (8, 7.5), (3, 3.0), (6, 5.5), (7, 6.5), (9, 8.5), (12, 11.5)],
)
def test_run_times_are_interpolated_and_extrapolated(positions: int, milliseconds: float) -> None:
    assert hand_made().verify(positions) == pytest.approx(milliseconds)


def test_a_single_width_is_constant() -> None:
    assert [hand_made(verify_ms={1: 2.0}).verify(positions) for positions in (1, 2, 9)] == [2.0] * 3


def test_parts_of_an_example() -> None:
    assert hand_made().parts(drafted(6, {3: 2, 1: 1})) == {"encoders": 5.0, "small": 3.0, "large": 2 * 3.0 + 2.0}


@pytest.mark.parametrize(
    ("counts", "encoders"),
    [
        (Counts(large_calls=3, verified=Counter({1: 3})), 4.0),
        (Counts(small_steps=3), 1.0),
        (drafted(3, {4: 1}), 5.0),
        (drafted(3, {}), 5.0),
    ],
    ids=["large alone", "small alone", "both", "a draft that ends the text: the large model has read the source"],
)
def test_which_encoders_run(counts: Counts, encoders: float) -> None:
    assert hand_made().parts(counts)["encoders"] == encoders


def test_a_shared_encoder_runs_once() -> None:
    shared = hand_made(encode_small_ms=0.0)
    for counts in (Counts(small_steps=3), Counts(large_calls=2, verified=Counter({1: 2})), drafted(3, {4: 1}), drafted(3, {})):
        assert shared.parts(counts)["encoders"] == 4.0


def test_latency_is_the_mean_over_examples_plus_the_overhead() -> None:
    costs = hand_made()
    examples = [drafted(6, {3: 2, 1: 1}), drafted(2, {2: 1})]
    runs = (5 + 3 + 8 + 5 + 1 + 2.5) / 2
    assert costs.latency("bild", examples) == pytest.approx(runs)
    small = (3 + 1) / 2
    costs.overheads = Overheads(MethodOverhead(text=0.5, call=0.125), {"bild": MethodOverhead(text=0.75, call=0.25)}, 0.1)
    assert costs.latency("bild", examples) == pytest.approx(runs + 0.75 + 0.25 * (3 + 1) / 2 + 0.1 * small)
    assert costs.latency("speculative", examples) == pytest.approx(runs + 0.5 + 0.125 * (3 + 1) / 2 + 0.1 * small)


def test_a_model_alone_has_no_overhead_but_the_slow_down_of_the_small_one() -> None:
    costs = hand_made(overheads=Overheads(MethodOverhead(text=0.5, call=0.125), {}, 0.5))
    large, small = [Counts(large_calls=3, verified=Counter({1: 3}))], [Counts(small_steps=4)]
    assert costs.latency("vanilla_large", large) == pytest.approx(4.0 + 3 * 2.0)
    assert costs.latency("vanilla_small", small) == pytest.approx(1.0 + 1.5 * 4 * 0.5)
    table = [Counts(drafted=2, large_calls=1, verified=Counter({1: 1}))]  # its drafter takes no step
    assert costs.latency("speculative", table) == pytest.approx(4.0 + 2.0 + 0.5 + 0.125)


def test_a_negative_overhead_cannot_make_a_latency_negative() -> None:
    costs, example = hand_made(), [drafted(6, {3: 2, 1: 1})]
    costs.overheads = Overheads(by_method={"bild": MethodOverhead(text=0.0, call=-6.0)})
    assert costs.latency("bild", example) == pytest.approx(1.6)  # a tenth of its runs, not 16 - 18


def fitted(text: float, call: float, calls: list[int]) -> Costs:
    """Fitted to points with these numbers of calls, whose overhead is `text` plus `call` for each call."""
    costs = hand_made()
    points = [[drafted(4, {2: count})] for count in calls]
    costs.fit_overheads(
        [("bild", point, costs.latency("bild", point) + text + call * point[0].large_calls) for point in points]
    )
    return costs


@pytest.mark.parametrize(("text", "call"), [(3.0, 0.5), (0.0, 1.5), (-1.0, -0.2), (0.0, 0.0)])
def test_a_known_overhead_is_fitted_from_several_points(text: float, call: float) -> None:
    costs = fitted(text, call, [2, 5, 9, 14, 20, 30])
    unseen = [drafted(4, {2: 12})]
    assert costs.latency("bild", unseen) == pytest.approx(hand_made().latency("bild", unseen) + text + 12 * call, rel=0.02)
    overhead = costs.overheads.by_method["bild"]
    assert (overhead.text, overhead.call) == pytest.approx((text, call), abs=0.5)


@pytest.mark.parametrize("calls", [1, 4, 10])
def test_a_single_point_is_predicted_as_measured_up_to_the_prior(calls: int) -> None:
    costs, point = fitted(2.0, 0.5, [calls]), [drafted(4, {2: calls})]
    runs, overhead = hand_made().latency("bild", point), 2.0 + 0.5 * calls
    assert runs + 0.94 * overhead < costs.latency("bild", point) < runs + overhead


def test_the_first_point_of_one_method_teaches_the_others() -> None:
    """The overhead of a text is common to all methods; only what one method has beside it stays with that method."""
    costs, points = hand_made(), {method: [drafted(4, {2: 6})] for method in ("bild", "speculative", "token_cascade")}
    runs = costs.latency("bild", points["bild"])
    costs.fit_overheads([("bild", points["bild"], runs + 3.0)])
    assert costs.latency("speculative", points["speculative"]) == pytest.approx(runs + 3.0, rel=0.04)
    costs.fit_overheads([("bild", points["bild"], runs + 3.0), ("speculative", points["speculative"], runs + 9.0)])
    known = [costs.latency(method, points[method]) for method in points]
    assert known[:2] == pytest.approx([runs + 3.0, runs + 9.0], rel=0.1)
    assert known[0] < known[2] < known[1]


def test_the_small_model_alone_teaches_what_its_steps_cost_beside_the_large_one() -> None:
    costs, alone = hand_made(), [Counts(small_steps=20)]
    costs.fit_overheads([("vanilla_small", alone, 1.0 + 1.25 * 20 * 0.5)])
    assert costs.overheads.small == pytest.approx(0.25, abs=0.01)
    drafts = [drafted(20, {5: 4})]
    assert costs.latency("bild", drafts) == pytest.approx(hand_made().latency("bild", drafts) + 0.25 * 20 * 0.5, rel=0.01)


def test_similar_points_do_not_determine_text_and_call_apart() -> None:
    """Two points with nearly equal calls and a little noise: ordinary least squares would fit the slope to the noise."""
    costs = hand_made()
    points = [([drafted(4, {2: 10})], 0.9), ([drafted(4, {2: 10}), drafted(4, {2: 11})], 1.1)]
    costs.fit_overheads([("bild", point, costs.latency("bild", point) + overhead) for point, overhead in points])
    overhead = costs.overheads.by_method["bild"]
    assert abs(overhead.text) < 1.5
    assert abs(overhead.call) < 0.2  # 0.4 without a ridge


def test_costs_as_a_record() -> None:
    costs = hand_made()
    costs.overheads = Overheads(by_method={"bild": MethodOverhead(text=0.75, call=0.25)}, small=0.1)
    written = json.loads(json.dumps(encode(costs.record())))
    assert written["cost_ratio"] == 0.25
    assert written["verify_ms"] == {"1": 2.0, "2": 2.5, "4": 3.5, "8": 7.5}
    assert written["small_step_slowdown"] == 0.1
    assert written["overhead_ms"] == {"bild": {"text": 0.75, "call": 0.25}}
    assert [written[name] for name in ("encode_small_ms", "encode_large_ms", "small_step_ms")] == [1.0, 4.0, 0.5]


def measured(clock: Clock, pair: Pair) -> Costs:
    return measure_costs(pair, SOURCES, Request(LIMIT), clock)


@functools.cache
def measured_once(shares_encoder: bool) -> Costs:
    clock = Clock()
    return measured(clock, ticking_pair(clock, shares_encoder=shares_encoder))


@pytest.mark.parametrize("shares_encoder", [False, True])
def test_the_price_of_each_part_is_measured(shares_encoder: bool) -> None:
    costs = measured_once(shares_encoder)
    assert costs.encode_small_ms == pytest.approx(0 if shares_encoder else SMALL.encode)
    assert costs.encode_large_ms == pytest.approx(LARGE.encode)
    assert costs.small_step_ms == pytest.approx(SMALL.step)
    assert costs.cost_ratio == pytest.approx(SMALL.step / LARGE.step)
    assert list(costs.verify_ms) == [1, 2, 3, 4, 6]  # at most half of a text of 12 tokens
    for positions in range(1, 12):
        assert costs.verify(positions) == pytest.approx(LARGE.step + (positions - 1) * LARGE.position)


def test_widths_beyond_half_a_text_are_not_measured() -> None:
    clock = Clock()
    assert list(measure_costs(ticking_pair(clock), SOURCES, Request(1), clock).verify_ms) == [1]


@pytest.mark.parametrize("moment", [0.3, 2.5])
def test_a_slow_moment_of_the_machine_affects_one_round_only(moment: float) -> None:
    quiet, hiccup = Clock(), Clock()
    wanted = measured(quiet, ticking_pair(quiet))
    assert quiet.now > moment
    pair = ticking_pair(hiccup)
    hiccup.slowness = lambda now: 1.0 if now < moment or now > moment + 1 else 1000.0
    found = measured(hiccup, pair)
    assert hiccup.now > quiet.now + 1
    assert found.verify_ms == pytest.approx(wanted.verify_ms)
    for part in ("encode_small_ms", "encode_large_ms", "small_step_ms"):
        assert getattr(found, part) == pytest.approx(getattr(wanted, part))


def test_a_wider_run_is_never_cheaper() -> None:
    clock = Clock()
    pair = ticking_pair(clock)
    pair.large.price = dataclasses.replace(LARGE, position=-0.3)  # type: ignore[attr-defined]
    widths = list(measured(clock, pair).verify_ms.values())
    assert widths == pytest.approx([widths[0]] * len(widths))


RUNS_ALONE: list[tuple[str, Any]] = [
    ("vanilla_large", VanillaSettings()),
    ("vanilla_small", VanillaSettings()),
    ("bild", BildSettings(fallback_threshold=0.3)),
    ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=float("inf"), max_draft=20)),
    ("bild_oracle", BildOracleSettings()),
    ("speculative", SpeculativeSettings(draft_length=7)),
    ("token_cascade", TokenCascadeSettings(deferral_cost=0.9)),
]
TWICE = ("sequence_cascade", SequenceCascadeSettings(deferral_cost=0.6))
"""Each of its two models encodes the source, even with a shared encoder."""


@pytest.mark.parametrize(
    ("method", "settings", "shares_encoder"),
    [*((*one, shared) for one in RUNS_ALONE for shared in (False, True)), (*TWICE, False)],
)
def test_a_method_without_overhead_is_predicted_exactly(method: str, settings: Any, shares_encoder: bool) -> None:
    costs = measured_once(shares_encoder)
    clock = Clock()
    pair = ticking_pair(clock, shares_encoder=shares_encoder)
    begun, examples = clock(), []
    for number, source in enumerate(SOURCES):
        [generation] = decode(method, settings, pair, [source], Request(LIMIT), [number])
        examples.append(generation.counts)
    took = 1000 * (clock() - begun) / len(SOURCES)
    assert costs.latency(method, examples) == pytest.approx(took)


def test_costs_are_measured_once(tmp_path: Path) -> None:
    costs = Costs(0.5, 1.0, 0.25, {1: 2.0, 4: 3.0}, Overheads(by_method={"bild": MethodOverhead(text=0.1, call=0.2)}))
    assert load_or_measure_costs(tmp_path / "cache" / "costs.json", lambda: costs) is costs
    again = load_or_measure_costs(tmp_path / "cache" / "costs.json", lambda: pytest.fail("measured again"))
    assert again == Costs(0.5, 1.0, 0.25, {1: 2.0, 4: 3.0})
    (tmp_path / "cache" / "costs.json").write_text('{"encode_')  # an interrupted write
    assert load_or_measure_costs(tmp_path / "cache" / "costs.json", lambda: costs) is costs
