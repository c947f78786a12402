"""What every figure shows, from whole sweeps that are made up from simple laws, and how figures are written."""

import copy
import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.speculative import best_draft_length, expected_operations, expected_speedup, expected_tokens
from tasks.evaluation.report import figures, figures_detail
from tasks.evaluation.report.charts import Figure, picture_spec, save
from tasks.evaluation.report.page import all_figures
from tasks.evaluation.results.rows import DecodingCounts, ShownExample, TimedPoint, TimedRow, UntimedPoint
from tasks.evaluation.results.summary import Summary
from tests.charts import channels, drawn, layers, points, present, spec_of
from tests.unit.evaluation.conftest import Records, Sweeps, point_row, records, summary_record

NONE: Records = {"unaligned": [], "aligned": []}


NAMES = (
    *("pareto", "everything", "oracle", "ablations", "thresholds", "deferrals", "cascades"),
    *("latency", "operations", "time_shares", "tokens", "windows", "speed"),
)


@pytest.fixture(scope="module")
def drawings(full_record: Summary, full_rows: Records) -> dict[str, Figure]:
    return all_figures(full_record, full_rows)


def test_every_figure_is_a_picture(drawings: dict[str, Figure], tmp_path: Path) -> None:
    assert tuple(drawings) == NAMES
    for name, figure in drawings.items():
        save(figure, tmp_path / f"{name}.svg")
        drawing = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert drawing.count("<path") > 20 and figure.title.split("'")[0] in drawing, name


def test_the_same_figure_gives_the_same_bytes(full_record: Summary, tmp_path: Path) -> None:
    figure = present(figures_detail.operations(full_record, NONE))
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        save(figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    picture = (tmp_path / "a.png").read_bytes()
    assert picture == (tmp_path / "b.png").read_bytes() and len(picture) < 600_000
    width, height = struct.unpack(">II", picture[16:24])
    assert 1000 < width < 2000 and 400 < height < 2000


def test_every_chart_names_its_axes_and_has_few_legend_entries(drawings: dict[str, Figure]) -> None:
    for name, figure in drawings.items():
        assert figure.caption and "\n" not in figure.caption, "the docstring of its function"
        for panel in figure.panels:
            panel.to_dict(validate=True)
            assert {channel.get("title") for channel in channels(panel, "x", "y")} - {None}, name
            domains = [(channel.get("scale") or {}).get("domain", ()) for channel in channels(panel, "color", "shape")]
            legend = {label for domain in domains for label in domain if isinstance(label, str)}
            assert all(len(set(domain)) == len(domain) for domain in domains) and len(legend) <= 8, name


def test_the_pareto_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = present(figures.pareto(summary_record("bleu", sweeps), NONE))
    on_validation = figure.panels[0]
    letters = {record["name"]: (record["x"], record["y"]) for record in drawn(on_validation, "text") if "name" in record}
    places = {"A": (1 / 1.6, 59.9), "B": (1 / 1.3, 60.0), "C": (1 / 1.5, 59.2)}
    assert letters == {letter: pytest.approx(place, rel=1e-5) for letter, place in places.items()}
    assert "vanilla large" in [layer["mark"].get("text") for layer, _ in layers(on_validation)]
    key = spec_of(on_validation)["title"]["subtitle"]
    assert key == [
        "A  1.60× BiLD, aligned: no loss, ≤ 1 point, recommended",
        "B  1.30× speculative, unaligned: no loss",
        "C  1.50× BiLD, unaligned: ≤ 1 point",
    ]
    assert figure.title == "toy: BLEU against latency, within 2 points of vanilla large"
    assert min(record["y"] for record in drawn(on_validation, "point", filled=True)) >= 58.0
    alone = present(figures.everything(summary_record("bleu", sweeps), NONE)).panels[0]
    assert {record["text"] for record in drawn(alone, "text") if "text" in record} == {"vanilla large", "small 4.0×"}


def test_lettered_points_on_test_stand_apart_and_say_what_is_contradicted(sweeps: Sweeps) -> None:
    (row,) = [row for row in sweeps["aligned"] if (row["split"], row["method"]) == ("test", "bild")]
    for upper, name in ((-0.2, "A"), (-1.2, "A contradicted")):
        row["difference_bounds"] = {"lower": -1.9, "upper": upper, "compared": 1}
        panels = present(figures.pareto(summary_record("bleu", sweeps), NONE)).panels
        record = drawn(panels[1], "point", filled=True)[0]
        assert record["name"] == name
        assert (record["x"], record["y"]) == pytest.approx((1 / 1.55, -0.6), abs=1e-5)
        on_validation, on_test = (spec_of(panel)["title"]["subtitle"] for panel in panels)
        assert ("contradicted" in on_validation[0], "contradicted" in on_test[0]) == (name != "A", name != "A")
        assert on_test[1] == "B  not measured on test"


def test_a_legend_names_few_methods_and_oracles_are_left_out(full_record: Summary) -> None:
    changed = [
        dataclasses.replace(point, method=f"method_{place % 9}") if place % 2 and point.method != "bild_oracle" else point
        for place, point in enumerate(full_record.points)
    ]
    panel = present(figures.everything(dataclasses.replace(full_record, points=changed), NONE)).panels[0]
    [names] = {tuple(channel["scale"]["domain"]) for channel in channels(panel, "shape") if channel.get("scale")}
    assert len(names) == 6 and names[0] == "BiLD" and names[-1] == "other methods"
    assert "bild oracle" not in names


def test_frontiers_are_steps_through_the_points_of_all_methods(sweeps: Sweeps) -> None:
    panel = present(figures.everything(summary_record("bleu", sweeps), NONE)).panels[0]
    steps = [record for record in drawn(panel, "line", interpolate="step-after") if record["series"] == "aligned"]
    # The last corner is speculative decoding, which beats BiLD's best quality there.
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 59.9), (1 / 1.5, 60.0), (1.0, 60.0)]
    assert [(step["x"], step["y"]) for step in steps] == [pytest.approx(corner, rel=1e-5) for corner in corners]


