"""The report's tables from sweeps whose numbers are known, and their text."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from tasks.decoding.methods.speculative import expected_operations, expected_speedup, oracle_speedup, oracle_tokens
from tasks.evaluation.report import tables
from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.report.paper_tables import p_value_of_mean, paper_tables
from tasks.evaluation.report.recommendation import recommend
from tasks.evaluation.report.tables import RenderedTable, rendered_tables, tables_markdown
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.files import KeptOutputs, point_key
from tasks.evaluation.results.pair import AcceptanceRate, NullTest
from tasks.evaluation.results.rows import TestStatus as Says
from tasks.evaluation.results.summary import Alignment, AlignmentEffect, ArmPoint, ArmResult, CostModel, Summary
from tasks.models.settings import TrainingRecord
from tasks.report import as_text
from tests.unit.evaluation import conftest
from tests.unit.evaluation.conftest import SIZES, Sweeps, measured_by, point_row, summarized, summary_record, untimed


def section(summary: Summary, name: str) -> RenderedTable:
    (found,) = [one for one in rendered_tables(summary) if one.name == name]
    return found


def has(summary: Summary, name: str) -> bool:
    return name in [one.name for one in rendered_tables(summary)]


def line(text: str, label: str) -> str:
    found, _ = [one for one in text.splitlines() if one.startswith(label + "  ")]
    return found


def test_rows_hold_choices_and_what_was_published(sweeps: Sweeps) -> None:
    rows = {row["row"]: row for row in summarized("bleu", sweeps, dataset="iwslt17-de-en")["table"]}
    assert list(rows) == list(tables.ROWS)
    no_loss = rows["bild_unaligned_no_loss"]
    assert (no_loss["validation"]["quality"], no_loss["test"]["quality"]) == (59.95, 59.5)
    assert no_loss["settings"]["fallback_threshold"] == 0.9
    assert [values[0] for values in no_loss["published"].values()] == [40.33, 40.23, 41.83]
    assert rows["bild_unaligned_one_point"]["settings"]["fallback_threshold"] == 0.7
    both = (rows["bild_aligned_no_loss"], rows["bild_aligned_one_point"])
    assert {row["settings"]["fallback_threshold"] for row in both} == {0.7}
    assert rows["vanilla_small_aligned"]["test"]["quality"] == 41.0
    assert rows["speculative_unaligned"]["published"] == {"BiLD, mT5-small and mT5-large": [39.93, 1.28]}


def test_what_other_methods_chose_stands_below_each_point_once(sweeps: Sweeps) -> None:
    renamed = {"bild": "token_cascade"}
    others = {arm: [{**row, "method": renamed.get(row["method"], row["method"])} for row in sweeps[arm]] for arm in sweeps}
    rows = {row["label"]: row for row in summarized("bleu", others, dataset="iwslt17-de-en")["table"][len(tables.ROWS) :]}
    thresholds = {label: row["settings"]["fallback_threshold"] for label, row in rows.items()}
    assert thresholds == {
        "token cascade, unaligned, no loss": 0.9,
        "token cascade, unaligned, ≤ 1 point": 0.7,
        "token cascade, aligned, no loss": 0.7,
    }
    assert not any(row["published"] for row in rows.values())


def test_the_text_shows_numbers_intervals_settings_and_published(sweeps: Sweeps) -> None:
    text = as_text(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    words = line(text, "BiLD unaligned, no loss").split("  ")
    assert [word.strip() for word in words if word.strip()] == [
        "BiLD unaligned, no loss",
        "59.50 [57.50, 61.50]",
        "-0.50",
        "1.25× [1.20, 1.30]",
        "16.00",
        "quality on test not compared",
        "α_FB 0.9 α_RB 2",
        "40.33 · 1.43×",
        "40.23 · 1.64× · 0.64 s",
        "41.83 · 1.61× · 0.11 s",
    ]
    assert "speculative, aligned" in text and "γ 3" in line(text, "speculative, aligned")
    assert "other models, other hardware" in text
    assert "Points that failed: 1" in text
    cells = ("40.33 · 1.43×", "40.24 · 1.62×", "39.13 · 1.78×")
    assert len({row.index(cell) for row in text.splitlines() for cell in cells if cell in row}) == 1


def test_choices_of_models_that_are_not_fit_to_judge_are_not_confirmed(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps)
    unfit = dataclasses.replace(summary, recommendation=dataclasses.replace(summary.recommendation, against=["weak"]))
    assert "not judged: see the verdict" in line(as_text(unfit), "BiLD unaligned, no loss")


def test_missing_choices_are_said_in_their_row(sweeps: Sweeps) -> None:
    for row in sweeps["unaligned"]:
        if row["method"] == "bild" and "error" not in row:
            row["quality"] = {"bleu": 50.0, "rougeL": 50.0}
    text = as_text(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    cells = " ".join(line(text, "BiLD unaligned, no loss").split())
    assert cells.startswith("BiLD unaligned, no loss – – – – no such setting was found – 40.33 · 1.43× 40.23 · 1.64× ·")
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["method"] != "vanilla_small"]
    text = as_text(summary_record("bleu", sweeps))
    assert " ".join(line(text, "vanilla small, aligned").split()) == "vanilla small, aligned – – – – not measured –"


@pytest.mark.parametrize(
    ("dataset", "metric", "papers", "tables"),
    [
        ("none", "bleu", [], {}),
        ("iwslt17-de-en", "bleu", ["BiLD", "BiLD-v1", "BiLD-v1"], {"shares": "IWSLT17 De-En"}),
        ("iwslt17-de-en", "rougeL", [], {}),
        ("wmt14-en-de", "bleu", [], {"cascade": "WMT En-De", "speculative": "WMT En-De"}),
        # SD prints no quality, and of CNN/DM the outline prints none.
        ("cnn_dailymail", "rouge2", ["Outline"] * 3, {"cascade": "CNN/DM", "speculative": "CNN/DM"}),
        ("cnn_dailymail", "rougeLsum", ["BiLD", *["Outline"] * 3], {"speculative": "CNN/DM"}),
    ],
)
def test_what_is_published_of_the_data(
    sweeps: Sweeps, dataset: str, metric: str, papers: list[str], tables: dict[str, str]
) -> None:
    summary = summary_record(metric, measured_by(metric, sweeps), dataset=dataset)
    found = {(name, row["dataset"]) for name, rows in summary.tables.items() for row in rows if row["source"] == "published"}
    assert found == set(tables.items())
    text = tables_markdown(summary)
    (headings, *_) = [line.split(" | ") for line in text.splitlines() if line.startswith("| method")]
    columns = [heading.strip(" |") for heading in headings if "published" in heading]
    assert [column.removeprefix("published ").split(",")[0] for column in columns] == papers
    assert ("batch 1 on one NVIDIA T4" in text, "neither hardware" in text) == ("BiLD" in papers, "Outline" in papers)
    assert ("probably ROUGE-Lsum" in text) == ((dataset, metric) == ("cnn_dailymail", "rougeLsum"))


def test_settings_are_short() -> None:
    settings: Settings = {"fallback_threshold": 0.6, "rollback_threshold": 2.0, "max_draft": 10, "tuned": False}
    assert settings_text(settings) == "α_FB 0.6 α_RB 2 ≤ 10"
    assert settings_text({"rollback_threshold": "inf", "tuned": True}) == "α_RB ∞ tuned"
    assert settings_text({}) == ""


def test_the_tables_name_the_tokenizer(sweeps: Sweeps) -> None:
    metric = "bleu[bleu_tokenizer=char]"
    text = tables_markdown(summary_record(metric, measured_by(metric, sweeps), dataset="iwslt17-de-en"))
    assert "BLEU (char) and speed-up" in text and "| BLEU (char) |" in text
    assert "no number in the papers is of this corpus and metric" in text


PAIR: dict[str, Any] = {
    "costs": conftest.COSTS,
    "acceptance": [
        {"rate": 0.75, "interval": [0.7, 0.8], "tokens": 500},
        {"temperature": 1.0, "rate": 0.5, "interval": [0.4, 0.6], "tokens": 500},
        {"drafter": "bigram", "rate": 0.2, "interval": [0.1, 0.3], "tokens": 500},
        {"lenience": 0.3, "rate": 0.8, "interval": [0.7, 0.9], "tokens": 500},
    ],
    "sizes": {"small": {**SIZES, "decoder_parameters": 10}, "large": {**SIZES, "decoder_parameters": 100}},
}


def ours(rows: list[conftest.Row]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in rows if row["source"] == "measured"}


def renamed(sweeps: Sweeps, method: str, **settings: Any) -> Sweeps:
    """Both sweeps with speculative decoding under another name and with more settings."""
    for rows in sweeps.values():
        for row in rows:
            if row["method"] == "speculative":
                row.update(method=method, lossless=False, settings={**row["settings"], **settings})
    return sweeps


def test_shares_are_for_each_token_of_what_was_chosen_and_matched(sweeps: Sweeps) -> None:
    rows = ours(summarized("bleu", sweeps)["tables"]["shares"])
    speculative = rows["speculative, no loss, unaligned"]
    assert (speculative["fallback_share"], speculative["rollback_share"]) == (0.4, 0.1)
    # Unaligned speculative is chosen at 60.0 and 1.3: as fast are 0.7 (59.2) and 0.5 (58.0), as good is nothing.
    assert rows["BiLD as fast as speculative, unaligned"]["settings"]["fallback_threshold"] == 0.7
    assert "BiLD as good as speculative, unaligned" not in rows
    # Aligned at 60.0 and 1.5: as fast are 0.7 and 0.5, as good is 0.9.
    assert rows["BiLD as fast as speculative, aligned"]["settings"]["fallback_threshold"] == 0.7
    assert rows["BiLD as good as speculative, aligned"]["settings"]["fallback_threshold"] == 0.9
    assert rows["BiLD, ≤ 1 point, unaligned"]["speedup"] == 1.5


def test_what_is_said_of_published_rows_stands_only_beside_them(sweeps: Sweeps) -> None:
    swept = renamed(sweeps, "speculative_lenient", lenience=0.3)
    alone, beside = (section(summary_record("bleu", swept, dataset=dataset), "lenience") for dataset in ("none", "wmt14-en-de"))
    assert alone.published == [] and len(beside.published) == 20
    assert [heading for heading in beside.headings if "theory" in heading] == ["speed-up, theory"]
    assert [len(one.headings) - len(one.rows[0]) for one in (alone, beside)] == [0, 0]
    assert not any("published" in note for note in alone.notes) and any("published" in note for note in beside.notes)


def test_cascades_at_quality_and_within_latency(sweeps: Sweeps) -> None:
    for row in sweeps["aligned"]:
        if row["method"] == "bild" and row["quality"]["bleu"] == 60.0:
            row.update(speedup=0.95)
    rows = ours(summarized("bleu", sweeps)["tables"]["cascade"])
    speculative = [f"speculative, {how}" for how in ("unaligned, γ 3", "unaligned, γ 5", "aligned, γ 3")]
    assert list(rows) == ["BiLD, unaligned", *speculative[:2], "BiLD, aligned", speculative[2]]
    assert rows["BiLD, unaligned"]["at_quality"] is None
    assert rows["BiLD, unaligned"]["at_latency"]["quality"] == 59.95
    assert [rows[name]["at_quality"]["speedup"] for name in speculative] == [1.1, 1.3, 1.5]
    # The only one as good as vanilla is slower; the best of the faster ones lies 0.1 under.
    assert rows["BiLD, aligned"]["at_quality"]["speedup"] == 0.95
    assert rows["BiLD, aligned"]["at_latency"]["quality"] == 59.9


def test_rules_and_drafters_are_variants_beside_their_published_row(sweeps: Sweeps) -> None:
    swept = measured_by("rouge2", renamed(sweeps, "speculative_cascade", rule="opt", drafter="bigram"))
    summary = summarized("rouge2", swept, dataset="xsum")
    rows = ours(summary["tables"]["cascade"])
    assert "speculative cascade [opt], drafts: bigram, aligned, γ 3" in rows
    published = [row for row in summary["tables"]["cascade"] if row.get("variant") == "speculative_cascade opt"]
    assert [(row["label"], row["at_quality"]["speedup"]) for row in published] == [
        ("SpecCascade [OPT], T5 v1.1 large, XSum", 1.17),
        ("SpecCascade [OPT], T5 v1.1 XL, XSum", 1.34),
    ]


def test_speculation_sets_theory_beside_measurement(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps, {"unaligned": PAIR})
    rows = ours(summary["tables"]["speculative"])
    row = rows["speculative, unaligned, γ 5"]
    assert (row["speedup"], row["acceptance_rate"], row["cost_ratio"]) == (1.3, 0.75, 0.2)
    assert row["expected_speedup"] == pytest.approx(expected_speedup(0.75, 5, 0.2), rel=1e-5)
    assert row["expected_operations"] == pytest.approx(expected_operations(0.75, 5, 0.1), rel=1e-5)
    assert row["check_cost"] == 2.0  # six positions take 4 ms, a step 2 ms
    assert row["expected_speedup_checked"] == pytest.approx(row["expected_speedup"] * 2 / 3, rel=1e-5)
    # Nothing is known of the aligned pair.
    other = rows["speculative, aligned, γ 3"]
    assert (other["speedup"], other["acceptance_rate"], other["expected_speedup"]) == (1.5, None, None)


@pytest.mark.parametrize(
    ("sampling", "rate"),
    [
        ({"temperature": 0.0}, 0.75),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0}, 0.5),
        ({"temperature": 1.0, "top_k": 0, "top_p": 0.8}, None),
        ({"temperature": 0.5, "top_k": 0, "top_p": 1.0}, None),
    ],
)
def test_acceptance_is_of_the_same_way_of_sampling(sweeps: Sweeps, sampling: dict[str, Any], rate: float | None) -> None:
    for row in sweeps["unaligned"]:
        row["sampling"] = sampling
    rows = ours(summarized("bleu", sweeps, {"unaligned": PAIR})["tables"]["speculative"])
    assert rows["speculative, unaligned, γ 5"]["acceptance_rate"] == rate


@pytest.mark.parametrize(
    ("drafter", "rate", "cost", "expected"),
    [
        ("bigram", 0.2, 0.0, expected_speedup(0.2, 5, 0.0)),
        ("copy", None, 0.0, None),
        # The cost of layers of the large model is not measured.
        ("early_layer", None, None, None),
    ],
)
def test_acceptance_and_cost_are_of_what_drafts(
    sweeps: Sweeps, drafter: str, rate: float | None, cost: float | None, expected: float | None
) -> None:
    for row in sweeps["unaligned"]:
        if row["method"] == "speculative":
            row["settings"]["drafter"] = drafter
    rows = ours(summarized("bleu", sweeps, {"unaligned": PAIR})["tables"]["speculative"])
    row = rows[f"speculative, drafts: {drafter}, unaligned, γ 5"]
    assert (row["acceptance_rate"], row["cost_ratio"]) == (rate, cost)
    assert row["expected_speedup"] == (expected if expected is None else pytest.approx(expected, rel=1e-5))


def test_no_window_beats_the_oracle_in_theory(sweeps: Sweeps) -> None:
    row = ours(summarized("bleu", sweeps, {"unaligned": PAIR})["tables"]["speculative"])["speculative, unaligned, γ 5"]
    # On average 3 drafted tokens are kept, each for 0.2 steps, and the large model adds one: 4 tokens in 1.6 steps.
    assert row["expected_oracle_speedup"] == pytest.approx(4 / 1.6)
    assert max(expected_speedup(0.75, length, 0.2) for length in range(30)) < 4 / 1.6
    assert oracle_tokens(0.75) == 4 and oracle_speedup(0.75, 0.0) == 4
    for alpha, cost in itertools.product((0.0, 0.5, 0.98), (0.0, 0.3, 1.0, 1.4)):
        best = max(expected_speedup(alpha, length, cost) for length in range(30))
        assert best <= oracle_speedup(alpha, cost) + 1e-9, (alpha, cost)


def test_acceptance_rates_have_a_table(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, {"unaligned": PAIR, "aligned": PAIR}, dataset="wmt14-en-de")
    found = section(summary, "acceptance")
    assert found.rows == [
        ["small model, unaligned", "0.75 [0.70, 0.80]", "0.50 [0.40, 0.60]", "4.00"],
        ["bigram", "0.20 [0.10, 0.30]", "–", "1.25"],
        ["small model, aligned", "0.75 [0.70, 0.80]", "0.50 [0.40, 0.60]", "4.00"],
    ]
    assert ["bigram, WMT En-De", "0.20", "0.19", "–"] in found.published
    assert [heading for heading in found.headings if "oracle" in heading] == [found.headings[-1]]
    assert found.headings[-1].endswith("theory")


def test_lenience_by_what_was_checked(sweeps: Sweeps) -> None:
    swept = renamed(sweeps, "speculative_lenient", lenience=0.3)
    row = ours(summarized("bleu", swept)["tables"]["lenience"])["speculative lenient, aligned, γ 3"]
    # 60 of 90 drafted tokens kept; 70 were checked, for 10 drafts fell.
    assert (row["accepted_share"], row["checked_share"]) == pytest.approx((60 / 90, 60 / 70), rel=1e-5)
    assert (row["lenience"], row["speedup"], row["quality"]) == (0.3, 1.5, 60.0)
    assert (row["acceptance_rate"], row["expected_speedup"]) == (None, None)
    known = ours(summarized("bleu", swept, {"aligned": PAIR})["tables"]["lenience"])["speculative lenient, aligned, γ 3"]
    assert known["acceptance_rate"] == 0.8
    assert known["expected_speedup"] == pytest.approx(expected_speedup(0.8, 3, 0.2), rel=1e-5)
    assert "speculative" not in {one.name for one in rendered_tables(summary_record("bleu", swept))}


def test_what_was_not_timed_stands_only_where_counts_are_told_and_without_a_speed(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row if row["method"].startswith("vanilla") else untimed(row, 9.0) for row in sweeps["aligned"]]
    tables = summarized("bleu", sweeps, {"aligned": PAIR})["tables"]
    for name in ("shares", "cascade"):
        assert all("aligned" not in row["label"].split(", ") for row in tables[name])
    counted = [row for row in tables["speculative"] if "aligned" in row["label"].split(", ")]
    assert counted and all(row["speedup"] is None and row["quality"] for row in counted)
    assert not tables["lenience"]


def test_markdown_keeps_published_rows_apart(sweeps: Sweeps) -> None:
    text = tables_markdown(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    first, _, rest = text.partition("As published for this data set: other models, other hardware.")
    assert "| speculative, unaligned |" in first and "Rejection Sampling" not in first
    assert "| Rejection Sampling Based, IWSLT17 De-En |" in rest.split("##")[0]


LARGE = {**SIZES, "layers": 24, "width": 1024, "feed_forward_width": 2816, "memory_parameters": 2_000_000}
LARGE |= {"decoder_parameters": 408_000_000, "head_parameters": 1_000_000}


SMALL = {**SIZES, "layers": 3, "width": 64, "feed_forward_width": None}
SMALL |= {"decoder_parameters": 1_300_000, "head_parameters": 66_000}


NUCLEUS = {"temperature": 1.0, "top_k": 0, "top_p": 0.8}


def test_sizes_are_of_the_decoders_without_their_heads(sweeps: Sweeps) -> None:
    pairs = {arm: {"sizes": {"large": LARGE, "small": SMALL}} for arm in sweeps}
    found = section(summary_record("bleu", sweeps, pairs, dataset="wmt14-de-en"), "sizes")
    assert found.headings == ["model", "layers", "width", "feed-forward width", "parameters"]
    assert found.rows == [
        ["large model", "24", "1024", "2816", "409 M"],
        # A record without the width of the inner layers; 1,300,000 - 66,000 weights.
        ["small model", "3", "64", "–", "1.23 M"],
    ]
    assert found.published[:2] == [
        ["mT5-large, BiLD", "24", "1024", "2816", "409 M"],
        ["mT5-small, BiLD", "8", "512", "1024", "25 M"],
    ]


def test_small_models_of_two_shapes_have_a_row_each_and_nothing_published_stands_alone(sweeps: Sweeps) -> None:
    other = {**SMALL, "layers": 1}
    pairs = {"unaligned": {"sizes": {"large": LARGE, "small": SMALL}}, "aligned": {"sizes": {"large": LARGE, "small": other}}}
    found = section(summary_record("bleu", sweeps, pairs), "sizes")
    assert [row[:2] for row in found.rows[1:]] == [["small model, unaligned", "3"], ["small model, aligned", "1"]]
    assert found.published == []
    assert not has(summary_record("bleu", sweeps, dataset="wmt14-de-en"), "sizes")


def drawn(sweeps: Sweeps, arm: str) -> Sweeps:
    for row in sweeps[arm]:
        row["sampling"] = NUCLEUS
    return sweeps


def test_drawn_tokens_have_vanilla_and_bild_where_it_is_best_and_as_chosen(sweeps: Sweeps) -> None:
    found = section(summary_record("bleu", drawn(sweeps, "aligned"), dataset="iwslt17-de-en"), "sampled")
    assert found.headings == ["method", "T", "p of the nucleus", "settings", "BLEU", "BLEU − vanilla", "speed-up"]
    assert [row[:4] for row in found.rows] == [
        ["vanilla large", "1", "0.8", "–"],
        ["BiLD, best, aligned", "1", "0.8", "α_FB 0.9 α_RB 2"],
        ["BiLD, no loss, aligned", "1", "0.8", "α_FB 0.7 α_RB 2"],
        ["BiLD, ≤ 1 point, aligned", "1", "0.8", "α_FB 0.7 α_RB 2"],
    ]
    assert found.rows[0][4:] == ["60.00 [58.00, 62.00]", "–", "–"]
    assert found.rows[1][4:] == ["60.00 [58.00, 62.00]", "+0.00", "1.40× [1.35, 1.45]"]
    assert found.published[0] == ["Vanilla Inference, IWSLT17 De-En", "–", "0.8", "–", "39.24", "–", "–"]
    assert found.published[3] == ["BiLD, IWSLT17 De-En", "–", "0.8", "–", "38.27", "-0.97", "1.80×"]


def calm(threshold: float, quality: float, speedup: float) -> conftest.Row:
    return point_row("unaligned", "validation", "calm", {"confidence": "saturation", "threshold": threshold}, quality, speedup)


def early_exit(sweeps: Sweeps) -> list[conftest.Row]:
    return summary_record("bleu", sweeps).tables["early_exit"]


def settings_of(row: conftest.Row) -> tuple[object, object]:
    calm, bild = row["calm"], row["bild"]
    return calm and calm["settings"]["threshold"], bild and bild["settings"]["fallback_threshold"]


def test_bild_stands_beside_calm_at_equal_demands_qualities_and_speeds(sweeps: Sweeps) -> None:
    # BiLD, unaligned: 59.95 at 1.2, 59.2 at 1.5, 58.0 at 2.0.
    sweeps["unaligned"] += [calm(0.9, 59.9, 1.1), calm(0.7, 57.0, 1.45)]
    rows = early_exit(sweeps)
    assert rows[1]["quality_gain"] == pytest.approx(59.2 - 59.9)
    assert [(row["label"], settings_of(row)) for row in rows] == [
        ("no loss, unaligned", (0.9, 0.9)),
        ("≤ 1 point, unaligned", (0.9, 0.7)),
        ("as good as CALM, unaligned", (0.7, 0.5)),
        ("as fast as CALM, unaligned", (0.7, 0.7)),
        ("as good as CALM, unaligned", (0.9, 0.9)),
        ("as fast as CALM, unaligned", (0.9, 0.9)),
    ]


def test_bild_is_told_apart_by_what_drafts(sweeps: Sweeps) -> None:
    sweeps["unaligned"].append(calm(0.9, 59.9, 1.1))
    fast = next(row for row in sweeps["unaligned"] if row["settings"].get("fallback_threshold") == 0.5)
    settings = {"drafter": "early_layer", **fast["settings"]}
    sweeps["unaligned"].append({**fast, "settings": settings, "quality": {"bleu": 59.95}})
    fastest = {row["label"]: row["bild"] and row["bild"]["speedup"] for row in early_exit(sweeps)}
    assert fastest["no loss, drafts: early_layer, unaligned"] == 2.0
    assert fastest["no loss, unaligned"] == 1.2


def test_published_early_exit_stands_below_in_its_own_columns(sweeps: Sweeps) -> None:
    sweeps["unaligned"].append(calm(0.9, 59.9, 1.1))
    found = section(summary_record("bleu", sweeps, dataset="wmt14-de-en"), "early_exit")
    assert found.rows[0][:3] == ["no loss, unaligned", "confidence saturation threshold 0.9", "59.90 [57.90, 61.90]"]
    assert found.rows[0][4:] == ["α_FB 0.9 α_RB 2", "59.95 [57.95, 61.95]", "1.20× [1.15, 1.25]", "+0.05"]
    assert found.published[2] == ["as fast as CALM (7.2.2), WMT14 De-En", "–", "–", "1.50×", "–", "–", "1.50×", "+2.00"]
    assert not has(summary_record("bleu", {**sweeps, "unaligned": sweeps["unaligned"][:-1]}), "early_exit")


def test_thresholds_of_calm_are_calibrated_by_learn_then_test(sweeps: Sweeps) -> None:
    """λ falls while the mean distance from vanilla's texts, half a word or less, is proven to be under δ."""
    texts, settings = ["one two"] * 4000, {"confidence": "saturation", "decay": 1.0}
    changed = {0.9: 0, 0.8: 320, 0.7: 40, 0.6: 4000}
    outputs = {point_key("vanilla_large", {}): texts}
    for (threshold, count), speedup in zip(changed.items(), (1.1, 1.2, 1.3, 1.4), strict=True):
        row = point_row("unaligned", "validation", "calm", {**settings, "threshold": threshold}, 59.0, speedup)
        sweeps["unaligned"].append(row)
        outputs[point_key("calm", row["settings"])] = ["one three"] * count + texts[count:]
    summary, work = summary_record("bleu", sweeps), np.zeros((4000, 3), np.int32)
    kept = {key: KeptOutputs(own, work) for key, own in outputs.items()}
    rows = paper_tables(summary, kept)["calibrated"]
    # Distances are 0, 0.04, 0.005 and 0.5; a distance of 0.04 is proven to be under 0.05 with p = 0.011, of 0.05 / 3.
    assert [(row["tolerance"], row["distance"], row.get("speedup")) for row in rows] == [
        (0.02, 0.0, 1.1),
        (0.05, pytest.approx(0.005), 1.3),
        (0.1, pytest.approx(0.005), 1.3),
    ]
    # A second confidence halves what an error may cost: 0.04 is not proven any more, and what lies behind it is not asked.
    wrong = point_row("unaligned", "validation", "calm", {**settings, "confidence": "softmax", "threshold": 0.9}, 59.0, 1.05)
    sweeps["unaligned"].append(wrong)
    kept[point_key("calm", wrong["settings"])] = KeptOutputs(["one three"] * 4000, work)
    rows = paper_tables(summary_record("bleu", sweeps), kept)["calibrated"]
    assert [row["distance"] for row in rows] == [0.0, 0.0, pytest.approx(0.005), None, None, None]
    assert paper_tables(summary)["calibrated"] == []


