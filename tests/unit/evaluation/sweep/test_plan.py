"""The cost model by hand, fitted and measured on a clock of model runs; and plans: what is timed, why, in which order."""

import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.generation import Counts
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, TokenCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.evaluation.results.pair import Costs
from tasks.evaluation.selection import TradeOff, choose, frontier, keeps_quality
from tasks.evaluation.settings import CHOICES, MarginSettings, SweepSettings
from tasks.evaluation.sweep import plan as planning
from tasks.evaluation.sweep.plan import Candidate, MethodOverhead, Overheads, Plan, common_costs, load_or_measure_costs, work_of
from tests.ticking import LARGE, LIMIT, SMALL, Clock, TickingDecoder, costs_of, ticking_pair
from tests.toys import toy_sources

LARGE_MS, SMALL_MS, TOKENS = 10.0, 1.0, 20
MARGINS = MarginSettings(no_loss=0.11, one_point=1.01)
Truth = Callable[[int], float]


def counts(small_steps: int, large_calls: int) -> Counts:
    return Counts(tokens=TOKENS, small_steps=small_steps, large_calls=large_calls, verified=Counter({1: large_calls}))


COSTS = costs_of(0.0, 0.0, SMALL_MS, {1: LARGE_MS})


def candidate(method: str, quality: float, small_steps: int, large_calls: int) -> Candidate:
    """A candidate whose bound is its difference to a vanilla of 30 points."""
    return Candidate(method, quality, work_of([counts(small_steps, large_calls)], COSTS), quality - 30.0)


VANILLA = candidate("vanilla_large", 30.0, 0, TOKENS)
KNOWN = (TradeOff(30.0, 1.0), TradeOff(21.0, 6.0))


def plan_of(
    candidates: Mapping[int, Candidate],
    known: tuple[TradeOff, ...] = (TradeOff(30.0, 1.0),),
    near: float = 0.02,
    sample: int = 0,
    seed: int = 0,
) -> Plan:
    sweep = SweepSettings(margins=MARGINS, near=near, sample=sample, seed=seed)
    return Plan(candidates, known, COSTS, VANILLA, sweep)


def true_speedups(candidates: Mapping[int, Candidate], overheads: Mapping[str, tuple[float, float]] | None = None) -> Truth:
    """True speed-ups: the runs' costs, plus an overhead for each text and each call of a method."""

    def speedup(number: int) -> float:
        one = candidates[number]
        text, call = (overheads or {}).get(one.method, (0.0, 0.0))
        return TOKENS * LARGE_MS / (one.work.small_ms + one.work.calls * (LARGE_MS + call) + text)

    return speedup


def run_plan(plan: Plan, truth: Truth, failing: frozenset[int] = frozenset()) -> list[list[int]]:
    """The points that the plan asks for, round by round, until it is done."""
    rounds = []
    while wanted := plan.next():
        rounds.append(wanted)
        for number in wanted:
            if number not in failing:
                plan.record(number, truth(number))
    return rounds


def grid(seed: int, methods: int = 3, points: int = 40) -> dict[int, Candidate]:
    """Methods that trade quality for speed, with noise around each method's curve."""
    rng, found = random.Random(seed), {}
    for number in range(methods * points):
        calls = rng.randint(3, TOKENS)
        quality = 20 + 10 * (calls / TOKENS) ** 0.5 + rng.gauss(0, 1.5)
        found[number] = candidate(f"method {number % methods}", quality, rng.randint(10, 40), calls)
    return found


def represented(point: TradeOff, plan: Plan, near: float = 0.02) -> bool:
    """Whether the point was timed, or one within `near` of its speed and 0.1 point or a fifth of its loss of its quality."""
    timed = [TradeOff(plan.candidates[number].quality, speedup) for number, speedup in plan.timed.items()]
    least = point.quality - max(0.1, (VANILLA.quality - point.quality) / 5) - 1e-8
    return any(one.quality >= least and one.speedup * (1 + near) >= point.speedup - 1e-9 for one in timed)


def missed(plan: Plan, truth: Truth, known: tuple[TradeOff, ...]) -> list[TradeOff]:
    """Points of the true frontier that are not represented by a timed point."""
    points = [TradeOff(one.quality, truth(number)) for number, one in plan.candidates.items()]
    return [points[at] for at in frontier([*points, *known]) if at < len(points) and not represented(points[at], plan)]


