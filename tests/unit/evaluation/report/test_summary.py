"""The summary of two small sweeps whose numbers are known: points, choices, arms over seeds."""

import json
from typing import Any

import numpy as np
import pytest

from tasks.corpora.example import Example
from tasks.errors import InputError
from tasks.evaluation.report import summarize
from tasks.evaluation.report.formatting import packaged
from tasks.evaluation.results.files import KeptOutputs, point_key
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import DifferenceBounds, SweepRow, TimedRound, TimedRow
from tasks.evaluation.results.summary import ArmPoint, ArmResult, Summary
from tasks.evaluation.scoring.quality import value_of
from tests.unit.evaluation.conftest import PRICES, SIZES, Sweeps, summarized, summary_record, timed, untimed
from tests.unit.evaluation.report.conftest import at

NO_LOSS = "bild_no_loss"


def find(summary: dict[str, Any], arm: str, **settings: Any) -> dict[str, Any]:
    [found] = [point for point in summary["points"] if point["arm"] == arm and settings.items() <= point["settings"].items()]
    return dict(found)


def test_choices_are_marked_on_points_and_listed_where_one_point_is_both(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    marks = {("unaligned", 0.9): "no_loss", ("unaligned", 0.7): "one_point", ("unaligned", 0.5): None}
    marks |= {("aligned", 0.7): "no_loss", ("aligned", 0.9): None}
    assert {key: find(summary, key[0], fallback_threshold=key[1])["chosen"] for key in marks} == marks
    assert [find(summary, "unaligned", draft_length=length)["chosen"] for length in (5, 3)] == ["no_loss", None]
    both = [c["point"] for c in summary["choices"] if (c["method"], c["arm"]) == ("bild", "aligned")]
    assert len(both) == 2 and both[0] == both[1]
    assert summary["points"][both[0]]["settings"]["fallback_threshold"] == 0.7


def test_a_chosen_point_and_the_models_alone_carry_their_test_measurements(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    point = find(summary, "unaligned", fallback_threshold=0.9)
    test = point["test"]
    assert (point["quality"], test["quality"], test["speedup"], test["latency_ms"]) == (59.95, 59.5, 1.25, 16.0)
    assert find(summary, "unaligned", fallback_threshold=0.7)["test"] is None
    vanilla = summary["vanilla"]
    assert (vanilla["large"]["quality"], vanilla["large"]["latency_ms"]) == (60.0, 20.0)
    assert (vanilla["small"]["quality"], vanilla["small"]["test"]["quality"]) == (40.0, 39.0)
    assert (vanilla["small_aligned"]["quality"], vanilla["small_aligned"]["test"]["quality"]) == (42.0, 41.0)


def test_ratios_are_those_of_the_definitions(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    point = find(summary, "aligned", fallback_threshold=0.9)
    expected = {
        "large_calls_per_token": 0.4,
        "accepted_share": 60 / 90,
        "mean_accepted_length": 1.5,
        "fallback_rate": 0.25,
        "rollback_rate": 0.25,
        "relative_latency": 1 / 1.4,
        "latency_ms": 20 / 1.4,
        "latency_ms_p50": 20 / 1.4,
        "latency_ms_p95": (10 + 0.95 * 20) / 1.4,
    }
    assert {name: point[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert expected.keys() <= summary["definitions"].keys() == packaged("definitions.yaml").keys()
    assert summary["vanilla"]["large"]["accepted_share"] is None


def test_rounds_of_the_clock_are_counted(sweeps: Sweeps) -> None:
    row = sweeps["aligned"][2]
    visit = {name: row[name] for name in ("latency_ms", "vanilla_latency_ms")}
    sweeps["aligned"][2] = {**row, "rounds": [visit, visit, visit]}
    rounds = {one["timed_rounds"] for one in summarized("bleu", sweeps)["points"]}
    assert rounds == {1, 3}


def test_the_last_row_of_a_point_counts(sweeps: Sweeps) -> None:
    sweeps["unaligned"].append({**sweeps["unaligned"][2], "speedup": 1.31})
    assert find(summarized("bleu", sweeps), "unaligned", fallback_threshold=0.9)["speedup"] == 1.31


def test_without_vanilla_the_command_that_makes_it_is_named(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["method"] != "vanilla_large"]
    with pytest.raises(InputError, match=r"python -m tasks\.sweep --task toy"):
        summarized("bleu", sweeps)


def test_what_was_not_timed_is_shown_and_never_chosen_deployed_nor_on_a_frontier(sweeps: Sweeps) -> None:
    same = {"fallback_threshold": 0.9, "rollback_threshold": 2.0}
    fastest = next(row for row in sweeps["aligned"] if row["split"] == "validation" and row["speedup"] == 1.6)
    sweeps["aligned"][sweeps["aligned"].index(fastest)] = {**untimed(fastest, 1.7), "same_as": same}
    summary = summarized("bleu", sweeps)
    point = find(summary, "aligned", fallback_threshold=0.7)
    assert not point["timed"] and point["chosen"] is None
    assert (point["quality"], point["predicted"]["speedup"], point["how"]) == (59.9, 1.7, "replayed")
    times = ("speedup", "speedup_interval", "latency_ms", "latency_ms_p50", "latency_ms_p95", "relative_latency")
    assert {point[name] for name in times} == {None}
    assert point["same_as"]["fallback_threshold"] == 0.9
    assert find(summary, "aligned", fallback_threshold=0.9)["chosen"] == "no_loss"
    assert all(summary["points"].index(point) not in curve["points"] for curve in summary["pareto"])
    assert [(row["arm"], row["error"]) for row in summary["failed"]] == [("unaligned", "RuntimeError: out of memory")]
    verdict = summary["verdict"]
    assert summary["points"][verdict["point"]]["speedup"] == 1.5
    assert "The choice was among 8 timed settings of 9; counts use all" in " ".join(verdict["evidence"])


def test_differences_are_from_vanilla_of_the_same_split(sweeps: Sweeps) -> None:
    for row in sweeps["unaligned"]:
        if (row["split"], row["method"]) == ("test", "vanilla_large"):
            row["quality"] = {"bleu": 59.0, "rougeL": 69.0}
    point = find(summarized("bleu", sweeps), "unaligned", fallback_threshold=0.9)
    assert point["quality_difference"] == pytest.approx(-0.05)
    assert point["test"]["quality_difference"] == pytest.approx(0.5)


def test_fronts_of_each_method_and_of_all(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    curves = {(curve["arm"], curve["method"]): curve for curve in summary["pareto"]}
    assert list(curves) == [(d, m) for d in ("unaligned", "aligned") for m in ("bild", "speculative", "all")]
    speeds = {key: [summary["points"][index]["speedup"] for index in curve["points"]] for key, curve in curves.items()}
    assert speeds["unaligned", "bild"] == [2.0, 1.5, 1.2]
    assert speeds["unaligned", "all"] == [2.0, 1.5, 1.3]


def test_what_became_of_drafts_is_counted(sweeps: Sweeps) -> None:
    point = find(summarized("bleu", sweeps), "aligned", fallback_threshold=0.9)
    assert point["acceptance_by_position"] == pytest.approx([20 / 30, 1.0, 1.0], rel=1e-5)
    for row in sweeps["aligned"]:
        del row["counts"]["kept"]
    point = find(summarized("bleu", sweeps), "aligned", fallback_threshold=0.9)
    assert point["acceptance_by_position"] is None


def test_operations_are_theory_of_counts_and_sizes(sweeps: Sweeps) -> None:
    for row in sweeps["aligned"]:
        row["counts"].update(layers=0)
    pair = {"sizes": {"small": {**SIZES, "decoder_parameters": 40}, "large": SIZES, "source_tokens": 5.0}}
    summary = summarized("bleu", sweeps, {"aligned": pair})
    found = find(summary, "aligned", fallback_threshold=0.9)["operations"]
    # The large model runs over 20 · 1 + 20 · 2 positions in 40 calls, in place of 100; a small step is a tenth of one.
    flops, moved = (60 + 9) / 100, (40 + 9) / 100
    assert found == pytest.approx({"flops": flops, "bytes": moved, "intensity": flops / moved}, rel=1e-5)
    assert find(summary, "unaligned", fallback_threshold=0.9)["operations"] is None
    assert summary["pairs"]["unaligned"]["sizes"] is None
    assert summary["pairs"]["aligned"]["sizes"] == {**pair["sizes"], "shares_encoder": False, "shared_parameters": 0}


EXAMPLES = [Example(f"source {number}", (f"the old house number {number} stands",)) for number in range(4)]


def kept(calls: int, wrong: int = 0) -> KeptOutputs:
    """Outputs of so many large calls each, of which some are wrong."""
    texts = ["a house" if number < wrong else example.references[0] for number, example in enumerate(EXAMPLES)]
    return KeptOutputs(texts, np.full((len(EXAMPLES), 3), (calls, 0, 0)))


def chosen(arm: str, seed: int, **settings: Any) -> ArmResult:
    return ArmResult(arm=arm, seed=seed, points=[ArmPoint(purpose=NO_LOSS, settings=settings or None)])


def test_at_equal_proven_quality_the_cheapest_setting_by_counts_is_taken() -> None:
    """Of seed 1 5 calls against 2, though the clock likes another setting; unaligned drafters of seed 2 have none proven."""

    def row(lower: float, speedup: float, **settings: str) -> TimedRow:
        bounds = DifferenceBounds(lower=lower, upper=1.0, compared=4)
        return timed("bild", speedup, settings=settings, difference_bounds=bounds)

    def swept(arm: str, seed: int, bounds: dict[str, float], calls: dict[str, int]) -> None:
        rows = [row(lower, 9.0 if name == "fast" else 2.0, name=name) for name, lower in bounds.items()]
        rows.append(row(0.0, 9.0, drafter="copy"))
        seeds[arm, seed] = rows, PairRecord()
        outputs[arm, seed, "validation"] = {
            point_key("vanilla_large", {}): kept(10),
            point_key("bild", {"drafter": "copy"}): kept(0),
            **{point_key("bild", {"name": name}): kept(number) for name, number in calls.items()},
        }

    seeds, outputs = dict[tuple[str, int], Any](), dict[tuple[str, int, str], Any]()
    swept("unaligned", 1, {"cheap": -0.1, "fast": -0.1, "lossy": -0.8}, {"cheap": 5, "fast": 8, "lossy": 7})
    swept("aligned", 1, {"cheap": -0.1, "fast": -0.1, "lossy": -0.8}, {"cheap": 2, "fast": 8, "lossy": 1})
    swept("unaligned", 2, {"lossy": -3.0}, {"lossy": 1})
    swept("aligned", 2, {"cheap": -0.49}, {"cheap": 2})
    found = {one.purpose: one for one in summarize.at_proven_quality(seeds, outputs, PRICES)}
    assert found.keys() == {NO_LOSS, "bild_one_point"}
    assert found[NO_LOSS].by_seed == pytest.approx({1: 11 / 5, 2: 21 / 5})
    assert found["bild_one_point"].by_seed == pytest.approx({1: 11 / 3, 2: 21 / 5})
    assert {one.split for one in found.values()} == {"validation"}


def test_what_alignment_gives_at_the_choices_is_counted_on_their_outputs() -> None:
    """Seed 1: 5 calls against 2, so 11 ms against 5; seed 2: the unaligned arm chose none, and vanilla takes 10 calls."""
    results = [chosen("unaligned", 1, max_draft=3), chosen("aligned", 1, max_draft=4)]
    results += [chosen("unaligned", 2), chosen("aligned", 2, max_draft=4)]
    vanilla = point_key("vanilla_large", {})
    outputs = {
        ("unaligned", 1, "test"): {point_key("bild", {"max_draft": 3}): kept(5), vanilla: kept(10)},
        ("aligned", 1, "test"): {point_key("bild", {"max_draft": 4}): kept(2), vanilla: kept(10)},
        ("unaligned", 2, "test"): {vanilla: kept(10)},
        ("aligned", 2, "test"): {point_key("bild", {"max_draft": 4}): kept(2)},
    }
    [effect] = summarize.counted_choices("test", results, outputs, PRICES)
    assert effect.purpose == NO_LOSS and effect.by_seed == pytest.approx({1: 11 / 5, 2: 21 / 5})
    # The fastest choice of an arm may draft without its model, and then says nothing of it.
    results[1] = chosen("aligned", 1, max_draft=4, drafter="copy")
    outputs["aligned", 1, "test"] = {point_key("bild", {"max_draft": 4, "drafter": "copy"}): kept(1)}
    [effect] = summarize.counted_choices("test", results, outputs, PRICES)
    assert effect.by_seed.keys() == {2}


def test_loops_of_the_recommended_setting_are_warned_of_where_vanilla_has_fewer(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps)
    point, none = summary.recommended, np.zeros((3, 3), dtype=np.int32)
    assert point is not None and point.test is not None
    own, vanilla = point_key(point.method, point.settings), point_key("vanilla_large", {})
    looping = ["and so on " * 9, "a house", "b " * 12]
    texts = {own: KeptOutputs(looping, none), vanilla: KeptOutputs([*looping[:2], "b"], none)}
    elsewhere = {own: KeptOutputs(["a"] * 3, none), vanilla: KeptOutputs(["a"] * 3, none)}
    outputs = {(point.arm, 1, "test"): texts, (point.arm, 1, "validation"): elsewhere}
    says = "2 outputs of the recommended setting on test repeat themselves, 1 of the large model alone"
    assert summarize.loop_warning(summary, outputs) == [says]
    assert summarize.loop_warning(summary, {(point.arm, 1, "test"): {own: texts[vanilla], vanilla: texts[own]}}) == []
    assert summarize.loop_warning(summary, {}) == []


def test_what_alignment_gives_at_equal_quality_is_counted_on_bilds_settings() -> None:
    settings = [point_key("bild", {"fallback_threshold": value}) for value in (0.5, 0.9)]
    behind = point_key("bild", {"fallback_threshold": 1.0})

    def clocked(method: str, settings: str, milliseconds: float, rounds: int) -> TimedRow:
        one = TimedRound(latency_ms=[milliseconds] * 2, vanilla_latency_ms=[21.0] * 2)
        scored: dict[str, Any] = {"metric": "rougeL", "quality": {"rougeL": 1.0}}
        return timed(method, 21 / milliseconds, settings=json.loads(settings), rounds=[one] * rounds, **vars(one), **scored)

    seeds, outputs = dict[tuple[str, int], Any](), dict[tuple[str, int, str], Any]()
    for arm, calls in (("unaligned", 5), ("aligned", 2)):
        outputs[arm, 1, "validation"] = {
            point_key("vanilla_large", {}): kept(10),
            **dict(zip(settings, (kept(calls, wrong=1), kept(calls + 3)), strict=True)),
            behind: kept(calls + 9),
            point_key("bild", {"drafter": "copy"}): kept(1),
            point_key("speculative", {}): kept(1),
        }
        timings = (settings[0], calls * 2 + 1, 3), (settings[1], calls * 2 + 7, 3), (behind, calls**3, 1)
        seeds[arm, 1] = [clocked(*key, milliseconds, rounds) for key, milliseconds, rounds in timings], PairRecord()
    effect, clock = summarize.along_frontiers("rougeL", EXAMPLES, seeds, outputs, PRICES)
    assert effect is not None and effect.split == "validation" and effect.texts == 4
    # From 5 points below vanilla, linear in quality between 5 and 8 calls against 2 and 5, which take 2 ms each beside 1 ms.
    worse = value_of(kept(5, wrong=1).texts, [example.references for example in EXAMPLES], "rougeL")
    better = (97.5 - worse) / (100 - worse)
    assert effect.ratio == pytest.approx((11 / 5) ** (1 - better) * (17 / 11) ** better)
    # The two settings were timed as they count, on two texts; the third one fell behind in the first round.
    assert clock is not None and clock.texts == 2 and clock.ratio == pytest.approx(effect.ratio)
    untimed = {key: (list[SweepRow](), PairRecord()) for key in seeds}
    assert summarize.along_frontiers("rougeL", EXAMPLES, untimed, outputs, PRICES) == (effect, None)
    assert summarize.along_frontiers("perplexity", EXAMPLES, seeds, outputs, PRICES) == (None, None)


def test_at_batch_1_the_timing_is_that_of_table_1(sweeps: Sweeps) -> None:
    settings = {"fallback_threshold": 0.7, "rollback_threshold": 2.0}
    points = [
        {"method": "bild", "settings": one, "batch_size": size, "speedup": 1.1, "rounds": [1.0, 1.2]}
        for one, size in ((settings, 1), (settings, 2), ({"fallback_threshold": 0.1}, 1))
    ]
    vanilla = [{"batch_size": size, "throughput": 1.0} for size in (1, 2)]
    pairs = {"aligned": {"batches": {"split": "test", "examples": 8, "vanilla": vanilla, "points": points}}}
    (chosen,) = [row for row in sweeps["aligned"] if (row["method"], row["split"]) == ("bild", "test")]
    chosen["rounds"] = [{"latency_ms": [10.0, 5.0], "vanilla_latency_ms": [12.0, vanilla]} for vanilla in (18.0, 9.0)]
    batches = summary_record("bleu", sweeps, pairs).pairs["aligned"].batches
    assert [(one.speedup, one.rounds) for one in batches.points] == [(chosen["speedup"], [2.0, 1.4]), *[(1.1, [1.0, 1.2])] * 2]


def test_differences_are_from_vanilla_at_the_same_temperature_without_choices(warmed: Summary, full_record: Summary) -> None:
    by_degree = {one.temperature: one for one in warmed.temperatures}
    own = [point for point in full_record.points if point.arm == "unaligned"]
    for degree, swept in by_degree.items():
        assert swept.arm == "unaligned" and len(swept.points) == len(own)
        assert swept.vanilla_quality == pytest.approx(full_record.vanilla.large.quality - 10 * degree)
        for point, like in zip(swept.points, own, strict=True):
            assert point.quality == pytest.approx(like.quality - 10 * degree, abs=1e-4)
            assert point.quality_difference == pytest.approx(like.quality_difference, abs=1e-4)
            assert point.chosen is None and point.test is None
            assert point.sampling is not None and point.sampling.temperature == degree
    assert any(point.chosen for point in own), "the main sweep does choose"


def test_rows_of_another_split_are_left_out_and_vanilla_is_needed(full_sweeps: Sweeps) -> None:
    rows = at(full_sweeps["unaligned"], 0.5, 0.0)
    pairs = {"unaligned": PairRecord()}
    [alone] = summarize.temperature_points("toy", {("unaligned", 0.5): [*rows, *at(full_sweeps["unaligned"], 1.0, 5.0)]}, pairs)
    assert len(alone.points) == len(rows) - 2
    without = [row for row in rows if row.method != "vanilla_large"]
    with pytest.raises(InputError, match="no measured vanilla_large row"):
        summarize.temperature_points("toy", {("unaligned", 0.5): without}, pairs)