@pytest.mark.parametrize(("mean", "most", "count"), [(0, 2, 100), (1, 5, 100), (4, 10, 50), (10, 30, 20)])
def test_the_proof_of_a_mean_is_a_bound_on_the_binomial_tail(mean: int, most: int, count: int) -> None:
    """Numbers of 0 and 1 are the worst case; means in hundredths."""
    chance, hits = most / 100, mean * count // 100
    tail = sum(math.comb(count, one) * chance**one * (1 - chance) ** (count - one) for one in range(hits + 1))
    bound = p_value_of_mean(hits / count, chance, count)
    assert tail <= bound + 1e-12 and bound <= math.exp(-2 * count * (chance - hits / count) ** 2)
    assert p_value_of_mean(chance, chance, count) == 1.0


AGREEMENT = AcceptanceRate(rate=0.812, interval=(0.8, 0.824), tokens=900)
ARM_POINT = ArmPoint(
    purpose="bild_no_loss",
    settings={"fallback_threshold": 0.5},
    speedup=1.5,
    speedup_interval=(1.4, 1.6),
    quality_difference=-0.25,
    quality_difference_interval=(-0.5, 0.0),
    mean_accepted_length=2.5,
)


ARMS = [
    ArmResult(arm="unaligned", seed=1, training=TrainingRecord("w", 700, 20, 12345), points=[ARM_POINT], agreement=AGREEMENT),
    ArmResult(arm="aligned", seed=1, points=[ArmPoint(purpose="bild_no_loss")]),
]