SOURCES = toy_sources(8, seed=10)


HAND_MADE = costs_of(1.0, 4.0, 0.5, {8: 7.5, 1: 2.0, 2: 2.5, 4: 3.5})
NOTHING = Overheads()


def latency(overheads: Overheads, method: str, by_example: list[Counts], costs: Costs = HAND_MADE) -> float:
    return overheads.latency(method, work_of(by_example, costs))


def fit(*timed: tuple[str, list[Counts], float]) -> Overheads:
    observed = [(method, work_of(by_example, HAND_MADE), measured) for method, by_example, measured in timed]
    return planning.fitted_overheads(observed, HAND_MADE.verify_ms[1])


def drafted(small_steps: int, verified: dict[int, int]) -> Counts:
    """Counts of one text whose drafts were verified in runs of these widths."""
    return Counts(small_steps=small_steps, drafted=small_steps, large_calls=sum(verified.values()), verified=Counter(verified))


def test_run_times_are_interpolated_and_extrapolated() -> None:
    known = {1: 2.0, 2: 2.5, 8: 7.5, 3: 3.0, 6: 5.5, 9: 8.5, 12: 11.5}
    assert {positions: HAND_MADE.verify(positions) for positions in known} == pytest.approx(known)


def test_latency_is_the_mean_over_examples_plus_the_overhead() -> None:
    examples = [drafted(6, {3: 2, 1: 1}), drafted(2, {2: 1})]
    runs = (5 + 3 + 8 + 5 + 1 + 2.5) / 2
    assert latency(NOTHING, "bild", examples) == pytest.approx(runs)
    small = (3 + 1) / 2
    found = Overheads(MethodOverhead(text=0.5, call=0.125), {"bild": MethodOverhead(text=0.75, call=0.25)}, 0.1)
    assert latency(found, "bild", examples) == pytest.approx(runs + 0.75 + 0.25 * (3 + 1) / 2 + 0.1 * small)
    assert latency(found, "speculative", examples) == pytest.approx(runs + 0.5 + 0.125 * (3 + 1) / 2 + 0.1 * small)


def test_a_model_alone_has_no_overhead_but_the_slow_down_of_the_small_one() -> None:
    found = Overheads(MethodOverhead(text=0.5, call=0.125), {}, 0.5)
    large, small = [Counts(large_calls=3, verified=Counter({1: 3}))], [Counts(small_steps=4)]
    assert latency(found, "vanilla_large", large) == pytest.approx(4.0 + 3 * 2.0)
    assert latency(found, "vanilla_small", small) == pytest.approx(1.0 + 1.5 * 4 * 0.5)
    table = [Counts(drafted=2, large_calls=1, verified=Counter({1: 1}))]  # its drafter takes no step
    assert latency(found, "speculative", table) == pytest.approx(4.0 + 2.0 + 0.5 + 0.125)


def test_a_negative_overhead_cannot_make_a_latency_negative() -> None:
    found, example = Overheads(by_method={"bild": MethodOverhead(text=0.0, call=-6.0)}), [drafted(6, {3: 2, 1: 1})]
    assert latency(found, "bild", example) == pytest.approx(1.6)  # a tenth of its runs, not 16 - 18


def test_the_first_point_of_one_method_teaches_the_others() -> None:
    """The overhead of a text is common to all methods; only what one method has beside it stays with that method."""
    example = [drafted(4, {2: 6})]
    runs = latency(NOTHING, "bild", example)
    first = fit(("bild", example, runs + 3.0))
    assert latency(first, "speculative", example) == pytest.approx(runs + 3.0, rel=0.04)
    both = fit(("bild", example, runs + 3.0), ("speculative", example, runs + 9.0))
    known = [latency(both, method, example) for method in ("bild", "speculative", "token_cascade")]
    assert known[:2] == pytest.approx([runs + 3.0, runs + 9.0], rel=0.1)
    assert known[0] < known[2] < known[1]


def test_the_small_model_alone_teaches_what_its_steps_cost_beside_the_large_one() -> None:
    found = fit(("vanilla_small", [Counts(small_steps=20)], 1.0 + 1.25 * 20 * 0.5))
    assert found.small == pytest.approx(0.25, abs=0.01)
    drafts = [drafted(20, {5: 4})]
    assert latency(found, "bild", drafts) == pytest.approx(latency(NOTHING, "bild", drafts) + 0.25 * 20 * 0.5, rel=0.01)


