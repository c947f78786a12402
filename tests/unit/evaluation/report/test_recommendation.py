"""The recommendation's branches on small sweeps whose numbers are known: the choice, the headline, and what supports it."""

import dataclasses
from typing import Any

import pytest

from tasks.corpora.settings import CorpusSettings
from tasks.decoding.method import SamplingSettings
from tasks.evaluation.report.recommendation import as_lines, configuration, explained, recommend
from tasks.evaluation.report.tables import notes
from tasks.evaluation.results.summary import Alignment, AlignmentEffect, ArmResult, Finding
from tests.unit.evaluation.conftest import COSTS, PRICES, SIZES, Sweeps, summarized, summary_record

ABOUT: dict[str, Any] = {
    "seed": 2,
    "runtime": "native, float32",
    "lineage": {"host_cpu": "a small CPU"},
    "costs": {**COSTS, "cost_ratio": 0.25},
    "acceptance": [
        {"rate": 0.8, "interval": [0.78, 0.82], "tokens": 900},
        {"temperature": 1.0, "rate": 0.6, "interval": [0.58, 0.62], "tokens": 900},
    ],
    "plan": {"points": 3, "timed": 2, "prediction_error": {"points": 2, "mean": 0.03, "worst": 0.05}},
}
PAIRS: dict[str, Any] = {"unaligned": ABOUT, "aligned": ABOUT}
BILD_NO_LOSS = ("bild", "aligned", "no_loss")


def rows_of(sweeps: Sweeps, arm: str, split: str, method: str) -> list[dict[str, Any]]:
    rows = [row for row in sweeps[arm] if (row["split"], row["method"]) == (split, method) and "error" not in row]
    assert rows
    return rows


def on_test(sweeps: Sweeps, lower: float, upper: float, **values: Any) -> dict[str, Any]:
    """The row of the fastest choice on test, aligned BiLD, with these bounds of its quality difference and these values."""
    (row,) = rows_of(sweeps, "aligned", "test", "bild")
    row.update(difference_bounds={"lower": lower, "upper": upper, "compared": 1}, **values)
    return row


def statuses(summary: dict[str, Any]) -> dict[str, Any]:
    """What test says of aligned BiLD's choice for no loss."""
    [choice] = [one for one in summary["choices"] if (one["method"], one["arm"], one["choice"]) == BILD_NO_LOSS]
    found: dict[str, Any] = choice["test"]
    return found


def headline_of(sweeps: Sweeps, metric: str = "bleu") -> str:
    return str(summarized(metric, sweeps, PAIRS)["verdict"]["headline"])