def test_the_clock_stands_behind_the_counts_and_says_where_it_cannot_be_trusted(sweeps: Sweeps) -> None:
    counted: dict[str, Any] = {"ratio": 1.1, "interval": (1.05, 1.15), "split": "test", "texts": 4, "counts": {}}
    effect = AlignmentEffect(purpose="bild_frontiers", by_seed={1: 1.1, 2: 1.1}, finding="helps", **counted)
    choice = dataclasses.replace(effect, purpose="bild_no_loss")
    costs = CostModel(text_ms=1.0, large_call_ms=1.0, checked_position_ms=0.1, drafter_step_ms=0.1)
    equal = NullTest(split="validation", ratio=1.002, interval=(0.99, 1.01), finding="equal")
    known = Alignment(counted=effect, clock=effect, choices=[choice], costs=costs, null_test=equal)
    summary = dataclasses.replace(summary_record("bleu", sweeps), arms=ARMS, alignment=known)
    first, clock, null, *_ = tables.alignment_sentences(summary)
    assert "by counts" in first
    assert clock.startswith("By the clock, over each arm's own timed settings, that ratio is 1.10 [1.05")
    assert (
        "small model took 1.002 [0.990, 1.010] times as long as the aligned one; the expected 1 is within the interval" in null
    )
    assert tables.clock_warning(summary) == ""
    unequal = dataclasses.replace(known, null_test=NullTest(split="test", ratio=1.2, interval=(1.1, 1.3), finding="unequal"))
    warned = dataclasses.replace(summary, alignment=unequal)
    assert "1.200 [1.100, 1.300] on test at equal work" in tables.clock_warning(warned)
    assert recommend(warned).headline == tables.clock_warning(warned), "and no speed beside it"
    assert tables.clock_warning(dataclasses.replace(summary, alignment=None)) == ""