def measured(clock: Clock, pair: Pair) -> Costs:
    return planning.measure_costs(pair, SOURCES, Request(LIMIT), clock)


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


class Prompted(TickingDecoder):
    """Decoder-only: what it continues begins with the source."""

    def start(self, encoder_output: EncoderOutput) -> Rows:
        return [[*begin, *source] for begin, source in zip(super().start(encoder_output), self._sources, strict=True)]


@pytest.mark.parametrize("both", [True, False])
def test_the_run_over_a_prompt_is_read_once_and_no_part_of_a_step(both: bool) -> None:
    clock = Clock()
    pair = ticking_pair(clock)
    large = Prompted(pair.large.predict, "large", clock, LARGE)  # type: ignore[attr-defined]
    small = Prompted(pair.small.predict, "small", clock, SMALL) if both else large  # type: ignore[attr-defined]
    costs = measured(clock, Pair(small, large))
    prompt = LARGE.position * sum(map(len, SOURCES)) / len(SOURCES)  # beside the start token
    assert costs.encode_large_ms == pytest.approx(LARGE.encode + prompt)
    assert costs.verify(1) == pytest.approx(LARGE.step)
    assert costs.small_step_ms == pytest.approx(SMALL.step if both else LARGE.step)
    assert costs.encode_small_ms == pytest.approx(SMALL.encode if both else costs.encode_large_ms)


def test_a_slow_moment_of_the_machine_affects_one_round_only() -> None:
    moment = 0.3
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


def test_where_a_round_takes_seconds_fewer_are_enough() -> None:
    slower = 1e5
    quick, slow = Clock(), Clock()
    wanted = measured(quick, ticking_pair(quick))
    slow.slowness = lambda _: slower
    found = measured(slow, ticking_pair(slow))
    assert found.verify_ms == pytest.approx({width: slower * ms for width, ms in wanted.verify_ms.items()})
    assert slow.now < slower * quick.now / 2


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
    assert latency(NOTHING, method, examples, costs) == pytest.approx(took)


def test_a_step_takes_time_where_a_busy_machine_hides_it() -> None:
    """The six readings of the sources seem to take ten times as long as whole texts."""
    ticks = itertools.accumulate(itertools.chain([1.0] * 12, itertools.repeat(0.1)))
    costs = planning.measure_costs(ticking_pair(Clock()), SOURCES, Request(LIMIT), lambda: next(ticks))
    assert costs.verify_ms[1] > 0 and costs.cost_ratio > 0


def test_the_costs_of_all_drafters_are_medians_over_them() -> None:
    """Of three drafters, of which the clock of one went wrong."""
    right = costs_of(0.2, 0.4, 0.3, {1: 2.0, 2: 2.5}, bandwidth_share=0.6)
    assert common_costs([right, costs_of(0.2, 9.0, 0.3, {1: 9.0, 2: 9.0}), right]) == right


def test_costs_are_measured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    costs = costs_of(0.5, 1.0, 0.25, {1: 2.0, 4: 3.0}, bandwidth_share=0.6)
    assert load_or_measure_costs(tmp_path / "cache" / "costs.json", lambda: costs) is costs
    assert load_or_measure_costs(tmp_path / "cache" / "costs.json", lambda: pytest.fail("measured again")) == costs
    path = tmp_path / "cache" / "costs.json"
    for damaged in ('{"encode_', path.read_text().replace("1", "2")):  # an interrupted write, a changed digit
        path.write_text(damaged)
        caplog.clear()
        assert load_or_measure_costs(path, lambda: costs) is costs
        assert f"{path} is damaged" in caplog.text


def test_the_best_point_of_each_method_is_timed_first() -> None:
    candidates = {
        0: candidate("bild", 29.5, 20, 10),
        1: candidate("bild", 29.6, 20, 8),  # the fastest within a point of the large model
        2: candidate("bild", 25.0, 20, 2),
        3: candidate("speculative", 20.0, 20, 9),
        4: candidate("speculative", 28.0, 20, 9),  # none is within a point: the best
    }
    plan = plan_of(candidates)
    assert plan.next() == [1, 4]
    assert plan.why == {1: "anchor", 4: "anchor"}


