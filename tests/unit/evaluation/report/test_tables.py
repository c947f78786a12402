"""The papers' tables from sweeps whose numbers are known, and their text."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tasks.decoding.methods.speculative import expected_operations, expected_speedup, oracle_speedup, oracle_tokens
from tasks.evaluation.report.rendered_tables import RenderedTable, rendered_tables, tables_markdown
from tasks.evaluation.results.summary import Summary
from tests.unit.evaluation.conftest import SIZES, measured_by, summarized, summary_record, untimed

Sweeps = dict[str, list[dict[str, Any]]]
Rows = list[dict[str, Any]]

PAIR: dict[str, Any] = {
    "costs": {"cost_ratio": 0.2},
    "acceptance": {
        "greedy": {"rate": 0.75, "interval": [0.7, 0.8], "tokens": 500},
        "sampled": {"temperature": 1.0, "rate": 0.5, "interval": [0.4, 0.6], "tokens": 500},
        "others": [
            {"drafter": "bigram", "greedy": {"rate": 0.2, "interval": [0.1, 0.3], "tokens": 500}},
            {"drafter": "small", "lenience": 0.3, "greedy": {"rate": 0.8, "interval": [0.7, 0.9], "tokens": 500}},
        ],
    },
    "sizes": {"small": {**SIZES, "decoder_parameters": 10}, "large": {**SIZES, "decoder_parameters": 100}},
}


def ours(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in rows if row["source"] == "measured"}


def renamed(sweeps: Sweeps, method: str, **settings: Any) -> Sweeps:
    """Both sweeps with speculative decoding under another name and with more settings."""
    for rows in sweeps.values():
        for row in rows:
            if row["method"] == "speculative":
                row.update(method=method, lossless=False, settings={**row["settings"], **settings})
    return sweeps


def section(summary: Summary, name: str) -> RenderedTable:
    (found,) = [one for one in rendered_tables(summary) if one.name == name]
    return found


def test_shares_are_for_each_token_of_what_was_chosen_and_matched(sweeps: Sweeps) -> None:
    rows = ours(summarized("bleu", sweeps)["tables"]["shares"])
    assert (rows["speculative, unaligned"]["fallback_share"], rows["speculative, unaligned"]["rollback_share"]) == (0.4, 0.1)
    # Unaligned speculative is chosen at 60.0 and 1.3: as fast are 0.7 (59.2) and 0.5 (58.0), as good is nothing.
    assert rows["BiLD as fast as speculative, unaligned"]["settings"]["fallback_threshold"] == 0.7
    assert "BiLD as good as speculative, unaligned" not in rows
    # Aligned at 60.0 and 1.5: as fast are 0.7 and 0.5, as good is 0.9.
    assert rows["BiLD as fast as speculative, aligned"]["settings"]["fallback_threshold"] == 0.7
    assert rows["BiLD as good as speculative, aligned"]["settings"]["fallback_threshold"] == 0.9
    assert rows["BiLD, ≤ 1 point, unaligned"]["speedup"] == 1.5


def test_published_rows_follow_and_say_what_they_are(sweeps: Sweeps) -> None:
    rows = summarized("bleu", sweeps, dataset="iwslt17-de-en")["tables"]["shares"]
    sources = [row["source"] for row in rows]
    assert sources == sorted(sources)
    assert {row["dataset"] for row in rows if row["source"] == "published"} == {"IWSLT17 De-En"}
    (better,) = [row for row in rows if row["label"].startswith("BiLD (Better")]
    assert (better["fallback_share"], better["rollback_share"]) == (0.2109, 0.0156)


@pytest.mark.parametrize(
    ("dataset", "metric", "tables"),
    [
        ("none", "bleu", {}),
        ("iwslt17-de-en", "bleu", {"shares": "IWSLT17 De-En"}),
        ("wmt14-de-en", "bleu", {}),
        ("wmt14-en-de", "bleu", {"cascade": "WMT En-De", "speculative": "WMT En-De"}),
        ("xsum", "rougeL", {"shares": "XSum"}),
        ("xsum", "rouge2", {"cascade": "XSum"}),
        ("cnn_dailymail", "rouge2", {"cascade": "CNN/DM", "speculative": "CNN/DM"}),
        ("cnn_dailymail", "rougeL", {"speculative": "CNN/DM"}),  # SD prints no quality
    ],
)
def test_published_rows_are_of_the_data_set_and_the_metric(
    sweeps: Sweeps, dataset: str, metric: str, tables: dict[str, str]
) -> None:
    found = summarized(metric, measured_by(metric, sweeps), dataset=dataset)["tables"]
    published = {(name, row["dataset"]) for name, rows in found.items() for row in rows if row["source"] == "published"}
    assert published == set(tables.items())


def test_what_is_said_of_published_rows_stands_only_beside_them(sweeps: Sweeps) -> None:
    swept = renamed(sweeps, "speculative_lenient", lenience=0.3)
    alone, beside = (section(summary_record("bleu", swept, dataset=dataset), "lenience") for dataset in ("none", "wmt14-en-de"))
    assert alone.published == [] and len(beside.published) == 8
    assert [heading for heading in beside.headings if "theory" in heading] == ["speed-up, theory"]
    assert [len(one.headings) - len(one.rows[0]) for one in (alone, beside)] == [0, 0]
    assert not any("published" in note for note in alone.notes) and any("published" in note for note in beside.notes)


def test_cascades_at_quality_and_within_latency(sweeps: Sweeps) -> None:
    for row in sweeps["aligned"]:
        if row["method"] == "bild" and row["quality"]["bleu"] == 60.0:
            row.update(speedup=0.95)
    rows = ours(summarized("bleu", sweeps)["tables"]["cascade"])
    assert list(rows) == ["BiLD, unaligned", "speculative, unaligned", "BiLD, aligned", "speculative, aligned"]
    assert rows["BiLD, unaligned"]["at_quality"] is None
    assert rows["BiLD, unaligned"]["at_latency"]["quality"] == 59.95
    assert rows["speculative, unaligned"]["at_quality"]["speedup"] == 1.3
    # The only one as good as vanilla is slower; the best of the faster ones lies 0.1 under.
    assert rows["BiLD, aligned"]["at_quality"]["speedup"] == 0.95
    assert rows["BiLD, aligned"]["at_latency"]["quality"] == 59.9


def test_rules_and_drafters_are_variants_beside_their_published_row(sweeps: Sweeps) -> None:
    swept = measured_by("rouge2", renamed(sweeps, "speculative_cascade", rule="opt", drafter="bigram"))
    summary = summarized("rouge2", swept, dataset="xsum")
    rows = ours(summary["tables"]["cascade"])
    assert rows["speculative cascade [opt], drafts: bigram, aligned"]["variant"] == "speculative_cascade opt"
    published = [row for row in summary["tables"]["cascade"] if row.get("variant") == "speculative_cascade opt"]
    assert [row.get("dataset") for row in published[2:]] == ["XSum"]
    assert [row["at_quality"]["speedup"] for row in published[2:]] == [1.17]


def test_speculation_sets_theory_beside_measurement(sweeps: Sweeps) -> None:
    summary = summarized("bleu", sweeps, {"unaligned": PAIR})
    rows = ours(summary["tables"]["speculative"])
    row = rows["speculative, unaligned, γ 5"]
    assert (row["speedup"], row["acceptance_rate"], row["cost_ratio"]) == (1.3, 0.75, 0.2)
    assert row["expected_speedup"] == pytest.approx(expected_speedup(0.75, 5, 0.2), rel=1e-5)
    assert row["expected_operations"] == pytest.approx(expected_operations(0.75, 5, 0.1), rel=1e-5)
    assert (row["check_cost"], row["expected_speedup_checked"]) == (None, None)  # no check was timed
    # Nothing is known of the aligned pair.
    other = rows["speculative, aligned, γ 3"]
    assert (other["speedup"], other["acceptance_rate"], other["expected_speedup"]) == (1.5, None, None)


def test_theory_stands_with_the_papers_check_and_with_the_measured_one(sweeps: Sweeps) -> None:
    timed = {**PAIR, "costs": {"cost_ratio": 0.2, "verify_ms": {"1": 2.0, "4": 3.0, "8": 5.0}}}
    row = ours(summarized("bleu", sweeps, {"unaligned": timed})["tables"]["speculative"])["speculative, unaligned, γ 5"]
    assert row["check_cost"] == 2.0  # six positions take 4 ms, a step 2 ms
    assert row["expected_speedup"] == pytest.approx(expected_speedup(0.75, 5, 0.2), rel=1e-5)
    assert row["expected_speedup_checked"] == pytest.approx(expected_speedup(0.75, 5, 0.2) * 2 / 3, rel=1e-5)
    assert row["tokens_per_large_call"] == pytest.approx(100 / 40)


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
        # Drafts of the small model's text are rated as its own, but not in the runs that the theorem counts.
        ("retokenized", 0.75, None, None),
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
    sweeps["aligned"] = [
        row if row["method"].startswith("vanilla") else untimed(row, 9.0) for row in sweeps["aligned"]
    ]  # fmt: skip
    tables = summarized("bleu", sweeps, {"aligned": PAIR})["tables"]
    for name in ("shares", "cascade"):
        assert all("aligned" not in row["label"].split(", ") for row in tables[name])
    counted = [row for row in tables["speculative"] if "aligned" in row["label"].split(", ")]
    assert counted and all(row["speedup"] is None and row["quality"] for row in counted)
    assert not tables["lenience"]


def test_sections_hold_as_many_cells_as_headings_and_leave_out_what_was_not_measured(sweeps: Sweeps) -> None:
    found = rendered_tables(summary_record("bleu", sweeps, {"unaligned": PAIR}, dataset="wmt14-en-de"))
    assert [one.name for one in found] == ["beside_bild", "sizes", "shares", "cascade", "acceptance", "speculative"]
    for one in found:
        assert {len(cells) for cells in (*one.rows, *one.published)} == {len(one.headings)}


def test_cells_show_numbers_intervals_and_settings(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, {"unaligned": PAIR})
    shares = dict(zip(section(summary, "shares").headings, section(summary, "shares").rows[0], strict=True))
    assert (shares["settings"], shares["fallbacks"], shares["speed-up"]) == ("γ 5", "40.00 %", "1.30× [1.25, 1.35]")
    speculative = section(summary, "speculative")
    cells = dict(zip(speculative.headings, speculative.rows[1], strict=True))
    assert (cells["α"], cells["c"], cells["γ"], cells["T"]) == ("0.75 [0.70, 0.80]", "0.20", "5", "0")
    assert cells["speed-up, theory, a check costs one step"] == f"{expected_speedup(0.75, 5, 0.2):.2f}×"
    assert cells["speed-up measured"] == "1.30× [1.25, 1.35]"


def test_markdown_keeps_published_rows_apart(sweeps: Sweeps) -> None:
    text = tables_markdown(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    first, _, rest = text.partition("As published for this data set: other models, other hardware.")
    assert "| speculative, unaligned |" in first and "Rejection Sampling" not in first
    assert "| Rejection Sampling Based, IWSLT17 De-En |" in rest.split("##")[0]