def test_the_table_has_a_row_for_each_drafter(sweeps: Sweeps) -> None:
    table = section(dataclasses.replace(summary_record("bleu", sweeps), arms=ARMS), "arms")
    headings, rows = table.headings, table.rows
    assert headings[:6] == ["arm", "seed", "steps", "target tokens", "agreement", "α, T = 1"]
    assert rows[0][:6] == ["unaligned", "1", "700", "12,345", "0.812 [0.800, 0.824]", ""]
    assert rows[0][6] == "not swept"
    assert rows[0][7] == "1.50× [1.40, 1.60], -0.25 [-0.50, +0.00], 2.5 kept (α_FB 0.5)"
    assert rows[1][7] == "none: vanilla"


def test_a_choice_that_test_contradicts_says_so_in_its_cell(sweeps: Sweeps) -> None:
    statuses = (Says(quality="contradicted", speed="confirmed"), Says(quality="open", speed="confirmed"))
    points = [dataclasses.replace(ARM_POINT, margin=0.5, test=status) for status in statuses]
    arms = [ArmResult(arm="aligned", seed=1, points=[point]) for point in points]
    cells = [row[7] for row in section(dataclasses.replace(summary_record("bleu", sweeps), arms=arms), "arms").rows]
    assert cells[0].endswith(", contradicted: loses more than 0.5 points") and "contradicted" not in cells[1]