def test_the_fastest_at_no_loss_is_deployed_with_its_gains_and_costs_on_test_first(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    found = summary["verdict"]
    point = summary["points"][found["point"]]
    assert (point["arm"], point["settings"]["fallback_threshold"], point["speedup"]) == ("aligned", 0.7, 1.6)
    assert found["text"].startswith("Deploy BiLD with the aligned drafter (α_FB 0.7 α_RB 2). On test the choice is ")
    for part in ("1.55× [1.50, 1.60] as fast as the large model alone on test", "-0.60 BLEU"):
        assert part in found["headline"]
    assert "the fastest timed setting at no loss: 1.60× [1.55, 1.65]" in found["text"]
    assert "BLEU 59.90 (-0.10 from vanilla)" in found["text"]
    assert "With 95% confidence it loses less than 0.15 points there" in found["text"]
    assert any("among 9 timed settings of 9" in line for line in found["evidence"])


@pytest.mark.parametrize(
    ("bounds", "status", "said"),
    [
        ((-0.4, 0.1), "confirmed", "On test the choice is confirmed: loses less than 0.5 points."),
        ((-0.9, -0.2), "open", "On test the choice is open: may lose more than 0.5 points."),
    ],
)
def test_test_confirms_a_choice_or_leaves_it_open(sweeps: Sweeps, bounds: tuple[float, float], status: str, said: str) -> None:
    on_test(sweeps, *bounds)
    summary = summarized("bleu", sweeps)
    assert said in summary["verdict"]["text"]
    assert statuses(summary) == summary["verdict"]["test"] == {"quality": status, "speed": "confirmed"}
    assert summary["verdict"]["passed_over"] == []


def test_a_choice_that_test_contradicts_is_not_deployed_and_the_next_one_is(sweeps: Sweeps) -> None:
    on_test(sweeps, -1.9, -1.2)
    summary = summarized("bleu", sweeps)
    found = summary["verdict"]
    assert statuses(summary)["quality"] == "contradicted"
    assert summary["points"][found["point"]]["method"] == "speculative"
    [passed] = found["passed_over"]
    assert summary["points"][passed["point"]]["method"] == "bild" and passed["choice"] == "no_loss"
    assert passed["reason"] in found["text"] and "contradicted: loses more than 0.5 points." in passed["reason"]


@pytest.mark.parametrize(
    ("interval", "status", "said"),
    [([0.98, 1.7], "open", "open: not shown to be faster"), ([0.90, 0.97], "contradicted", "contradicted: slower")],
)
def test_a_choice_no_faster_on_test_is_not_deployed(sweeps: Sweeps, interval: list[float], status: str, said: str) -> None:
    on_test(sweeps, -0.1, 0.1, speedup_interval=interval)
    summary = summarized("bleu", sweeps)
    found = summary["verdict"]
    assert statuses(summary)["speed"] == status and said in found["passed_over"][0]["reason"]
    assert summary["points"][found["point"]]["method"] == "speculative"


def test_a_replacement_needs_the_confirmation_of_test(sweeps: Sweeps) -> None:
    """The test split picks the replacement, so an open question on quality does not suffice; lossless output is none."""
    on_test(sweeps, -1.2, -0.6)
    for row in rows_of(sweeps, "aligned", "test", "speculative"):
        row["speedup_interval"] = [0.9, 1.2]
    for row in rows_of(sweeps, "unaligned", "validation", "speculative"):
        row["speedup_interval"] = [0.9, 1.4]
    (unaligned,) = rows_of(sweeps, "unaligned", "test", "bild")
    for upper, point in ((0.4, "bild"), (-0.2, None)):
        unaligned["difference_bounds"] = {"lower": -0.4 if point else -0.6, "upper": upper, "compared": 1}
        summary = summarized("bleu", sweeps)
        found = summary["verdict"]
        assert (None if found["point"] is None else summary["points"][found["point"]]["method"]) == point
    assert "No choice of the validation split holds on test: keep the vanilla large model." in found["text"]


def test_a_choice_within_one_point_is_held_to_one_point(sweeps: Sweeps) -> None:
    for arm in sweeps:
        for row in sweeps[arm]:
            lossy = row["method"] == "bild" and row["split"] == "validation" and "error" not in row
            if row["method"] == "speculative" or (lossy and row["quality"]["bleu"] > 59.5):
                row.update(speedup=0.9, speedup_interval=[0.85, 0.95])
    (row,) = rows_of(sweeps, "unaligned", "test", "bild")
    sweeps["unaligned"].append({**row, "settings": {**row["settings"], "fallback_threshold": 0.7}, "quality": {"bleu": 59.0}})
    sweeps["unaligned"][-1]["difference_bounds"] = {"lower": -1.6, "upper": -0.4, "compared": 1}
    found = summarized("bleu", sweeps)["verdict"]
    assert found["text"].startswith("No timed setting within the no-loss margin is shown to beat the large model.")
    assert " Deploy BiLD" in found["text"]
    assert "the fastest timed setting within one point of vanilla: 1.50× [1.45, 1.55]" in found["text"]
    assert "On test the choice is open: may lose more than 1 point." in found["text"]
    sweeps["unaligned"][-1]["difference_bounds"] = {"lower": -1.6, "upper": -1.1, "compared": 1}
    found = summarized("bleu", sweeps)["verdict"]
    assert found["point"] is None and "contradicted: loses more than 1 point." in found["text"]


def test_a_faster_choice_that_may_be_no_faster_than_vanilla_is_no_candidate(sweeps: Sweeps) -> None:
    (row,) = [one for one in rows_of(sweeps, "aligned", "validation", "bild") if one["speedup"] == 1.6]
    row["speedup_interval"] = [0.97, 2.3]
    summary = summarized("bleu", sweeps)
    assert summary["points"][summary["verdict"]["point"]]["speedup"] == 1.5


def test_where_nothing_beats_vanilla_it_stays(sweeps: Sweeps) -> None:
    for row in (row for rows in sweeps.values() for row in rows):
        if row["method"] != "vanilla_large" and "speedup" in row:
            row["speedup"] *= 0.5
            row["speedup_interval"] = [row["speedup"] - 0.05, row["speedup"] + 0.05]
    found = summarized("bleu", sweeps, PAIRS)["verdict"]
    assert found["point"] is None
    assert found["text"].startswith("No method beats the vanilla large model on validation: keep it.")
    assert found["headline"] == (
        "Keep the large model alone: no tested setting is reliably faster at equal quality (a small CPU, one text at a time; "
        "20.0 ms for a text)."
    )


def test_a_lossless_choice_says_so(sweeps: Sweeps) -> None:
    for row in rows_of(sweeps, "aligned", "validation", "speculative"):
        row.update(speedup=1.9, speedup_interval=[1.8, 2.0])
    found = summarized("bleu", sweeps, PAIRS)["verdict"]
    assert found["text"].startswith("Deploy speculative with the aligned drafter (γ 3). Its output is the large model's own (")
    assert found["headline"].endswith("; the output is the large model's own.")


def test_the_text_lists_every_change_and_the_models_alone_leave_vanilla(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, PAIRS)
    lines = as_lines(summary).splitlines()
    found = summary.recommendation
    about = [f"- {name}: {text}" for name, text in found.basis.items()]
    assert lines[0] == found.headline and lines[2 : 2 + len(about)] == about and lines[3 + len(about)] == found.text
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    assert listed[-len(found.changes) :] == found.changes and set(found.evidence) < set(listed)
    alone = {arm: [row for row in rows if row["method"].startswith("vanilla")] for arm, rows in sweeps.items()}
    left = summarized("bleu", alone, PAIRS)["verdict"]
    assert left["point"] is None and left["text"].startswith("No method beats the vanilla large model")
    assert left["evidence"] == ["Nothing was measured but the models alone."] and list(left["basis"]) == ["measured"]


@pytest.mark.parametrize(
    ("interval", "cost"),
    [
        ([-0.41, 0.02], "no measurable loss of quality (-0.60 BLEU [-0.41, +0.02])"),
        ([-0.92, -0.25], "quality falls (-0.60 BLEU [-0.92, -0.25])"),
        (None, "quality differs by -0.60 BLEU; its noise was not measured"),
    ],
)
def test_the_headline_says_what_to_deploy_its_speed_and_cost(sweeps: Sweeps, interval: list[float] | None, cost: str) -> None:
    on_test(sweeps, -0.4, 0.1, quality_difference_interval=interval)
    # Aligned BiLD on test is 1.55 times as fast as vanilla's mean of 20 ms; speculative decoding 1.45 times.
    assert headline_of(sweeps) == (
        "Deploy BiLD with the aligned drafter: 1.55× [1.50, 1.60] as fast as the large model alone on test (a small CPU, one "
        f"text at a time; 12.9 ms instead of 20.0 ms); {cost}."
    )


def test_a_headline_without_test_names_validation_and_a_gain_is_called_one(sweeps: Sweeps) -> None:
    on_test(sweeps, -0.1, 0.9, quality={"bleu": 60.3}, quality_difference_interval=[0.02, 0.72])
    assert "; quality rises (+0.30 BLEU [+0.02, +0.72])." in headline_of(sweeps)
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["split"] == "validation" or row["method"] != "bild"]
    assert "as fast as the large model alone on validation (" in headline_of(sweeps)
    assert "Not measured on test" in summarized("bleu", sweeps)["verdict"]["text"]