def test_intervals_on_test_lie_on_their_axes_beside_the_margins(sweeps: Sweeps) -> None:
    on_test = present(figures.pareto(summary_record("bleu", sweeps), NONE)).panels[1]
    chosen = next(record for record in drawn(on_test, "rule") if record.get("name") == "A")
    assert (chosen["left"], chosen["right"]) == pytest.approx((1 / 1.6, 1 / 1.5), rel=1e-5)
    order = [layer["mark"]["type"] for layer, _ in layers(on_test)]
    assert order.index("rule") < order.index("point"), "intervals lie under the points"
    levels = [channel["datum"] for channel in channels(on_test, "y") if "datum" in channel]
    assert set(levels) == {0.0, -0.5, -1.0}


def test_a_curve_of_thresholds_is_one_rollback_threshold(full_record: Summary) -> None:
    panels = present(figures.thresholds(full_record, NONE)).panels
    assert [spec_of(panel)["title"] for panel in panels] == ["aligned"] * 2 + ["unaligned"] * 2
    timed, every = (drawn(panel, "point") for panel in panels[:2])
    assert {mark["series"] for mark in every} == {f"BiLD α_RB {rollback} ≤ 10" for rollback in ("1", "2", "3", "5", "∞")}
    own = [one for one in points(full_record, "aligned", "bild") if one.settings["max_draft"] == 10]
    swept = [one for one in own if one.settings["fallback_threshold"]]  # without fallback it is another method's figure
    assert len(every) == len(swept) == 5 * 5
    assert len(timed) == sum(isinstance(one, TimedPoint) for one in swept) < len(every), "latency is never predicted here"
    at_two = [one.large_calls_per_token for one in swept if one.settings["rollback_threshold"] == 2.0]
    assert [mark["x"] for mark in every if mark["series"] == "BiLD α_RB 2 ≤ 10"] == pytest.approx(at_two, abs=1e-5)


