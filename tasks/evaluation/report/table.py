"""Table 1 of Kim et al., NeurIPS 2023, for one task, with their numbers beside it where they are of its data set and metric."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    METRIC_NAMES,
    NOTHING,
    aligned_columns,
    field_text,
    interval_text,
    markdown_table,
    number_text,
)
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.points import ModelAlone, TimedPoint
from tasks.evaluation.results.published import PublishedColumn, anything_published, published, table_1_columns
from tasks.evaluation.results.summary import FrontierGap, Summary
from tasks.evaluation.results.tables import PublishedResult, TableEntry, TableRow
from tasks.evaluation.rounds import scatter_text
from tasks.paths import DRAFTERS

_VANILLA_ROWS = {
    "vanilla_large": "vanilla large",
    "vanilla_small": "vanilla small",
    "vanilla_small_aligned": "vanilla small, aligned",
}
_CHOICE_ROWS = {
    "bild_unaligned_no_loss": ("BiLD unaligned, no loss", ("bild", "unaligned", "no_loss")),
    "bild_unaligned_one_point": ("BiLD unaligned, ≤ 1 point", ("bild", "unaligned", "one_point")),
    "bild_aligned_no_loss": ("BiLD aligned, no loss", ("bild", "aligned", "no_loss")),
    "bild_aligned_one_point": ("BiLD aligned, ≤ 1 point", ("bild", "aligned", "one_point")),
    "speculative_unaligned": ("speculative, unaligned", ("speculative", "unaligned", "no_loss")),
    "speculative_aligned": ("speculative, aligned", ("speculative", "aligned", "no_loss")),
}
ROWS = (*_VANILLA_ROWS, *_CHOICE_ROWS)
"""The names of the rows that the table always has."""


def table_rows(summary: Summary) -> list[TableRow]:
    """One row for each of `ROWS`, and for each choice of any other method that is faster than vanilla.

    Where both choices of such a method are one point, it stands once.
    """
    chosen = {(choice.method, choice.drafter, choice.choice): point for choice, point in summary.chosen_points()}
    models = (summary.vanilla.large, summary.vanilla.small, summary.vanilla.small_aligned)
    found: list[tuple[str, str, ModelAlone | TimedPoint | None]] = [
        *((name, label, model) for (name, label), model in zip(_VANILLA_ROWS.items(), models, strict=True)),
        *((name, label, chosen.get(choice)) for name, (label, choice) in _CHOICE_ROWS.items()),
    ]
    known = {choice[:2] for _, choice in _CHOICE_ROWS.values()}
    for (method, drafter, choice), point in chosen.items():
        if (method, drafter) not in known and point.speedup > 1 and not any(point is other for _, _, other in found):
            label = f"{method.replace('_', ' ')}, {drafter}, {CHOICE_NAMES[choice]}"
            found.append((f"{method}_{drafter}_{choice}", label, point))
    columns = table_1_columns(summary.dataset, summary.metric)
    return [_row(name, label, measured, columns) for name, label, measured in found]


def _row(name: str, label: str, found: ModelAlone | TimedPoint | None, columns: Sequence[PublishedColumn]) -> TableRow:
    test = None if found is None else found.test
    return TableRow(
        row=name,
        label=label,
        found=found is not None,
        settings=found.settings if isinstance(found, TimedPoint) else {},
        validation=None if found is None else joined(TableEntry, found),
        test=None if test is None else joined(TableEntry, test),
        large_calls_per_token=None if found is None else (test or found).large_calls_per_token,
        published=[
            PublishedResult(dataset=column.dataset, quality=quality, speedup=speedup)
            for column in columns
            for quality, speedup in filter(None, [column.rows.get(name)])
        ],
    )


def as_markdown(summary: Summary) -> str:
    """The table and its notes as Markdown."""
    headings, cells = table_cells(summary)
    lines = [f"# {_title(summary)}", "", *markdown_table([" ".join(words).strip() for words in headings], cells), ""]
    return "\n".join(lines + [f"- {note}" for note in notes(summary)]) + "\n"


def as_text(summary: Summary) -> str:
    """The table and its notes for a terminal, columns aligned."""
    headings, cells = table_cells(summary)
    lines = aligned_columns([[upper for upper, _ in headings], [lower for _, lower in headings], *cells])
    lines.insert(2, "─" * max(map(len, lines)))
    return "\n".join([_title(summary), "", *lines, "", *notes(summary)]) + "\n"


def _title(summary: Summary) -> str:
    return f"Task {summary.task}: {METRIC_NAMES[summary.metric]} and speed-up over the vanilla large model [95 % intervals]"


def table_cells(summary: Summary) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """The headings in two lines, and the body; a column of differences from vanilla only where they were measured."""
    metric, columns = METRIC_NAMES[summary.metric], table_1_columns(summary.dataset, summary.metric)
    paired = any(row.test and row.test.quality_difference_interval for row in summary.table)
    headings = [("", "method"), ("valid.", metric), ("valid.", "speed-up"), ("test", metric), ("test", "speed-up")]
    headings += [("test", f"{metric} − vanilla")] if paired else []
    headings += [("large", "calls/token"), ("", "settings"), *(("published", column.dataset) for column in columns)]
    body = []
    for row in summary.table:
        chosen, test, printed = row.validation, row.test, {one.dataset: one for one in row.published}
        cells = [row.label, field_text(chosen, "quality", None), field_text(chosen, "speedup", None)]
        cells += [field_text(test, "quality", 1), field_text(test, "speedup")]
        cells += [_difference_cell(row, summary)] if paired else []
        cells += [field_text(row, "large_calls_per_token"), field_text(row, "settings")]
        body.append(cells + [_published_cell(printed.get(column.dataset)) for column in columns])
    return headings, body


def _difference_cell(row: TableRow, summary: Summary) -> str:
    """Quality on test minus vanilla large's, where its paired interval was measured."""
    vanilla, test = summary.vanilla.large.test, row.test
    if test is None or vanilla is None or not test.quality_difference_interval:
        return NOTHING
    return number_text(test.quality - vanilla.quality, test.quality_difference_interval, sign="+")