@pytest.mark.parametrize(("metric", "sign", "unit"), [("perplexity", -1, "perplexity"), ("exact_match", 1, "exact match")])
def test_a_metric_without_a_unit_is_counted_in_points(sweeps: Sweeps, metric: str, sign: int, unit: str) -> None:
    on_test(sweeps, -0.4, 0.1, quality_difference_interval=[-0.41, 0.02])
    for row in (row for rows in sweeps.values() for row in rows if "quality" in row):
        value = row["quality"]["bleu"]
        row.update(metric=metric, quality={metric: value if sign > 0 else 90 - value})
    assert f"; no measurable loss of quality (-0.60 points of {unit} [-0.41, +0.02])." in headline_of(sweeps, metric)
    explained_so = any("Quality is minus the perplexity" in note for note in notes(summary_record(metric, sweeps, PAIRS)))
    assert explained_so == (metric == "perplexity")


def test_the_configuration_names_both_models_and_explains_every_setting(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, PAIRS)
    point = summary.recommended
    assert point is not None
    assert configuration(summary, point) == [
        "large_model: models/toy/large",
        "small_model: models/toy/aligned/2",
        "method: bild",
        "fallback_threshold: 0.7",
        "rollback_threshold: 2.0",
    ]
    assert configuration(summary, None) == ["large_model: models/toy/large", "method: vanilla_large"]
    copied = dataclasses.replace(point, settings={"drafter": "copy"})
    assert not [line for line in configuration(summary, copied) if line.startswith("small_model")]
    method, arm, fallback, rollback = explained(point)
    assert method.startswith("BiLD: ") and "trained on what the large model writes" in arm
    assert fallback.startswith("fallback_threshold = 0.7: ") and rollback.startswith("rollback_threshold = 2.0: ")