def test_the_oracle_curve_is_over_the_share_of_replaced_tokens(full_record: Summary) -> None:
    (panel,) = present(figures.oracle(full_record, NONE)).panels
    marks = drawn(panel, "point")
    for arm in ("aligned", "unaligned"):
        own = points(full_record, arm, "bild_oracle")
        shares = [100 * point.counts.rollbacks / point.counts.tokens for point in own]
        assert [mark["x"] for mark in marks if mark["series"] == arm] == pytest.approx(shares, abs=1e-4)
        band = [(mark["low"], mark["high"]) for mark in drawn(panel, "area") if mark["series"] == arm]
        assert band == [pytest.approx(point.quality_interval) for point in own] and len(own) == 4


def test_a_policy_that_no_point_leaves_out_is_not_in_the_legend(full_record: Summary) -> None:
    kept = [point for point in full_record.points if point.settings.get("rollback_threshold") != "inf"]
    panels = present(figures.ablations(dataclasses.replace(full_record, points=kept), NONE)).panels
    for panel in panels:
        domains = [channel["scale"]["domain"] for channel in channels(panel, "color") if "scale" in channel]
        assert domains and all(domain == ["BiLD", "without fallback"] for domain in domains)


def added(summary: Summary, method: str, *several: dict[str, Any], **changed: Any) -> Summary:
    """The summary with points of another method for each drafter, which are those of speculative decoding otherwise."""
    found: list[TimedPoint | UntimedPoint] = []
    for arm in ("unaligned", "aligned"):
        like = points(summary, arm, "speculative")[0]
        found += (dataclasses.replace(like, method=method, settings=settings, **changed) for settings in several)
    return dataclasses.replace(summary, points=[*summary.points, *found])


def series_of(figure: Figure | None) -> set[str]:
    return {mark["series"] for panel in present(figure).panels for mark in drawn(panel, "point")}


def test_rejection_is_of_the_judged_tokens(full_record: Summary) -> None:
    rejected, calls = present(figures.cascades(full_record, NONE)).panels[:2]
    shares = [record["x"] for record in drawn(rejected, "point") if record["series"] == "speculative"]
    # Speculative decoding stops at the first token that it rejects, so 9 of 10 verified tokens stay whatever the window.
    assert shares == pytest.approx([10, 10, 10], abs=0.5)
    assert "token cascade" not in {record["series"] for record in drawn(rejected, "point")}, "it verifies nothing"
    assert {"token cascade", "speculative cascade [opt]"} <= {record["series"] for record in drawn(calls, "point")}


def test_a_curve_changes_nothing_but_alpha(full_record: Summary) -> None:
    point = points(full_record, "aligned", "speculative_cascade")[0]
    other = dataclasses.replace(point, settings={**point.settings, "draft_length": 9}, quality=50.0)
    summary = dataclasses.replace(full_record, points=[*full_record.points, other])
    marks = drawn(present(figures.cascades(summary, NONE)).panels[1], "point")
    own = [record["curve"] for record in marks if record["series"] == "speculative cascade [chow]"]
    assert sorted(own.count(curve) for curve in set(own)) == [1, 4]


def test_the_oracle_defers_where_it_takes_the_large_model_s_token(full_record: Summary) -> None:
    like = points(full_record, "aligned", "speculative")[0].counts
    counts = dataclasses.replace(like, tokens=200, large_calls=200, rollbacks=30)
    oracle = [{"rule": "diff", "deferral_cost": cost} for cost in (0.0, 0.1)]
    summary = added(full_record, "diff_oracle", *oracle, counts=counts, large_calls_per_token=1.0)
    aligned, _unaligned = present(figures.deferrals(summary, NONE)).panels
    marks = [mark for mark in drawn(aligned, "point") if "series" in mark]
    assert [mark["x"] for mark in marks if mark["series"] == "diff oracle [diff]"] == [0.15, 0.15]
    tokens = [point.large_calls_per_token for point in points(full_record, "aligned", "token_cascade")]
    assert [mark["x"] for mark in marks if mark["series"] == "token cascade"] == pytest.approx(tokens, abs=1e-5)
    # A text of speculative decoding defers once a draft.
    assert all(mark["x"] < 0.5 for mark in marks if mark["series"] == "speculative")
    levels = {channel["datum"] for channel in channels(aligned, "y") if "datum" in channel}
    assert levels == {summary.vanilla.small_aligned.quality, summary.vanilla.large.quality}
    # In the figure of calls the oracle would be a vertical line.
    assert not any("oracle" in series for series in series_of(figures.cascades(summary, NONE)))


