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


def rows_of(sweeps: Sweeps, drafter: str, split: str, method: str) -> list[dict[str, Any]]:
    rows = [row for row in sweeps[drafter] if (row["split"], row["method"]) == (split, method) and "error" not in row]
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
    assert (point["drafter"], point["settings"]["fallback_threshold"], point["speedup"]) == ("aligned", 0.7, 1.6)
    assert "Deploy BiLD with the aligned drafter (α_FB 0.7 α_RB 2)." in found["text"]
    assert "the fastest timed setting at no loss: 1.60× [1.55, 1.65]" in found["text"]
    assert "BLEU 59.90 (-0.10 points from vanilla)" in found["text"]
    assert "On test, where nothing was chosen, it has 1.55× [1.50, 1.60] at BLEU 59.40 (-0.60 points" in found["text"]
    assert "How far that difference is noise was not measured." in found["text"]
    assert "Of 9 settings of both sweeps 9 were timed" in found["text"]


def test_the_other_drafter_and_the_frontiers_are_compared(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps)
    text, gap = summary["verdict"]["text"], summary["frontier"]["gap"]
    assert "The best with the unaligned drafter, chosen alike, is speculative with the unaligned drafter (γ 5): 1.30×" in text
    assert f"aligned has {gap['mean_quality_difference']:+.2f} points at equal latency" in text
    assert f"is {gap['mean_speedup_ratio']:.2f} times as fast at equal quality" in text
    for row in sweeps["unaligned"]:
        if row["split"] == "validation" and row["method"] in ("bild", "speculative") and "error" not in row:
            row["quality"] = {"bleu": 50.0}
    text = summarized("bleu", sweeps)["verdict"]["text"]
    assert "With the unaligned drafter no timed setting is at no loss." in text


@pytest.mark.parametrize(
    ("interval", "said", "not_said"),
    [
        ([-1.2, -0.1], "That contradicts the choice: the whole interval lies below 0", "does not contradict"),
        ([-1.2, 0.3], "That does not contradict the choice, but 1.20 points of loss are not ruled out.", "That contradicts"),
        ([0.0, 0.3], "That bears out the choice.", "contradict"),
    ],
)
def test_the_test_interval_is_held_against_the_choice(sweeps: Sweeps, interval: list[float], said: str, not_said: str) -> None:
    (row,) = rows_of(sweeps, "aligned", "test", "bild")
    row["quality_difference_interval"] = interval
    text = summarized("bleu", sweeps)["verdict"]["text"]
    assert said in text and not_said not in text
    low, high = interval
    assert f"(-0.60 points [{low:+.2f}, {high:+.2f}] from vanilla)" in text
    if interval[1] < 0:
        assert "Where that matters, deploy speculative with the aligned drafter (γ 3), which is lossless: 1.50×" in text


def test_a_choice_within_one_point_is_held_to_one_point(sweeps: Sweeps) -> None:
    for drafter in sweeps:
        for row in sweeps[drafter]:
            lossy = row["method"] == "bild" and row["split"] == "validation" and "error" not in row
            if row["method"] == "speculative" or (lossy and row["quality"]["bleu"] > 59.5):
                row.update(speedup=0.9, speedup_interval=[0.85, 0.95])
    (row,) = rows_of(sweeps, "unaligned", "test", "bild")
    sweeps["unaligned"].append({**row, "settings": {**row["settings"], "fallback_threshold": 0.7}, "quality": {"bleu": 59.0}})
    sweeps["unaligned"][-1]["quality_difference_interval"] = [-1.6, -0.4]
    found = summarized("bleu", sweeps)["verdict"]
    assert found["text"].startswith("No timed setting at no loss is faster than the vanilla large model. Deploy BiLD")
    assert "within one point of vanilla: 1.50× [1.45, 1.55]" in found["text"]
    assert "does not contradict the choice, but 1.60 points of loss" in found["text"]
    assert not any("Allowing one point" in line for line in found["changes"])
    sweeps["unaligned"][-1]["quality_difference_interval"] = [-1.6, -1.1]
    assert "the whole interval lies below -1" in summarized("bleu", sweeps)["verdict"]["text"]