@pytest.mark.parametrize(("share", "said"), [(0.47, True), (0.5, False), (None, False)])
def test_a_baseline_that_leaves_bandwidth_unused_is_a_warning(sweeps: Sweeps, share: float | None, said: bool) -> None:
    about = {**ABOUT, "costs": {**COSTS, "bandwidth_share": share}}
    summary = summary_record("bleu", sweeps, {"aligned": about})
    sentence = "the baseline is not memory-bound (its weights take 47% of the bandwidth), so speed-ups are overstated"
    assert summary.recommendation.warnings == [sentence] * said
    assert (f"- warning: {sentence}\n" in as_lines(summary)) == said


def test_what_earlier_stages_warned_of_stands_above_all_else_but_the_headline(sweeps: Sweeps) -> None:
    earlier, flat = "train: 40 of 200 examples (20.0%) repeat an earlier example", {**COSTS, "bandwidth_share": 0.47}
    summary = summary_record("bleu", sweeps, {"aligned": {**ABOUT, "costs": flat}})
    found = recommend(summary, [earlier])
    assert [one.partition(" ")[0] for one in found.warnings] == ["train:", "the"]
    lines = as_lines(dataclasses.replace(summary, recommendation=found)).splitlines()
    assert (lines[0], lines[2]) == (found.headline, f"- warning: {earlier}")


PAIR: dict[str, Any] = {
    "seed": 7,
    "sizes": {"small": {**SIZES, "parameters": 235_968}, "large": {**SIZES, "parameters": 7_160_000_000}},
    "lineage": {"host_cpu": "a small CPU", "settings": {"sweep": {"latency_threads": 1}}},
}


def effect(ratio: float, interval: tuple[float, float] | None, finding: Finding, seeds: int = 3) -> AlignmentEffect:
    by_seed = dict.fromkeys(range(5, 5 + seeds), ratio)
    about: dict[str, Any] = {"split": "test", "texts": 2000, "counts": {}, "interval": interval, "finding": finding}
    return AlignmentEffect(purpose="bild_no_loss", by_seed=by_seed, ratio=ratio, **about)


