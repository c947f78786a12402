from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.report.rendered_tables import tables_markdown
from tasks.evaluation.report.table import ROWS, as_markdown, as_text
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.published import published, table_1_columns
from tests.unit.evaluation.conftest import measured_by, summarized, summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def line(text: str, label: str) -> str:
    found, _ = [one for one in text.splitlines() if one.startswith(label + "  ")]
    return found


def test_rows_hold_choices_and_what_was_published(sweeps: Sweeps) -> None:
    rows = {row["row"]: row for row in summarized("bleu", sweeps, dataset="iwslt17-de-en")["table"]}
    assert list(rows) == list(ROWS)
    no_loss = rows["bild_unaligned_no_loss"]
    assert (no_loss["validation"]["quality"], no_loss["test"]["quality"]) == (59.95, 59.5)
    assert no_loss["settings"]["fallback_threshold"] == 0.9
    assert [entry["quality"] for entry in no_loss["published"]] == [40.33]
    assert rows["bild_unaligned_one_point"]["settings"]["fallback_threshold"] == 0.7
    both = (rows["bild_aligned_no_loss"], rows["bild_aligned_one_point"])
    assert {row["settings"]["fallback_threshold"] for row in both} == {0.7}
    assert rows["vanilla_small_aligned"]["test"]["quality"] == 41.0
    assert rows["speculative_unaligned"]["published"][0]["speedup"] == 1.28


def test_what_other_methods_chose_stands_below_each_point_once(sweeps: Sweeps) -> None:
    renamed = {"bild": "token_cascade"}
    others = {
        arm: [{**row, "method": renamed.get(row["method"], row["method"])} for row in rows] for arm, rows in sweeps.items()
    }
    rows = {row["label"]: row for row in summarized("bleu", others, dataset="iwslt17-de-en")["table"][len(ROWS) :]}
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
        "59.50 [57.5, 61.5]",
        "-0.50",
        "1.25× [1.20, 1.30]",
        "16.00",
        "quality on test not compared",
        "α_FB 0.9 α_RB 2",
        "40.33 · 1.43×",
    ]
    assert "speculative, aligned" in text and "γ 3" in line(text, "speculative, aligned")
    assert "other models, other hardware" in text
    assert "1 point failed" in text
    assert len({row.index("40.") for row in text.splitlines() if "· 1." in row and "40." in row}) == 1