def test_readings_of_a_method_are_curves_of_their_own(full_record: Summary) -> None:
    lossy = [{"draft_length": 5, "lossiness": 0.2, "tuned": tuned} for tuned in (False, True)]
    summary = added(full_record, "speculative_lossy", *lossy)
    assert {"speculative lossy, β = 1", "speculative lossy, β tuned"} <= series_of(figures.cascades(summary, NONE))
    copying = {"drafter": "copy", "draft_length": 5, "rule": "chow", "deferral_cost": 0.1}
    names = {
        "speculative cascade [chow], copy": added(full_record, "speculative_cascade", copying),
        "sequence cascade [sum]": added(full_record, "sequence_cascade", {"confidence": "sum", "deferral_cost": 0.1}),
    }
    assert [figures.curve_name(found.points[-1]) for found in names.values()] == list(names)


def test_a_picture_has_a_legend_for_each_set_of_curves(full_record: Summary) -> None:
    rules = ("diff", "opt", "bild", "token_v1", "token_v2", "token_v3", "chow_log", "diff_log", "opt_log")
    settings = [{"draft_length": 5, "rule": rule, "deferral_cost": 0.1} for rule in rules]
    figure = present(figures.cascades(added(full_record, "speculative_cascade", *settings), NONE))
    picture = picture_spec(figure)
    groups = [{tuple(channel["scale"]["domain"]) for channel in _legends(group)} for group in picture["concat"]]
    assert [len(group) for group in groups] == [1, 1] and picture["resolve"]["scale"]["color"] == "independent"
    assert sum(len(group["concat"]) for group in picture["concat"]) == len(figure.panels)


def _legends(group: dict[str, Any]) -> list[dict[str, Any]]:
    colours = [layer["encoding"].get("color") or {} for panel in group["concat"] for layer in panel["layer"]]
    return [colour for colour in colours if (colour.get("scale") or {}).get("domain")]


def test_greedy_lenience_is_drawn_as_lossy_acceptance(full_record: Summary) -> None:
    lenient = [one for one in full_record.points if one.method == "speculative_lenient"]
    others = [one for one in full_record.points if one.method != "speculative_lenient"]
    drawn_at = [dataclasses.replace(one, sampling=SamplingSettings(temperature=1.0)) for one in lenient]
    for points_of_it, shown in ((lenient, True), (drawn_at, False)):
        summary = dataclasses.replace(full_record, points=[*others, *points_of_it])
        assert ("speculative lenient" in series_of(figures.cascades(summary, NONE))) == shown
    alone = dataclasses.replace(full_record, points=[*lenient, *points(full_record, "aligned", "speculative")])
    assert figures.cascades(alone, NONE) is None, "without a cascade there is nothing to compare"


def test_each_block_size_has_its_panel(full_record: Summary) -> None:
    assert figures.block_sizes(full_record, NONE) is None, "all cascades have γ 5"
    shorter = [{"draft_length": 3, "rule": "chow", "deferral_cost": cost} for cost in (0.1, 0.3)]
    figure = present(figures.block_sizes(added(full_record, "speculative_cascade", *shorter), NONE))
    titles = [spec_of(panel)["title"] for panel in figure.panels]
    assert titles == ["aligned, γ 3", "aligned, γ 5", "unaligned, γ 3", "unaligned, γ 5"]
    short, long = (drawn(panel, "point") for panel in figure.panels[:2])
    # Speculative decoding has one point with γ 3 and one with γ 5.
    assert [mark["series"] for mark in short] == ["speculative cascade [chow]", "speculative cascade [chow]", "speculative"]
    assert sum(mark["series"] == "speculative" for mark in long) == 1