@pytest.mark.parametrize(
    ("ratio", "interval", "finding", "words"),
    [
        (0.97, (0.82, 1.15), "open", "it is open whether alignment helps"),
        (1.05, (1.01, 1.09), "helps", "alignment helps"),
        (0.8, (0.75, 0.85), "hurts", "alignment hurts"),
    ],
)
def test_the_verdict_says_what_alignment_gives_by_counts(
    sweeps: Sweeps, ratio: float, interval: tuple[float, float], finding: Finding, words: str
) -> None:
    known = Alignment(counted=None, choices=[effect(ratio, interval, finding)], costs=PRICES)
    drafters = [ArmResult(arm=arm, seed=seed, points=[]) for arm in ("unaligned", "aligned") for seed in (5, 6, 7)]
    summary = dataclasses.replace(summary_record("bleu", sweeps, {"aligned": PAIR}), arms=drafters, alignment=known)
    found = recommend(summary)
    assert found.basis["seeds"] == "trained: 5, 6, 7; timed and to deploy: 7"
    assert found.evidence[0] == (
        f"BiLD chosen for no loss is {ratio:.2f} [{interval[0]:.2f}, {interval[1]:.2f}] times as fast with aligned as with "
        f"unaligned drafters over 3 seeds, each at its cheapest proven setting, by counts on 2,000 texts of test: {words}."
    )
    # The aligned drafter is deployed, also where the counts favour the other one: the page says why.
    both = dataclasses.replace(summary, alignment=dataclasses.replace(known, counted=effect(ratio, interval, finding)))
    assert any("is about BiLD over all settings and seeds" in one for one in recommend(both).evidence) == (ratio == 0.8)
    one = dataclasses.replace(known, choices=[effect(1.5, None, "open", seeds=1)])
    alone = recommend(dataclasses.replace(summary, arms=drafters[:1], alignment=one))
    assert "seeds" not in alone.basis and "with one seed, which proves nothing" in alone.evidence[0]
    assert alone.evidence[0].endswith("it is open whether alignment helps.")


def test_texts_models_and_measurement_stand_under_the_first_line(sweeps: Sweeps) -> None:
    shared = {**PAIR["sizes"], "shares_encoder": True, "shared_parameters": 120_000}
    summary = summary_record("bleu", sweeps, {"aligned": {**PAIR, "sizes": shared}})
    tests = [one.test and dataclasses.replace(one.test, timed_rounds=3) for one in summary.points]
    points = [dataclasses.replace(one, test=test) for one, test in zip(summary.points, tests, strict=True)]
    summary = dataclasses.replace(summary, corpus=CorpusSettings().described, points=points)
    found = recommend(summary).basis
    texts = found.pop("texts and models")
    assert texts.startswith(CorpusSettings().described)
    assert texts.endswith(
        "large model of 7,160 M parameters, small model of 0.236 M, 0.12 M of them the large model's own (its encoder)"
    )
    how = "quality on 200 texts of test; time on 2 of them, 3 rounds, 1 thread, batch 1"
    assert found == {"measured": f"{how}; the large model has 60.00 BLEU on validation"}
    sampling = SamplingSettings(temperature=1.0, top_k=5, top_p=0.8)
    points = [dataclasses.replace(point, sampling=sampling) for point in summary.points]
    drawn = recommend(dataclasses.replace(summary, points=points)).basis["tokens"]
    assert drawn.startswith(
        "drawn at temperature 1, top-k 5, nucleus 0.8; gains and losses are over the large model drawn so too"
    )
    swept: dict[str, Any] = {"settings": {"sweep": {"samples": 2, "drafter_sampling": {"temperature": 0.5}}}}
    pairs = {arm: dataclasses.replace(pair, lineage={**(pair.lineage or {}), **swept}) for arm, pair in summary.pairs.items()}
    said = recommend(dataclasses.replace(summary, points=points, pairs=pairs)).basis["tokens"]
    assert "nucleus 0.8, 2 outputs of each text, drafts at temperature 0.5, which generate and serve do not do; gains" in said