def test_the_report_says_from_which_batch_size_on_drafting_no_longer_pays(full_record: Summary) -> None:
    point = {"method": "bild", "settings": {"max_draft": 10}}
    speeds = ((1, [1.5, 1.4, 1.6]), (2, [0.8, 0.7, 0.9]))
    vanilla = [{"batch_size": size, "throughput": (1 + size) / 2} for size in (1, 2)]
    points = [{**point, "batch_size": size, "speedup": own[0], "rounds": own} for size, own in speeds]
    pair = conftest.pair_record({"batches": {"split": "test", "examples": 64, "vanilla": vanilla, "points": points}})
    summary = dataclasses.replace(full_record, pairs={"unaligned": pair, "aligned": pair})
    tables = {table.name: table for table in rendered_tables(summary)}
    assert "on test, the largest batch at which a chosen point is faster" in " ".join(recommend(summary).changes)
    assert tables["batches"].headings == ["point", "batch 1", "batch 2"]
    alone, drafting, *_ = tables["batches"].rows
    assert alone[1:] == ["1.00× of batch 1", "1.50× of batch 1"]
    assert drafting[1:] == ["1.50× (1.40 to 1.60)", "0.80× (0.70 to 0.90)"]
    assert "batches" not in {table.name for table in rendered_tables(full_record)}


def test_both_times_of_vanilla_are_explained(sweeps: Sweeps) -> None:
    tested = [row for row in sweeps["unaligned"] if row["split"] == "test" and "error" not in row]
    for row in tested:
        row["latency_ms"] = [9.0, 31.5] if row["method"] == "vanilla_large" else row["latency_ms"]
    says = "20.00 ms beside the recommended point, as the verdict says, and 20.25 ms in its own row"
    assert any(says in note for note in tables.notes(summary_record("bleu", sweeps)))
