"""Table 1 of Kim et al., NeurIPS 2023, for one task, with their numbers beside it where they are of its data set and metric."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    METRIC_NAMES,
    NOTHING,
    aligned_columns,
    field_text,
    interval_text,
    markdown_table,
    metric_name,
    number_text,
)
from tasks.evaluation.report.headline import vanilla_milliseconds
from tasks.evaluation.report.marks import Mark, mark_of
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.published import PublishedColumn, anything_published, published, table_1_columns
from tasks.evaluation.results.rows import Choice, ModelAlone, TimedPoint
from tasks.evaluation.results.summary import FrontierGap, Summary
from tasks.evaluation.results.tables import PublishedResult, TableEntry, TableRow
from tasks.evaluation.rounds import scatter_text
from tasks.paths import ARMS

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
SPLITS = (REPORTED_ON, CHOSEN_ON)
"""Each has a table of its own."""


def table_rows(summary: Summary) -> list[TableRow]:
    """One row for each of `ROWS`, and for each choice of any other method that is faster than vanilla.

    Where both choices of such a method are one point, it stands once.
    """
    chosen = {(choice.method, choice.arm, choice.choice): (choice, point) for choice, point in summary.chosen_points()}
    models = (summary.vanilla.large, summary.vanilla.small, summary.vanilla.small_aligned)
    columns = table_1_columns(summary.dataset, summary.metric)
    rows = [_row(name, label, model, columns) for (name, label), model in zip(_VANILLA_ROWS.items(), models, strict=True)]
    for name, (label, wanted) in _CHOICE_ROWS.items():
        choice, point = chosen.get(wanted, (None, None))
        rows.append(_row(name, label, point, columns, choice))
    known, seen = {wanted[:2] for _, wanted in _CHOICE_ROWS.values()}, set[int | None]()
    for (method, arm, purpose), (choice, point) in chosen.items():
        if (method, arm) not in known and point.speedup > 1 and choice.point not in seen:
            seen.add(choice.point)
            label = f"{method.replace('_', ' ')}, {arm}, {CHOICE_NAMES[purpose]}"
            rows.append(_row(f"{method}_{arm}_{purpose}", label, point, columns, choice))
    return rows


def _row(
    name: str,
    label: str,
    found: ModelAlone | TimedPoint | None,
    columns: Sequence[PublishedColumn],
    choice: Choice | None = None,
) -> TableRow:
    test = None if found is None else found.test
    return TableRow(
        row=name,
        label=label,
        found=found is not None,
        settings=found.settings if isinstance(found, TimedPoint) else {},
        validation=None if found is None else joined(TableEntry, found),
        test=None if test is None else joined(TableEntry, test),
        large_calls_per_token=None if found is None else (test or found).large_calls_per_token,
        margin=choice.margin if choice else None,
        test_status=choice.test if choice else None,
        published=[
            PublishedResult(dataset=column.dataset, quality=quality, speedup=speedup)
            for column in columns
            for quality, speedup in filter(None, [column.rows.get(name)])
        ],
    )


def as_markdown(summary: Summary) -> str:
    """The table on test, that on validation, and the notes, as Markdown."""
    lines: list[str] = []
    for split in SPLITS:
        lines += [f"## {title(summary, split)}", "", *markdown_table(*table_cells(summary, split)), ""]
    return "\n".join(lines + [f"- {note}" for note in notes(summary)]) + "\n"


def as_text(summary: Summary) -> str:
    """Both tables and their notes for a terminal, columns aligned."""
    found: list[str] = []
    for split in SPLITS:
        headings, cells = table_cells(summary, split)
        lines = aligned_columns([headings, *cells])
        lines.insert(1, "─" * max(map(len, lines)))
        found += [title(summary, split), "", *lines, ""]
    return "\n".join([*found, *notes(summary)]) + "\n"


def title(summary: Summary, split: str) -> str:
    """The title of the table of one split."""
    says = {
        REPORTED_ON: "on test, which played no part in the choice",
        CHOSEN_ON: "on validation, where the choices were made",
    }[split]
    return (
        f"Task {summary.task} {says}: {metric_name(summary.metric)} and speed-up over the vanilla large model [95 % intervals]"
    )


def table_cells(summary: Summary, split: str) -> tuple[list[str], list[list[str]]]:
    """The headings and the body of one of `SPLITS`; what test says of choices and what papers print stand beside test."""
    metric, on_test = metric_name(summary.metric), split == REPORTED_ON
    columns = table_1_columns(summary.dataset, summary.metric) if on_test else []
    headings = ["method", metric, f"{metric} − vanilla", "speed-up", "ms for a text"]
    headings += ["result on test"] if on_test else []
    headings += ["settings", *(f"published {column.dataset}" for column in columns)]
    body = []
    for row in summary.table:
        entry = row.test if on_test else row.validation
        cells = [
            row.label,
            field_text(entry, "quality", 1),
            _difference_cell(entry, summary, split),
            field_text(entry, "speedup"),
        ]
        cells.append(NOTHING if entry is None else f"{entry.latency_ms:.2f}")
        cells += [row_mark(row).words or NOTHING] if on_test else []
        printed = {one.dataset: one for one in row.published}
        cells += [field_text(row, "settings"), *(_published_cell(printed.get(column.dataset)) for column in columns)]
        body.append(cells)
    return headings, body


def row_mark(row: TableRow) -> Mark:
    """What test says of a row's choice; without words for a model alone, and where nothing was chosen."""
    alone = row.margin is None or not row.found
    return Mark(None, "") if alone else mark_of(row.test_status, row.margin)