def test_what_was_not_measured_on_test_is_said(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["split"] == "validation" or row["method"] != "bild"]
    assert "It was not measured on test" in summarized("bleu", sweeps)["verdict"]["text"]


def test_a_speedup_that_test_does_not_bear_out_is_said(sweeps: Sweeps) -> None:
    (row,) = rows_of(sweeps, "aligned", "test", "bild")
    assert "On test its speed-up may be none" not in summarized("bleu", sweeps)["verdict"]["text"]
    row["speedup_interval"] = [0.98, 1.7]
    assert "On test its speed-up may be none" in summarized("bleu", sweeps)["verdict"]["text"]


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
    assert "Deploy speculative with the aligned drafter (γ 3)." in found["text"]
    assert "By construction its output is the large model's own." in found["text"]
    assert not any("If the output must be" in line for line in found["changes"])


def test_what_was_not_timed_is_never_deployed_but_named_as_predicted(sweeps: Sweeps) -> None:
    (fast,) = [row for row in rows_of(sweeps, "aligned", "validation", "bild") if row["speedup"] == 1.6]
    sweeps["aligned"].remove(fast)
    sweeps["aligned"].append(untimed(fast, 1.75))
    summary = summarized("bleu", sweeps, PAIRS)
    found = summary["verdict"]
    assert summary["points"][found["point"]]["speedup"] == 1.5
    assert "Of 9 settings of both sweeps 8 were timed; only these were compared." in found["text"]
    assert (
        "a random sample of 4 timed settings these missed the measured ones by 3.0% on average and by 5.0% at worst"
        in (found["text"])
    )
    (line,) = [line for line in found["changes"] if line.startswith("Not timed")]
    assert "BiLD with the aligned drafter (α_FB 0.7 α_RB 2), predicted 1.75×" in line
    sweeps["aligned"][-1]["predicted"]["speedup"] = 1.45
    assert not any(line.startswith("Not timed") for line in summarized("bleu", sweeps)["verdict"]["changes"])


def test_what_would_change_the_choice(sweeps: Sweeps) -> None:
    lines = summarized("bleu", sweeps, PAIRS)["verdict"]["changes"]
    runner, wider, lossless, unaligned, sampling, machine = lines
    assert "The runner-up at no loss is speculative with the aligned drafter (γ 3) at 1.50× [1.45, 1.55], 6% behind" in runner
    assert "the intervals overlap" in runner
    assert wider == "Allowing one point of loss gains nothing: no timed setting within it is faster."
    assert lossless.startswith("If the output must be the large model's own") and "1.50×" in lossless
    assert "speculative with the unaligned drafter (γ 5) at 1.30× [1.25, 1.35], 81% of the speed-up" in unaligned
    assert "agrees less than greedily (α 0.60 against 0.80)" in sampling
    assert "(a small CPU, native, float32, batch 1)" in machine and "c = 0.25" in machine


def test_what_a_wider_tolerance_gains(sweeps: Sweeps) -> None:
    (fast,) = [row for row in rows_of(sweeps, "aligned", "validation", "bild") if row["speedup"] == 2.1]
    fast["quality"] = {"bleu": 59.1}
    lines = summarized("bleu", sweeps)["verdict"]["changes"]
    expected = "BiLD with the aligned drafter (α_FB 0.5 α_RB 2) has 2.10× [2.05, 2.15] at -0.90 points on validation."
    assert f"Allowing one point of loss, {expected}" in lines


def test_the_text_lists_every_change(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, PAIRS)
    lines = as_lines(summary).splitlines()
    assert lines[0] == summary.recommendation.text
    assert [line.removeprefix("- ") for line in lines if line.startswith("- ")] == summary.recommendation.changes


def test_a_sweep_of_the_models_alone_leaves_vanilla(sweeps: Sweeps) -> None:
    alone = {drafter: [row for row in rows if row["method"].startswith("vanilla")] for drafter, rows in sweeps.items()}
    found = summarized("bleu", alone)["verdict"]
    assert found["point"] is None
    assert found["text"].endswith("No timed setting is within one point of vanilla. Nothing was measured but the models alone.")