def test_bild_stands_beside_its_cascade(full_record: Summary) -> None:
    assert figures.bild_variants(full_record, NONE) is None, "without the cascade there is nothing to compare"
    stars = [{"rule": "bild", "deferral_cost": cost, "draft_length": 5} for cost in (0.5, 2.0)]
    figure = present(figures.bild_variants(added(full_record, "speculative_cascade", *stars), NONE))
    assert len(figure.panels) == 4
    latency, calls = figure.panels[:2]
    timed, all_points = (drawn(panel, "point") for panel in (latency, calls))
    names = {mark["series"] for mark in all_points}
    assert names == {"BiLD* γ 5", *(f"BiLD α_FB {threshold} ≤ 10" for threshold in (0.5, 0.6, 0.7, 0.8, 0.9))}
    assert len(timed) < len(all_points) == 2 + 5 * 5, "latency is never predicted here"
    assert all(full_record.points[mark["point"]].timed for mark in timed if mark["point"] < len(full_record.points))


def test_lossy_residuals_are_compared_where_tokens_are_drawn(full_record: Summary) -> None:
    lossy = [{"draft_length": 5, "lossiness": lossiness, "tuned": tuned} for tuned in (False, True) for lossiness in (0.2, 0.5)]
    assert figures.lossy_variants(added(full_record, "speculative_lossy", *lossy), NONE) is None, "greedy, both are exact"
    drawn_tokens = SamplingSettings(temperature=1.0)
    assert figures.lossy_variants(added(full_record, "speculative_lossy", lossy[0], sampling=drawn_tokens), NONE) is None
    figure = present(figures.lossy_variants(added(full_record, "speculative_lossy", *lossy, sampling=drawn_tokens), NONE))
    marks = drawn(figure.panels[0], "point")
    assert [mark["series"] for mark in marks] == ["speculative lossy, β = 1"] * 2 + ["speculative lossy, β tuned"] * 2


def test_the_share_of_faster_examples_is_counted(sweeps: Sweeps) -> None:
    chosen = next(row for row in sweeps["aligned"] if row["split"] == "test" and row["method"] == "bild")
    chosen["latency_ms"], chosen["vanilla_latency_ms"] = [5.0, 40.0, 2.0, 9.0], [10.0, 30.0, 10.0, 10.0]
    rows = {arm: records(rows) for arm, rows in sweeps.items()}
    figure = present(figures_detail.latency(summary_record("bleu", sweeps), rows))
    panel = figure.panels[0]
    assert spec_of(panel)["title"]["text"] == ["aligned, BiLD (test)", "75% of 4 examples faster"] and figure.square
    marks = drawn(panel, "point")
    assert [mark["x"] for mark in marks] == chosen["vanilla_latency_ms"]
    assert [mark["y"] for mark in marks] == chosen["latency_ms"] and "2.00×" in marks[0]["text"]


def test_early_exits_of_two_tasks_are_frontiers_with_intervals(sweeps: Sweeps) -> None:
    assert figures.early_exits({"toy": summary_record("bleu", sweeps)}) is None
    other = copy.deepcopy(sweeps)
    for row in sweeps["unaligned"]:
        if row["method"] == "bild":
            row["settings"] = {"drafter": "early_layer", **row["settings"]}
    for threshold, quality, speedup in ((0.9, 59.9, 1.1), (0.8, 59.0, 1.05), (0.7, 57.0, 1.4)):
        settings = {"confidence": "saturation", "threshold": threshold}
        other["unaligned"].append(point_row("unaligned", "validation", "calm", settings, quality, speedup))
    both = {"exits": summary_record("bleu", sweeps), "weighted": summary_record("bleu", other)}
    (panel,) = present(figures.early_exits(both)).panels
    panel.to_dict(validate=True)
    marks = drawn(panel, "point", filled=True)
    calm = [mark for mark in marks if mark["series"] == "weighted: CALM [saturation]"]
    assert [(mark["y"], round(1 / mark["x"], 2)) for mark in calm] == [(57.0, 1.4), (59.9, 1.1)]
    assert {mark["series"] for mark in marks} - {calm[0]["series"]} == {"exits: BiLD, early_layer"}
    assert (calm[1]["low"], calm[1]["high"], calm[1]["left"]) == (57.9, 61.9, pytest.approx(1 / 1.15))


