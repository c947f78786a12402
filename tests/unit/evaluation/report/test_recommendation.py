"""The recommendation's branches on small sweeps whose numbers are known."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.recommendation import as_lines
from tests.unit.evaluation.conftest import summarized, summary_record, untimed

Sweeps = dict[str, list[dict[str, Any]]]

ABOUT: dict[str, Any] = {
    "runtime": "native, float32",
    "lineage": {"host_cpu": "a small CPU"},
    "costs": {"cost_ratio": 0.25},
    "acceptance": {
        "greedy": {"rate": 0.8, "interval": [0.78, 0.82], "tokens": 900},
        "sampled": {"temperature": 1.0, "rate": 0.6, "interval": [0.58, 0.62], "tokens": 900},
    },
    "plan": {"points": 3, "timed": 2, "prediction_error": {"sample": {"points": 2, "mean": 0.03, "worst": 0.05}}},
}
PAIRS: dict[str, Any] = {"unaligned": ABOUT, "aligned": ABOUT}


def rows_of(sweeps: Sweeps, arm: str, split: str, method: str) -> list[dict[str, Any]]:
    rows = [row for row in sweeps[arm] if (row["split"], row["method"]) == (split, method) and "error" not in row]
    assert rows
    return rows


def slowed(sweeps: Sweeps, by: float) -> Sweeps:
    """The same sweeps with every method but vanilla that much slower."""
    for rows in sweeps.values():
        for row in rows:
            if row["method"] != "vanilla_large" and "speedup" in row:
                row["speedup"] *= by
                row["speedup_interval"] = [row["speedup"] - 0.05, row["speedup"] + 0.05]
    return sweeps


def test_the_fastest_at_no_loss_is_deployed_with_its_settings_gains_and_costs(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    found = summary["verdict"]
    point = summary["points"][found["point"]]
    assert (point["arm"], point["settings"]["fallback_threshold"], point["speedup"]) == ("aligned", 0.7, 1.6)
    assert "Deploy BiLD with the aligned drafter (α_FB 0.7 α_RB 2); the settings are explained below." in found["text"]
    assert (
        "the fastest timed setting at no loss (at most 0.5 BLEU, shown with 95% confidence): 1.60× [1.55, 1.65]"
        in found["text"]
    )
    assert "BLEU 59.90 (-0.10 points from vanilla)" in found["text"]
    test = "On test, which played no part in the choice, it is 1.55× [1.50, 1.60] as fast as the large model alone"
    assert f"{test}, at BLEU 59.40 (-0.60 points" in found["text"]
    assert found["text"].index(test) < found["text"].index("On validation, on which it was chosen")
    assert "How far that difference is noise was not measured." in found["text"]
    assert any("Of 9 settings of both sweeps 9 were timed" in line for line in found["evidence"])


def test_the_other_drafter_and_the_frontiers_are_compared(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    text, gap = " ".join(summary["verdict"]["evidence"]), summary["frontier"]["gap"]
    assert "The best with the unaligned drafter, chosen alike, is speculative with the unaligned drafter (γ 5): 1.30×" in text
    assert f"aligned has {gap['mean_quality_difference']:+.2f} points at equal latency" in text
    assert f"is {gap['mean_speedup_ratio']:.2f} times as fast at equal quality" in text
    for row in sweeps["unaligned"]:
        if row["split"] == "validation" and row["method"] in ("bild", "speculative") and "error" not in row:
            row["quality"] = {"bleu": 50.0}
    text = " ".join(summarized("bleu", sweeps)["verdict"]["evidence"])
    assert "With the unaligned drafter no timed setting is at no loss." in text


def on_test(sweeps: Sweeps, lower: float, upper: float) -> dict[str, Any]:
    """The row of the fastest choice on test, aligned BiLD, with these bounds of its quality difference."""
    (row,) = rows_of(sweeps, "aligned", "test", "bild")
    row["difference_bounds"] = {"lower": lower, "upper": upper, "compared": 1}
    return row


def statuses(summary: dict[str, Any]) -> dict[str, Any]:
    """What test says of aligned BiLD's choice for no loss."""
    [choice] = [one for one in summary["choices"] if (one["method"], one["arm"], one["choice"]) == BILD_NO_LOSS]
    found: dict[str, Any] = choice["test"]
    return found


BILD_NO_LOSS = ("bild", "aligned", "no_loss")