def _difference_cell(entry: TableEntry | None, summary: Summary, split: str) -> str:
    """Quality minus vanilla large's on the same split, with its paired interval where that was measured."""
    vanilla = summary.vanilla.large.test if split == REPORTED_ON else summary.vanilla.large
    if entry is None or vanilla is None:
        return NOTHING
    return number_text(entry.quality - vanilla.quality, entry.quality_difference_interval, sign="+").replace("-0.00", "+0.00")


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
        "Other methods are listed only if their choice is faster than vanilla there."
    ]
    given = metric_of(summary.metric).name == PERPLEXITY
    points = "one of perplexity, of which less is better: quality is minus it" if given else "0.01 of the metric's scale"
    learned = "to predict as the large model does" if given else "on the large model's outputs"
    found.append(
        f"Vanilla is a model alone. A point is a method with its settings; in a quality, a point is {points}. "
        f"The aligned drafter is the small model trained {learned}. BiLD: Big Little Decoder. A frontier "
        "holds the points that no other beats in both quality and speed; anchors are timed first, for the cost model. "
        "token_v3 and the like: a cascade's rule for which model writes the next token (docs/methods.md)."
    )
    found += _vanilla_times(summary)
    found.append(
        "α_FB: fallback threshold, a probability; α_RB: rollback threshold in nats (natural logarithms of probabilities); "
        "≤: most tokens of a draft; γ: tokens of a draft."
    )
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
    for arm in ARMS:
        if scatter := summary.pairs.of(arm).vanilla_scatter:
            found.append(scatter_text(scatter, arm))
    if summary.signature:
        found.append(f"{METRIC_NAMES[metric_of(summary.metric).name]}: {summary.signature}.")
    found += {f"Warning: {one}." for arm in ARMS if (one := summary.pairs.of(arm).unsupported_script)}
    if summary.chrf_signature:
        found.append(f"chrF: {summary.chrf_signature}.")
    return found + _published_notes(summary)


def _vanilla_times(summary: Summary) -> list[str]:
    """Why the large model has other milliseconds here than in the first line of the verdict."""
    point, large = summary.recommended, summary.vanilla.large.test
    if point is None or point.test is None or large is None:
        return []
    beside = vanilla_milliseconds(point.test)
    return [
        f"Every row is timed beside vanilla large once more, and its speed-up is against that: {beside:.2f} ms beside the "
        f"recommended point, as the verdict says, {large.latency_ms:.2f} ms in vanilla's own row."
    ]


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