def test_theory_and_measurement_are_named(full_record: Summary) -> None:
    (panel,) = present(figures_detail.operations(full_record, NONE)).panels
    bars = drawn(panel, "bar")
    *theory, measured = next(layer for layer, _ in layers(panel))["encoding"]["x"]["sort"]
    assert all(name.endswith("(theory)") for name in theory) and measured == "speed-up|(measured)"
    own = [bar["y"] for bar in bars if ", aligned, " in bar["series"]]
    assert own[1] == pytest.approx(1.15 / own[2]), "bytes are operations over intensity"
    without = [dataclasses.replace(point, operations=None) for point in full_record.points]
    assert figures_detail.operations(dataclasses.replace(full_record, points=without), NONE) is None


def test_the_time_of_a_text_is_shared_out_by_counts(full_record: Summary) -> None:
    (panel,) = present(figures_detail.time_shares(full_record, NONE)).panels
    bars = drawn(panel, "bar")
    assert bars[0]["y"] == bars[3]["y"] == "vanilla large" and not any("speculative, aligned, ≤" in bar["y"] for bar in bars)
    assert bars[3]["end"] == pytest.approx(1.0)
    name = "speculative, aligned, no loss"
    point = next(one for of, one in full_record.chosen_points() if (of.arm, of.method) == ("aligned", "speculative"))
    costs = full_record.pairs["aligned"].costs
    assert costs is not None
    # By hand: vanilla takes 15 tokens of 0.235 ms; a check of γ + 1 positions takes γ / 5 of 0.047 ms more than a step.
    calls, length = point.counts.large_calls / 400, int(point.settings["draft_length"] or 0)
    encoders, whole = costs.encode_small_ms + costs.encode_large_ms, costs.encode_large_ms + 15 * 0.235
    further = calls * 0.047 * length / 5
    own = [bar["end"] - bar["x"] for bar in bars if bar["y"] == name]
    assert [one * whole for one in own] == pytest.approx([encoders, calls * 0.235, further, calls * length * 0.021])
    (mark,) = [one for one in drawn(panel, "point", shape="diamond") if one["y"] == name]
    assert (mark["x"], mark["low"] < mark["x"] < mark["high"]) == (pytest.approx(1 / point.speedup), True)
    expected = expected_speedup(0.9, length, 0.021 / 0.235)
    assert {one["y"]: one["x"] for one in drawn(panel, "point", shape="circle")}[name] == pytest.approx(1 / expected)
    without = {arm: dataclasses.replace(pair, costs=None) for arm, pair in full_record.pairs.items()}
    assert figures_detail.time_shares(dataclasses.replace(full_record, pairs=without), NONE) is None


def test_the_time_of_a_text_is_the_mean_of_the_seeds(full_record: Summary) -> None:
    (one,) = [one for one in full_record.arms if one.arm == "aligned"]
    thrice = [dataclasses.replace(point.counts, small_steps=3 * point.counts.small_steps) for point in one.points]
    points = [dataclasses.replace(point, counts=own, speedup=4.0) for point, own in zip(one.points, thrice, strict=True)]
    both = dataclasses.replace(full_record, arms=[*full_record.arms, dataclasses.replace(one, seed=2, points=points)])
    shown = [present(figures_detail.time_shares(record, NONE)).panels[0] for record in (full_record, both)]
    name = "speculative, aligned, no loss"
    drafter, mean = ([bar for bar in drawn(panel, "bar") if bar["y"] == name][3] for panel in shown)
    assert mean["end"] - mean["x"] == pytest.approx(2 * (drafter["end"] - drafter["x"]))
    assert [mark["x"] for mark in drawn(shown[1], "point", shape="diamond") if mark["y"] == name][1:] == [0.25]
    older = [dataclasses.replace(point, counts=DecodingCounts(tokens=0)) for point in one.points]
    without = dataclasses.replace(full_record, arms=[dataclasses.replace(one, points=older)])
    assert figures_detail.time_shares(without, NONE) is None