@pytest.mark.parametrize("near", [0.0, 0.02])
def test_points_near_the_frontier_are_timed_and_none_behind_a_baseline(near: float) -> None:
    candidates = {
        0: candidate("bild", 25.0, 1, 10),  # 1 % slower than the small model
        1: candidate("bild", 25.0, 5, 10),  # 5 % slower
        2: candidate("bild", 29.9, 20, 15),
    }
    plan = plan_of(candidates, (TradeOff(30.0, 1.0), TradeOff(25.0, 2.0)), near)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {2: "anchor"} | ({0: "frontier"} if near else {})


def test_one_of_several_similar_points_is_timed() -> None:
    candidates = {
        0: candidate("bild", 28.0, 0, 10),  # twice as fast as the large model, and 2 points lost
        1: candidate("bild", 28.0, 1, 10),  # 1 % slower
        2: candidate("bild", 28.3, 2, 10),  # and better by less than a fifth of what is lost
        3: candidate("bild", 28.5, 3, 10),  # and by more
        4: candidate("bild", 29.9, 20, 15),
        5: candidate("bild", 29.99, 21, 15),  # less than 0.1 point above the one before
    }
    plan = plan_of(candidates)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {4: "anchor", 0: "frontier", 3: "frontier"}


def test_each_rule_of_a_method_is_timed_at_no_loss() -> None:
    def ruled(rule: str, quality: float, calls: int) -> Candidate:
        return dataclasses.replace(candidate("cascade", quality, 0, calls), rule=rule)

    candidates = {
        0: ruled("opt", 30.5, 5),
        1: ruled("chow", 30.0, 8),
        2: ruled("chow", 29.5, 7),  # within a point, which is asked of the method
        3: ruled("diff", 30.0, 25),  # slower than the large model
    }
    plan = plan_of(candidates)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {0: "anchor", 1: "choice"}


def dominated(count: int) -> dict[int, Candidate]:
    """One good point and others far behind it."""
    return {0: candidate("bild", 30.0, 0, 4)} | {one: candidate("bild", 20.0, one, 10) for one in range(1, count)}


def test_the_sample_is_drawn_once_by_its_seed() -> None:
    candidates = dominated(30)
    drawn = []
    for seed in (0, 0, 1):
        plan = plan_of(candidates, sample=4, seed=seed)
        rounds = run_plan(plan, true_speedups(candidates))
        drawn.append({number for number, why in plan.why.items() if why == "sample"})
        assert [len(one) for one in rounds] == [1, 4]
    assert drawn[0] == drawn[1] != drawn[2]


def test_further_rounds_are_for_choices_and_for_points_near_the_frontier() -> None:
    plan = plan_of(dominated(30), sample=4)
    run_plan(plan, true_speedups(dominated(30)))
    assert len(plan.timed) == 5 and plan.contenders(plan.timed) == {0}
    equal = {0: candidate("bild", 30.0, 0, 4), 1: candidate("speculative", 30.0, 0, 4), 2: candidate("bild", 30.0, 0, 5)}
    plan = plan_of(equal)
    for number, speedup in enumerate((2.0, 1.99, 1.9)):
        plan.why[number] = "frontier"
        plan.record(number, speedup)
    # The fastest of each method is a choice; the third is within 2 % of neither.
    assert plan.contenders(plan.timed) == {0, 1}
    # All rounds so far decide, not the first ones, from which the plan learns.
    assert plan.contenders({0: 1.93, 1: 1.99, 2: 1.9}) == {0, 1}
    assert plan.contenders({0: 1.93, 1: 1.99, 2: 1.96}) == {1, 2}
    # One that is predicted to be faster, but was never timed, is no choice.
    plan = plan_of({**equal, 3: candidate("speculative", 30.0, 0, 4)})
    for number, speedup in enumerate((2.0, 1.99)):
        plan.why[number] = "frontier"
        plan.record(number, speedup)
    assert plan.speedup(3) > 1.5 and plan.contenders({0: 2.0, 1: 1.5}) == {0, 1}


def test_predictions_do_not_depend_on_the_speed_of_the_machine() -> None:
    """Overheads are fitted to speed-ups, which are ratios to vanilla, not to milliseconds."""
    candidates = {0: candidate("bild", 29.95, 10, 10), 1: candidate("bild", 25.0, 10, 5)}
    plan = plan_of(candidates)
    assert plan.vanilla_ms == TOKENS * LARGE_MS
    plan.record(0, plan.speedup(0) / 1.25)
    assert plan.speedup(0) == pytest.approx(TOKENS * LARGE_MS / 110 / 1.25, rel=0.01)
    assert plan.speedup(1) < TOKENS * LARGE_MS / 60