def test_missing_and_slow_choices_are_said(sweeps: Sweeps) -> None:
    for row in sweeps["unaligned"]:
        if row["method"] == "bild" and "error" not in row:
            row["quality"] = {"bleu": 50.0, "rougeL": 50.0}
    for row in sweeps["aligned"]:
        if row["method"] == "bild":
            row["speedup"] = 0.8
    text = as_text(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    assert "BiLD unaligned, no loss: no such setting was found." in text
    assert "BiLD aligned, no loss: slower than vanilla" in text
    cells = " ".join(line(text, "BiLD unaligned, no loss").split())
    assert cells == "BiLD unaligned, no loss – – – – – – 40.33 · 1.43×"


def test_paired_differences_have_their_intervals_where_they_were_measured(sweeps: Sweeps) -> None:
    for row in sweeps["unaligned"]:
        if row["split"] == "test":
            row["quality_difference_interval"] = [-0.9, -0.1]
    text = as_text(summary_record("bleu", sweeps))
    assert "BLEU − vanilla" in text
    assert "-0.50 [-0.90, -0.10]" in line(text, "BiLD unaligned, no loss")


def test_markdown_has_one_heading_and_as_many_cells_everywhere(sweeps: Sweeps) -> None:
    markdown = as_markdown(summary_record("bleu", sweeps, dataset="iwslt17-de-en"))
    table = [row for row in markdown.splitlines() if row.startswith("|")]
    on_test, on_validation = table[: len(table) // 2], table[len(table) // 2 :]
    assert len(on_test) == len(on_validation) == 2 + len(ROWS)
    assert [len({row.count("|") for row in rows}) for rows in (on_test, on_validation)] == [1, 1]
    assert "result on test" in on_test[0] and "published IWSLT17 De-En" in on_test[0] and "published" not in on_validation[0]


@pytest.mark.parametrize(
    ("dataset", "metric", "columns"),
    [
        ("none", "bleu", []),
        ("iwslt17-de-en", "bleu", ["IWSLT17 De-En"]),
        ("iwslt17-de-en", "rougeL", []),
        ("wmt14-de-en", "bleu", ["WMT14 De-En"]),
        ("wmt14-en-de", "bleu", []),  # other tables have rows of it
        ("xsum", "rougeL", ["XSum"]),
        ("xsum", "rouge1", []),
        ("cnn_dailymail", "rougeLsum", ["CNN/DM"]),
        ("cnn_dailymail", "rougeL", []),
    ],
)
def test_a_published_column_is_of_the_data_set_and_the_metric(
    sweeps: Sweeps, dataset: str, metric: str, columns: list[str]
) -> None:
    text = as_markdown(summary_record(metric, measured_by(metric, sweeps), dataset=dataset))
    (headings, *_) = [line.split(" | ") for line in text.splitlines() if line.startswith("| method")]
    assert [heading.strip(" |") for heading in headings if "published" in heading] == [f"published {name}" for name in columns]
    assert ("batch 1 on one NVIDIA T4" in text) == bool(columns)
    assert ("almost certainly ROUGE-Lsum" in text) == (columns == ["CNN/DM"])


def test_a_corpus_of_which_nothing_was_published_is_told_once(sweeps: Sweeps) -> None:
    nothing = "no number in the papers is of this corpus and metric"
    for dataset, times in (("none", 1), ("xsum", 1), ("iwslt17-de-en", 0), ("wmt14-en-de", 0)):
        summary = summary_record("bleu", sweeps, dataset=dataset)
        assert (as_markdown(summary) + tables_markdown(summary)).count(nothing) == times
        assert as_text(summary).count(nothing) == times


def test_settings_are_short() -> None:
    settings: Settings = {"fallback_threshold": 0.6, "rollback_threshold": 2.0, "max_draft": 10, "large_first": False}
    assert settings_text(settings) == "α_FB 0.6 α_RB 2 ≤ 10"
    assert settings_text({"rollback_threshold": "inf", "keep_agreed": True}) == "α_RB ∞ keep agreed"
    assert settings_text({}) == ""


def test_published_rows_are_rows_of_the_table_and_keep_their_order() -> None:
    results = published().table_1.results
    assert len(results) == 4
    for column in (column for found in results for column in table_1_columns(found.dataset, found.metric or "")):
        assert column.rows.keys() <= set(ROWS)
        for arm in ("unaligned", "aligned"):
            no_loss, one_point = column.rows[f"bild_{arm}_no_loss"], column.rows[f"bild_{arm}_one_point"]
            vanilla = column.rows["vanilla_large"][0]
            # The paper's own tolerances are a little wider than ours: WMT aligned lies 0.12 under vanilla.
            assert no_loss[0] >= vanilla - 0.13 and vanilla - 1.2 <= one_point[0] < no_loss[0]
            assert no_loss[1] is not None and one_point[1] is not None and no_loss[1] < one_point[1]


def test_the_notes_name_the_tokenizer_and_what_it_cannot_read(sweeps: Sweeps) -> None:
    metric = "bleu[bleu_tokenizer=char]"
    pairs = {"aligned": {"unsupported_script": "ROUGE drops it; set unicode"}}
    text = as_markdown(summary_record(metric, measured_by(metric, sweeps), pairs, dataset="iwslt17-de-en"))
    assert "BLEU (char) and speed-up" in text and "| BLEU (char) |" in text
    assert text.count("\n- Warning: ROUGE drops it; set unicode.\n") == 1
    assert "no number in the papers is of this corpus and metric" in text