def _published_cell(printed: PublishedResult | None) -> str:
    speedup = f" · {printed.speedup:.2f}×" if printed and printed.speedup else ""
    return field_text(printed, "quality") + speedup


def notes(summary: Summary) -> list[str]:
    """The notes under the table, a sentence or two each."""
    margins = summary.margins
    found = [
        "No loss: the fastest setting whose quality difference to vanilla has a lower bound above "
        f"−{margins.no_loss:g} on validation; ≤ 1 point: above −{margins.one_point:g}; speculative: no loss. All bounds "
        f"of both drafters hold together with {margins.confidence:.0%} confidence. Chosen on validation, reported on test. "
        "Other methods stand here where their choice is faster than vanilla there."
    ]
    for row in summary.table:
        best = row.test or row.validation
        if best is None:
            found.append(f"{row.label}: {'not measured' if row.row in _VANILLA_ROWS else 'no such setting was found'}.")
        elif row.row in _CHOICE_ROWS and best.speedup < 1:
            found.append(f"{row.label}: slower than vanilla, and yet the fastest that keeps the quality.")
    found.append(_frontier_note(summary.frontier.gap))
    if summary.failed:
        count = len(summary.failed)
        found.append(f"{count} point{'s' if count > 1 else ''} failed; see `failed` in summary.json.")
    for drafter in DRAFTERS:
        if scatter := summary.pairs.of(drafter).vanilla_scatter:
            found.append(scatter_text(scatter, drafter))
    if summary.metric == "bleu" and summary.signature:
        found.append(f"BLEU: {summary.signature}.")
    if summary.chrf_signature:
        found.append(f"chrF: {summary.chrf_signature}.")
    return found + _published_notes(summary)


def _published_notes(summary: Summary) -> list[str]:
    """Where the published numbers come from; or that no table has any."""
    if not anything_published(summary.dataset, summary.metric):
        return ["Published: no number in the papers is of this corpus and metric, so none stands beside these."]
    columns = table_1_columns(summary.dataset, summary.metric)
    source = [f"Published: {published().source}."] if columns else []
    return source + [f"Published {column.dataset}: {column.remark}." for column in columns if column.remark]


def _frontier_note(gap: FrontierGap | None) -> str:
    if gap is None:
        return "Aligned against unaligned: no latency up to vanilla's at which both were measured."
    quality = f"{gap.mean_quality_difference:+.2f}{interval_text(gap.quality_interval)} points"
    speed = f"{gap.mean_speedup_ratio:.2f}{interval_text(gap.speedup_interval)} times"
    return (
        f"Aligned against unaligned BiLD (validation): {quality} at equal latency on average, from {gap.latency_from:.2f} "
        f"to {gap.latency_to:.2f} of vanilla's (above over {gap.share_above:.0%} of that range, below over "
        f"{gap.share_below:.0%}); {speed} as fast at equal quality."
    )