def test_prediction_errors_are_relative_to_measured_speedups() -> None:
    plan = plan_of(dominated(5))
    plan.predicted = {0: 9.0, 1: 1.5, 2: 2.2, 3: 1.0, 4: 7.0}
    plan.timed = {0: 2.0, 1: 1.0, 2: 2.0, 3: 2.0}  # 4 failed
    plan.why = {0: "anchor", 1: "frontier", 2: "sample", 3: "sample", 4: "sample"}
    found = planning.prediction_error(plan)
    assert found is not None and dataclasses.astuple(found) == pytest.approx((2, 0.3, 0.5))
    plan.timed = {0: 2.0}
    assert planning.prediction_error(plan) is None


@pytest.mark.parametrize(
    "overheads",
    [{"method 0": (30.0, 0.0), "method 1": (0.0, 1.0)}, {"method 0": (0.0, -4.0), "method 2": (10.0, 2.0)}],
    ids=["per text and per call", "both, and a negative one"],
)
def test_the_plan_fits_the_overhead_of_each_method(overheads: dict[str, tuple[float, float]]) -> None:
    candidates = grid(1)
    plan, truth = plan_of(candidates, KNOWN), true_speedups(candidates, overheads)
    rounds = run_plan(plan, truth)
    assert missed(plan, truth, KNOWN) == []
    assert len(plan.timed) < len(candidates) / 2
    for number in rounds[0]:  # anchors are predicted from the runs alone
        off = plan.predicted[number] / plan.timed[number] - 1
        assert (abs(off) > 0.05) == (candidates[number].method in overheads)
    errors = [abs(plan.speedup(number) / truth(number) - 1) for number in candidates]
    unfitted = plan_of(candidates)
    assert sum(errors) < 0.4 * sum(abs(unfitted.speedup(number) / truth(number) - 1) for number in candidates)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        method=st.sampled_from(["bild", "speculative", "token_cascade"]),
        quality=st.integers(0, 35).map(float),
        small_steps=st.integers(0, 40),
        large_calls=st.integers(1, TOKENS),
    ),
    max_size=25,
).map(lambda found: dict(enumerate(found)))


@settings(max_examples=40, deadline=None)
@given(
    candidates=CANDIDATES,
    speeds=st.lists(st.floats(0.2, 8.0), min_size=25, max_size=25),
    failing=st.frozensets(st.integers(0, 24), max_size=5),
    near=st.sampled_from([0.0, 0.02, 0.5]),
    sample=st.integers(0, 4),
)
def test_no_promising_point_is_left_untimed(
    candidates: dict[int, Candidate], speeds: list[float], failing: frozenset[int], near: float, sample: int
) -> None:
    plan = plan_of(candidates, KNOWN, near, sample)
    rounds = run_plan(plan, speeds.__getitem__, failing)
    asked = [number for wanted in rounds for number in wanted]
    assert len(asked) == len(set(asked))
    assert set(asked) == plan.why.keys() == plan.predicted.keys()
    assert plan.timed.keys() == set(asked) - failing
    assert sum(why == "sample" for why in plan.why.values()) <= sample
    assert all(plan.speedup(number) > 0 for number in candidates)
    # Predictions of the final cost model; a failed point has none.
    points = {key: TradeOff(one.quality, plan.timed.get(key) or plan.speedup(key)) for key, one in candidates.items()}
    rest = [number for number in candidates if number not in asked]
    alive = [points[number] for number in candidates if number in plan.timed or number in rest]
    for number in rest:
        assert represented(points[number], plan, near) or any(
            other.quality >= points[number].quality and other.speedup > points[number].speedup * (1 + near)
            for other in [*alive, *KNOWN]
        )
    for method in {one.method for one in candidates.values()}:
        own = [key for key in candidates if candidates[key].method == method and (key in plan.timed or key in rest)]
        for choice in CHOICES:
            kept = [keeps_quality(candidates[number].lower, MARGINS.of(choice)) for number in own]
            index = choose([points[number] for number in own], kept)
            assert index is None or own[index] in plan.timed or points[own[index]].speedup * (1 + near) <= 1