def test_the_earliest_layers_are_shares_of_the_tokens(full_record: Summary) -> None:
    assert figures_detail.agreeing_layers(full_record, NONE) is None
    pairs = {arm: dataclasses.replace(pair, agreeing_layers=[10, 0, 30]) for arm, pair in full_record.pairs.items()}
    (panel,) = present(figures_detail.agreeing_layers(dataclasses.replace(full_record, pairs=pairs), NONE)).panels
    assert {bar["x"]: bar["y"] for bar in drawn(panel, "bar")} == {1: 25.0, 2: 0.0, 3: 75.0}
    assert spec_of(panel)["title"] == "mean 2.5 of 3 layers, 40 tokens"


def lines(panel: Any) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for record in drawn(panel, "line"):
        found.setdefault(record["series"], {})[record["x"]] = record["y"]
    return found


def test_tokens_stand_on_the_lines_of_equation_1(full_record: Summary) -> None:
    (panel,) = present(figures_detail.tokens(full_record, NONE)).panels
    drawn_lines = lines(panel)
    assert set(drawn_lines) == {"γ 3", "γ 5", "γ 7", "oracle for γ"}
    assert drawn_lines["γ 5"][0.8] == pytest.approx(expected_tokens(0.8, 5), abs=1e-3)
    assert drawn_lines["oracle for γ"][0.8] == pytest.approx(5) and max(drawn_lines["oracle for γ"].values()) <= 8
    marks = [mark for mark in drawn(panel, "point") if mark["source"] == "small, aligned"]
    own = points(full_record, "aligned", "speculative")
    assert [mark["y"] for mark in marks] == [point.tokens_per_large_call for point in own]
    rate = full_record.pairs["aligned"].acceptance_rate()
    assert rate is not None and {mark["x"] for mark in marks} == {rate.rate}
    assert not any("point" in record for record in drawn(panel, "line")), "theory is no measured point"


def test_the_best_window_is_that_of_the_fastest_measured_point(full_record: Summary) -> None:
    (panel,) = present(figures_detail.windows(full_record, NONE)).panels
    assert lines(panel)["c 0.1"][0.8] == best_draft_length(0.8, 0.1, 16)
    fastest = max(points(full_record, "unaligned", "speculative"), key=lambda point: point.speedup or 0)
    mark = next(mark for mark in drawn(panel, "point") if mark["name"].startswith("small, unaligned"))
    assert mark["y"] == fastest.settings["draft_length"]
    assert len(drawn(panel, "text", stroke=None)) == 2, "each mark has its name once"
    one_length = [point for point in full_record.points if point.settings.get("draft_length") not in (3, 7)]
    assert figures_detail.windows(dataclasses.replace(full_record, points=one_length), NONE) is None


def test_speed_and_operations_are_drawn_at_the_drafters_own_costs(full_record: Summary) -> None:
    figure = present(figures_detail.speed(full_record, NONE))
    assert len(figure.panels) == 4, "speed and operations of either small model"
    speed, operations = figure.panels[:2]
    pair = full_record.pairs["unaligned"]
    assert pair.cost_ratio is not None and pair.sizes is not None and pair.sizes.decoder_ratio is not None
    assert lines(speed)["γ 5"][0.8] == pytest.approx(expected_speedup(0.8, 5, pair.cost_ratio), abs=1e-3)
    assert lines(operations)["γ 5"][0.8] == pytest.approx(expected_operations(0.8, 5, pair.sizes.decoder_ratio), abs=1e-3)
    own = points(full_record, "unaligned", "speculative")
    assert [mark["y"] for mark in drawn(speed, "point")] == [point.speedup for point in own]
    counts = own[0].counts
    positions = sum(width * runs for width, runs in (counts.verified or {}).items())
    expected = (positions + pair.sizes.decoder_ratio * counts.small_steps) / counts.tokens
    assert drawn(operations, "point")[0]["y"] == pytest.approx(expected)


