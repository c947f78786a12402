"""Breaks of the report: choices, tables, figures, comparisons."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break(
        "oracle-defers-at-every-token", "tasks.evaluation.report.figures.cascades", "_deferrals",
        "counts.rollbacks if", "counts.large_calls if",
        (f"{_UNIT}/report/test_cascade_figures.py",),
    ),
    Break(
        "table-look-up-costs-a-small-step", "tasks.evaluation.report.drafting", "cost_of",
        "0.0 if drafter in LOOK_UPS else pair.cost_ratio", "pair.cost_ratio",
        (f"{_UNIT}/report/test_tables.py",),
    ),
    Break(
        "beside-bild-on-unequal-splits", "tasks.evaluation.report.beside_bild", "_compared",
        "all(one.test is not None", "any(one.test is not None",
        (f"{_UNIT}/report/test_beside_bild.py",),
    ),
    Break(
        "test-set-reported-as-the-main-one", "tasks.evaluation.report.test_sets", "_further",
        "_in_place_of_test(arms[key][0], further[key][0])", "arms[key][0]",
        ("tests/unit/test_report.py::test_every_test_set_stands_in_the_report_by_its_name",),
    ),
    Break(
        "theory-with-the-wrong-check", "tasks.evaluation.report.tables", "_speculative",
        "pair.costs.check_cost(length + 1)", "pair.costs.check_cost(length)",
        (f"{_UNIT}/report/test_tables.py",),
    ),
    Break(
        "unknown-examples-paired", "tasks.evaluation.comparing.provenance", "same_examples",
        "sampled is not None and ", "",
        (f"{_UNIT}/comparing/test_provenance.py",),
    ),
    Break(
        "noise-beats-vanilla", "tasks.evaluation.report.selection", "is_faster",
        "interval[0] if interval", "interval[1] if interval",
        (f"{_UNIT}/report/test_recommendation.py",),
    ),
    Break(
        "slow-on-test-deployed", "tasks.evaluation.report.candidates", "_objection",
        'status.speed == "open"', 'status.speed == "never"',
        (f"{_UNIT}/report/test_recommendation.py",),
    ),
    Break(
        "contradicted-not-marked", "tasks.evaluation.report.marks", "mark_of",
        'return Mark("contradicted", f"contradicted: loses', 'return Mark("open", f"contradicted: loses',
        (f"{_UNIT}/report/test_page.py",),
    ),
    Break(
        "contradicted-without-a-word", "tasks.evaluation.report.figures.lettered", "_record",
        'name = f"{one.letter} contradicted" if one.contradicted else one.letter', "name = one.letter",
        (f"{_UNIT}/report/test_pareto_figure.py",),
    ),
    Break(
        "name-over-a-mark", "tasks.evaluation.report.figures.labels", "sides",
        "side = next(free, first)", "side = first",
        (f"{_UNIT}/report/test_labels.py",),
    ),
    Break(
        "seeds-of-one-arm", "tasks.evaluation.report.arms_text", "_points",
        "result.drafter == drafter", "True",
        (f"{_UNIT}/report/test_basis.py",),
    ),
    Break(
        "outputs-beside-those-of-another-split", "tasks.evaluation.report.basis", "outputs_sentence",
        "if split == summary.split else", "if split != summary.split else",
        (f"{_UNIT}/report/test_basis.py",),
    ),
    Break(
        "headline-from-validation", "tasks.evaluation.report.selection", "reported",
        "if point.test else", "if not point.test else",
        (f"{_UNIT}/report/test_headline.py",),
    ),
    Break(
        "gain-called-a-cost", "tasks.evaluation.report.headline", "cost_text",
        "'gains' if difference > 0", "'gains' if difference < 0",
        (f"{_UNIT}/report/test_headline.py",),
    ),
    Break(
        "test-numbers-from-validation", "tasks.evaluation.report.points", "SweepPoints.add",
        "if row.split == REPORTED_ON}", "if row.split == CHOSEN_ON}",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "first-row-of-a-point-counts", "tasks.evaluation.report.points", "latest",
        "for row in rows}", "for row in reversed(list(rows))}",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "points-chosen-on-test", "tasks.evaluation.report.points", "SweepPoints.add",
        "rows if row.split == CHOSEN_ON]", "rows if row.split == REPORTED_ON]",
        (f"{_UNIT}/report/test_summary.py",),
    ),
    Break(
        "decoder-counted-with-its-head", "tasks.evaluation.report.bild_tables", "_sizes_row",
        " - sizes.head_parameters", "",
        (f"{_UNIT}/report/test_bild_tables.py",),
    ),
    Break(
        "greedy-bild-passed-off-as-drawn", "tasks.evaluation.report.bild_tables", "sampled_rows",
        'if temperature(point) > 0]', 'if point.timed]',
        (f"{_UNIT}/report/test_bild_tables.py",),
    ),
    Break(
        "slower-bild-called-as-fast-as-calm", "tasks.evaluation.report.bild_tables", "early_exit_rows",
        "if one.speedup >= point.speedup]", "if one.timed]",
        (f"{_UNIT}/report/test_bild_tables.py",),
    ),
    Break(
        "threshold-controlled-on-test", "tasks.evaluation.report.risk_table", "_row",
        "loss_share=point.loss_share", "loss_share=point.test and point.test.loss_share",
        (f"{_UNIT}/report/test_risk_table.py",),
    ),
    Break(
        "panels-with-the-vanilla-of-another-temperature", "tasks.evaluation.report.figures.temperatures", "_panels",
        "swept.vanilla_quality", "summary.vanilla.large.quality",
        (f"{_UNIT}/report/test_temperatures.py",),
    ),
    Break(
        "point-chosen-at-another-temperature", "tasks.evaluation.report.temperatures", "temperature_points",
        "dataclasses.replace(point, chosen=None)", "point",
        (f"{_UNIT}/report/test_temperatures.py",),
    ),
)  # fmt: skip