@pytest.mark.parametrize(
    ("bounds", "status", "said"),
    [
        ((-0.4, 0.1), "confirmed", "Test confirms the choice: with 95% confidence it loses less than 0.5 points."),
        ((-0.9, -0.2), "open", "Test leaves the choice open: losses from 0.20 to 0.90 points are not ruled out"),
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
    assert passed["reason"] in found["text"] and "it loses more than 0.5 points there" in passed["reason"]
    assert any(line.startswith("Allowing one point of loss does not help: BiLD with the aligned") for line in found["changes"])
    assert not any("runner-up" in line and "BiLD with the aligned" in line for line in found["changes"])


@pytest.mark.parametrize(
    ("interval", "status", "said"),
    [
        ([0.98, 1.7], "open", "on test it is not faster than vanilla beyond noise"),
        ([0.90, 0.97], "contradicted", "it is slower than vanilla there"),
    ],
)
def test_a_choice_that_test_does_not_find_faster_is_not_deployed(
    sweeps: Sweeps, interval: list[float], status: str, said: str
) -> None:
    on_test(sweeps, -0.1, 0.1)["speedup_interval"] = interval
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
    assert "No choice of the validation split holds on test: stay with the vanilla large model." in found["text"]


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
    assert found["text"].startswith(
        "No timed setting at no loss is faster than the vanilla large model beyond noise. Deploy BiLD"
    )
    assert "within one point of vanilla (at most 1 BLEU, shown with 95% confidence): 1.50× [1.45, 1.55]" in found["text"]
    assert "losses from 0.40 to 1.60 points are not ruled out, and the margin is 1" in found["text"]
    assert not any("Allowing one point" in line for line in found["changes"])
    sweeps["unaligned"][-1]["difference_bounds"] = {"lower": -1.6, "upper": -1.1, "compared": 1}
    found = summarized("bleu", sweeps)["verdict"]
    assert found["point"] is None and "it loses more than 1 point there" in found["text"]


def test_a_faster_choice_that_may_be_no_faster_than_vanilla_is_no_candidate_and_said_to_be_none(sweeps: Sweeps) -> None:
    """A reader finds the higher number in the table, and must be told why it was not taken."""
    (row,) = [one for one in rows_of(sweeps, "aligned", "validation", "bild") if one["speedup"] == 1.6]
    row["speedup_interval"] = [0.97, 2.3]
    summary = summarized("bleu", sweeps)
    found = summary["verdict"]
    assert summary["points"][found["point"]]["speedup"] == 1.5
    assert "the fastest timed setting at no loss that is faster than vanilla beyond noise (at most 0.5 BLEU" in found["text"]
    (line,) = [line for line in found["changes"] if "no candidate" in line]
    assert line.startswith(
        "BiLD with the aligned drafter (α_FB 0.7 α_RB 2) was faster at no loss on validation, 1.60× [0.97, 2.30]"
    )
    assert "against 1.50×, but its interval does not lie above 1" in line and "on test it is 1.55×" in line
    assert not any(line.startswith("The runner-up") and "α_FB 0.7" in line for line in found["changes"])


def test_what_was_not_measured_on_test_is_said(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["split"] == "validation" or row["method"] != "bild"]
    assert "It was not measured on test" in summarized("bleu", sweeps)["verdict"]["text"]


def test_where_nothing_beats_vanilla_it_stays(sweeps: Sweeps) -> None:
    found = summarized("bleu", slowed(sweeps, 0.5), PAIRS)["verdict"]
    assert found["point"] is None
    assert found["text"].startswith("No method beats the vanilla large model on validation: stay with it.")
    assert "at no loss is BiLD with the aligned drafter (α_FB 0.7 α_RB 2) at 0.80× [0.75, 0.85]" in found["text"]
    assert "Deploy" not in found["text"]
    # α 0.8 and c 0.25: (1 + 0.8 + 0.64 + 0.512) / 1.75 with γ 3, and 1.68 or less with γ 2 and 4.
    assert "expects 1.69× of the aligned pair in lossless speculative decoding with γ 3, if a check costs one step" in " ".join(
        found["changes"]
    )


def test_a_speedup_within_the_noise_does_not_beat_vanilla(sweeps: Sweeps) -> None:
    for rows in sweeps.values():
        for row in rows:
            if "speedup" in row:
                row["speedup_interval"] = [1.0, 3.0]
    assert summarized("bleu", sweeps)["verdict"]["point"] is None


def test_a_lossless_choice_says_so(sweeps: Sweeps) -> None:
    for row in rows_of(sweeps, "aligned", "validation", "speculative"):
        row.update(speedup=1.9, speedup_interval=[1.8, 2.0])
    found = summarized("bleu", sweeps)["verdict"]
    assert "Deploy speculative with the aligned drafter (γ 3); the settings are explained below." in found["text"]
    assert (
        "By construction its output is the large model's own (in greedy decoding; when sampling, the same distribution)."
        in found["text"]
    )
    assert not any("If the output must be" in line for line in found["changes"])


def test_what_was_not_timed_is_never_deployed_but_named_as_predicted(sweeps: Sweeps) -> None:
    (fast,) = [row for row in rows_of(sweeps, "aligned", "validation", "bild") if row["speedup"] == 1.6]
    sweeps["aligned"].remove(fast)
    sweeps["aligned"].append(untimed(fast, 1.75))
    summary = summarized("bleu", sweeps, PAIRS)
    found = summary["verdict"]
    assert summary["points"][found["point"]]["speedup"] == 1.5
    evidence = " ".join(found["evidence"])
    assert "Of 9 settings of both sweeps 8 were timed; only these were compared." in evidence
    assert (
        "a random sample of 4 timed settings these missed the measured ones by 3.0% on average and by 5.0% at worst" in evidence
    )
    (line,) = [line for line in found["changes"] if line.startswith("Not timed")]
    assert "BiLD with the aligned drafter (α_FB 0.7 α_RB 2), predicted 1.75×" in line
    sweeps["aligned"][-1]["predicted"]["speedup"] = 1.45
    assert not any(line.startswith("Not timed") for line in summarized("bleu", sweeps)["verdict"]["changes"])


def test_what_would_change_the_choice(sweeps: Sweeps) -> None:
    lines = summarized("bleu", sweeps, PAIRS)["verdict"]["changes"]
    runner, wider, lossless, unaligned, sampling, machine = lines
    assert (
        "The runner-up at no loss, ranked on validation (1.50× against 1.60×), is speculative with the aligned drafter (γ 3): "
        "1.45× [1.40, 1.50] on test, 6% behind" in runner
    )
    assert "the intervals overlap" in runner
    assert wider == "Allowing one point of loss gains nothing: no timed setting within it is faster."
    assert lossless.startswith("If the output must be the large model's own") and "1.45× [1.40, 1.50] on test" in lossless
    assert "speculative with the unaligned drafter (γ 5): 1.30× [1.25, 1.35] on validation, 81% of the speed-up" in unaligned
    assert "agrees less than greedily (α 0.60 against 0.80)" in sampling
    assert "(a small CPU, native, float32, batch 1)" in machine and "a small step takes 0.25 of a large one" in machine


def test_a_choice_that_is_ahead_on_test_alone_is_named(sweeps: Sweeps) -> None:
    (row,) = rows_of(sweeps, "aligned", "test", "speculative")
    (ahead,) = [one for one in rows_of(sweeps, "unaligned", "validation", "speculative") if one["speedup"] == 1.3]
    for speedup, found in ((1.54, "level with it or ahead"), (1.7, "ahead"), (1.5, None)):
        test = {**row, **{name: ahead[name] for name in ("arm", "settings")}}
        test |= {"speedup": speedup, "speedup_interval": [speedup - 0.05, speedup + 0.05]}
        changed = {**sweeps, "unaligned": [*sweeps["unaligned"], test]}
        lines = [line for line in summarized("bleu", changed)["verdict"]["changes"] if line.startswith("On test another")]
        said = f"On test another choice is {found}: speculative with the unaligned drafter (γ 5): {speedup:.2f}×"
        assert [line.startswith(said) and "(1.30× against 1.60× there)" in line for line in lines] == ([True] if found else [])


def test_what_a_wider_tolerance_gains(sweeps: Sweeps) -> None:
    (fast,) = [row for row in rows_of(sweeps, "aligned", "validation", "bild") if row["speedup"] == 2.1]
    fast["quality"] = {"bleu": 59.1}
    lines = summarized("bleu", sweeps)["verdict"]["changes"]
    expected = (
        "BiLD with the aligned drafter (α_FB 0.5 α_RB 2) is 2.10× [2.05, 2.15] on validation and its BLEU differs by -0.90"
    )
    assert any(line.startswith(f"Allowing one point of loss, {expected}") for line in lines)


def test_the_text_lists_every_change(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, PAIRS)
    lines = as_lines(summary).splitlines()
    found = summary.recommendation
    about = [f"- {name}: {text}" for name, text in found.basis.items()]
    assert lines[0] == found.headline and lines[2 : 2 + len(about)] == about and lines[3 + len(about)] == found.text
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    assert listed[-len(found.changes) :] == found.changes and set(found.evidence) < set(listed)


def test_a_sweep_of_the_models_alone_leaves_vanilla(sweeps: Sweeps) -> None:
    alone = {arm: [row for row in rows if row["method"].startswith("vanilla")] for arm, rows in sweeps.items()}
    found = summarized("bleu", alone)["verdict"]
    assert found["point"] is None
    assert found["text"].endswith("No timed setting is within one point of vanilla.")
    assert found["evidence"] == ["Nothing was measured but the models alone."]