def test_without_an_acceptance_rate_there_is_no_theory(full_record: Summary) -> None:
    alone = [point for point in full_record.points if point.method != "speculative"]
    summary = dataclasses.replace(full_record, points=alone)
    drawn_by = (figures_detail.tokens, figures_detail.windows, figures_detail.speed)
    assert [draw(summary, NONE) for draw in drawn_by] == [None] * 3


def test_the_trace_shows_every_token(full_record: Summary, full_rows: Records) -> None:
    assert figures_detail.trace(full_record, full_rows) is None, "older rows do not tell who proposed which token"
    example = ShownExample(source="a", references=["b"], vanilla="c", pieces=[("c", "s")], proposers="sslsc")
    told = {
        arm: [dataclasses.replace(row, shown=[example]) if isinstance(row, TimedRow) else row for row in rows]
        for arm, rows in full_rows.items()
    }
    figure = present(figures_detail.trace(full_record, told))
    bars = drawn(figure.panels[0], "bar")
    kept = "drafted and kept"
    became = [kept, kept, "after a draft", kept, "in place of a drafted token"]
    assert [(bar["x"], bar["series"].split(",")[-1].strip()) for bar in bars] == list(enumerate(became))
    assert [mark["text"] for mark in drawn(figure.panels[0], "text")] == ["2 of 5"]


def test_each_temperature_has_its_panels_with_its_own_vanilla(warmed: Summary, full_record: Summary) -> None:
    assert figures.temperatures(full_record, NONE) is None, "one temperature alone"
    figure = present(figures.temperatures(warmed, NONE))
    titles = [spec_of(panel)["title"] for panel in figure.panels]
    # Against latency and against calls; only one arm was swept at further temperatures.
    assert titles == [*["aligned, T = 0"] * 2, *[f"unaligned, T = {degree}" for degree in ("0", "0.5", "1") for _ in range(2)]]
    latency, calls = figure.panels[4], figure.panels[5]
    timed, every = drawn(latency, "point"), drawn(calls, "point")
    rules = {f"speculative cascade [{rule}]" for rule in ("chow", "opt", "token_v3")}
    assert {mark["series"] for mark in every} == {"speculative", *rules}
    assert 0 < len(timed) < len(every), "latencies are never predicted here"
    large = full_record.vanilla.large.quality
    levels = [layer["encoding"]["y"]["datum"] for layer in spec_of(calls)["layer"] if layer["mark"]["type"] == "rule"]
    assert levels == pytest.approx([large - 5])
    speculative = [mark for mark in every if mark["series"] == "speculative"]
    assert [mark["y"] for mark in speculative] == pytest.approx([large - 5] * 3, abs=1e-4)
    assert speculative[0]["text"].startswith("speculative, γ 3: BLEU 88.40 (")


def test_perplexity_is_drawn_over_the_large_models_share_and_over_latency(full_record: Summary) -> None:
    assert figures.perplexity(full_record, NONE) is None
    scored = [
        dataclasses.replace(point, quality=-20.0 - number, large_calls_per_token=number / 10)
        for number, point in enumerate(full_record.timed_points("aligned", "bild")[:3])
    ]
    summary = dataclasses.replace(full_record, metric="perplexity", points=[*scored])
    share, latency = present(figures.perplexity(summary, NONE)).panels
    assert [(mark["x"], mark["y"]) for mark in drawn(share, "point")] == [(0.0, -20.0), (0.1, -21.0), (0.2, -22.0)]
    places = [(pytest.approx(point.relative_latency, abs=1e-5), point.quality) for point in scored]
    assert [(mark["x"], mark["y"]) for mark in drawn(latency, "point")] == places
