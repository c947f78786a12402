"""BiLD's tables beyond its first from sweeps whose numbers are known: sizes, drawn tokens, early exit beside CALM."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.rendered_tables import RenderedTable, rendered_tables
from tasks.evaluation.results.bild_tables import EarlyExitRow
from tasks.evaluation.results.summary import Summary
from tests.unit.evaluation.conftest import SIZES, summary_record

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]

LARGE = {**SIZES, "layers": 24, "width": 1024, "feed_forward_width": 2816, "memory_parameters": 2_000_000}
LARGE |= {"decoder_parameters": 408_000_000, "head_parameters": 1_000_000}
SMALL = {
    **SIZES,
    "layers": 3,
    "width": 64,
    "decoder_parameters": 1_300_000,
    "head_parameters": 66_000,
    "feed_forward_width": None,
}
NUCLEUS = {"temperature": 1.0, "top_k": 0, "top_p": 0.8}


def table_of(summary: Summary, name: str) -> RenderedTable | None:
    return next((one for one in rendered_tables(summary) if one.name == name), None)


def shown(summary: Summary, name: str) -> RenderedTable:
    found = table_of(summary, name)
    assert found is not None
    return found


def test_sizes_are_of_the_decoders_without_their_heads(sweeps: Sweeps) -> None:
    pairs = {arm: {"sizes": {"large": LARGE, "small": SMALL}} for arm in sweeps}
    found = shown(summary_record("bleu", sweeps, pairs, dataset="wmt14-de-en"), "sizes")
    assert found.headings == ["model", "layers", "width", "feed-forward width", "parameters"]
    assert found.rows == [
        ["large model", "24", "1024", "2816", "409 M"],
        # A record without the width of the inner layers; 1,300,000 - 66,000 weights.
        ["small model", "3", "64", "–", "1.23 M"],
    ]
    assert found.published == [
        ["mT5-large, WMT14 De-En", "24", "1024", "2816", "409 M"],
        ["mT5-small, WMT14 De-En", "8", "512", "1024", "25 M"],
    ]


def test_small_models_of_two_shapes_have_a_row_each_and_nothing_published_stands_alone(sweeps: Sweeps) -> None:
    other = {**SMALL, "layers": 1}
    pairs = {"unaligned": {"sizes": {"large": LARGE, "small": SMALL}}, "aligned": {"sizes": {"large": LARGE, "small": other}}}
    found = shown(summary_record("bleu", sweeps, pairs), "sizes")
    assert [row[:2] for row in found.rows[1:]] == [["small model, unaligned", "3"], ["small model, aligned", "1"]]
    assert found.published == []
    assert table_of(summary_record("bleu", sweeps, dataset="wmt14-de-en"), "sizes") is None


def drawn(sweeps: Sweeps, arm: str) -> Sweeps:
    for row in sweeps[arm]:
        row["sampling"] = NUCLEUS
    return sweeps


def test_drawn_tokens_have_vanilla_and_bild_where_it_is_best_and_as_chosen(sweeps: Sweeps) -> None:
    found = shown(summary_record("bleu", drawn(sweeps, "aligned"), dataset="iwslt17-de-en"), "sampled")
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


def test_a_greedy_sweep_has_no_table_of_drawn_tokens(sweeps: Sweeps) -> None:
    assert table_of(summary_record("bleu", sweeps, dataset="iwslt17-de-en"), "sampled") is None


def calm(arm: str, threshold: float, quality: float, speedup: float) -> Row:
    return {
        "task": "toy",
        "split": "validation",
        "method": "calm",
        "arm": arm,
        "settings": {"confidence": "saturation", "threshold": threshold, "decay": 0.0},
        "lossless": False,
        "metric": "bleu",
        "quality": {"bleu": quality},
        "latency_ms": [10 / speedup, 30 / speedup],
        "vanilla_latency_ms": [10.0, 30.0],
        "speedup": speedup,
        "counts": {"tokens": 100},
        "examples": 200,
    }


def early_exit(sweeps: Sweeps) -> list[EarlyExitRow]:
    return [row for row in summary_record("bleu", sweeps).tables.early_exit if isinstance(row, EarlyExitRow)]


def settings_of(row: EarlyExitRow) -> tuple[object, object]:
    return row.calm and row.calm.settings["threshold"], row.bild and row.bild.settings["fallback_threshold"]


def test_bild_stands_beside_calm_at_equal_demands_qualities_and_speeds(sweeps: Sweeps) -> None:
    # BiLD, unaligned: 59.95 at 1.2, 59.2 at 1.5, 58.0 at 2.0.
    sweeps["unaligned"] += [calm("unaligned", 0.9, 59.9, 1.1), calm("unaligned", 0.7, 57.0, 1.45)]
    rows = early_exit(sweeps)
    assert rows[1].quality_gain == pytest.approx(59.2 - 59.9)
    assert [(row.label, settings_of(row)) for row in rows] == [
        ("no loss, unaligned", (0.9, 0.9)),
        ("≤ 1 point, unaligned", (0.9, 0.7)),
        ("as good as CALM, unaligned", (0.7, 0.5)),
        ("as fast as CALM, unaligned", (0.7, 0.7)),
        ("as good as CALM, unaligned", (0.9, 0.9)),
        ("as fast as CALM, unaligned", (0.9, 0.9)),
    ]


def test_a_point_of_calm_that_another_beats_and_one_that_bild_does_not_reach(sweeps: Sweeps) -> None:
    sweeps["aligned"] += [calm("aligned", 0.9, 60.5, 3.0), calm("aligned", 0.7, 57.0, 1.45)]
    assert [settings_of(row) for row in early_exit(sweeps) if "as CALM" in row.label] == [(0.9, None), (0.9, None)]


def test_bild_is_told_apart_by_what_drafts(sweeps: Sweeps) -> None:
    sweeps["unaligned"].append(calm("unaligned", 0.9, 59.9, 1.1))
    fast = next(row for row in sweeps["unaligned"] if row["settings"].get("fallback_threshold") == 0.5)
    settings = {"drafter": "early_layer", **fast["settings"]}
    sweeps["unaligned"].append({**fast, "settings": settings, "quality": {"bleu": 59.95}})
    fastest = {row.label: row.bild and row.bild.speedup for row in early_exit(sweeps)}
    assert fastest["no loss, drafts: early_layer, unaligned"] == 2.0
    assert fastest["no loss, unaligned"] == 1.2


def test_published_early_exit_stands_below_in_its_own_columns(sweeps: Sweeps) -> None:
    sweeps["unaligned"].append(calm("unaligned", 0.9, 59.9, 1.1))
    found = shown(summary_record("bleu", sweeps, dataset="wmt14-de-en"), "early_exit")
    assert len(found.headings) == 8 and {len(cells) for cells in (*found.rows, *found.published)} == {8}
    assert found.rows[0] == [
        "no loss, unaligned", "confidence saturation threshold 0.9 decay 0", "59.90", "1.10×",
        "α_FB 0.9 α_RB 2", "59.95 [57.95, 61.95]", "1.20× [1.15, 1.25]", "+0.05",
    ]  # fmt: skip
    assert found.published[1:] == [
        ["≤ 1 point (4.4), WMT14 De-En", "–", "–", "–", "–", "–", "1.74×", "–"],
        ["as fast as CALM (7.2.2), WMT14 De-En", "–", "–", "1.50×", "–", "–", "1.50×", "+2.00"],
    ]
    assert table_of(summary_record("bleu", {**sweeps, "unaligned": sweeps["unaligned"][:-1]}), "early_exit") is None
