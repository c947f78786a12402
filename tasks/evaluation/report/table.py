"""Table 1 of Kim et al., NeurIPS 2023, for one task of ours, with what they print beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.report.published import SOURCE, Published, beside

METRIC_NAMES = {
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
ROWS = {
    "vanilla_large": "vanilla large",
    "vanilla_small": "vanilla small",
    "vanilla_small_aligned": "vanilla small, aligned",
    "bild_unaligned_no_loss": "BiLD unaligned, no loss",
    "bild_unaligned_one_point": "BiLD unaligned, ≤ 1 point",
    "bild_aligned_no_loss": "BiLD aligned, no loss",
    "bild_aligned_one_point": "BiLD aligned, ≤ 1 point",
    "speculative_unaligned": "speculative, unaligned",
    "speculative_aligned": "speculative, aligned",
}
_VANILLA_ROWS = {"vanilla_large": "large", "vanilla_small": "small", "vanilla_small_aligned": "small_aligned"}
_CHOICE_ROWS = {
    "bild_unaligned_no_loss": ("bild", "unaligned", "no_loss"),
    "bild_unaligned_one_point": ("bild", "unaligned", "one_point"),
    "bild_aligned_no_loss": ("bild", "aligned", "no_loss"),
    "bild_aligned_one_point": ("bild", "aligned", "one_point"),
    "speculative_unaligned": ("speculative", "unaligned", "no_loss"),
    "speculative_aligned": ("speculative", "aligned", "no_loss"),
}
CHOICE_WORDS = {"no_loss": "no loss", "one_point": "≤ 1 point"}
_SHORT = {"fallback_threshold": "α_FB", "rollback_threshold": "α_RB", "max_draft": "≤", "draft_length": "γ"}
_USUAL = ("drafter", "small")
_SHOWN = ("quality", "quality_interval", "quality_difference_interval", "speedup", "speedup_interval", "latency_ms")
_NOTHING = "–"


def table_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table as plain JSON values, one entry for each of `ROWS`.

    Args:
        summary: from `tasks.evaluation.report.summary.summarize`.

    Returns:
        For each row, and for each choice of any other method, its name and label, `found` (False where nothing was
        measured or chosen), `settings`, `validation` and `test` with quality, speed-up and their intervals,
        `large_calls_per_token` (on test where measured), and `published`, which other people measured on other models, data
        and hardware.
    """
    chosen = {(c["method"], c["drafter"], c["choice"]): c["point"] for c in summary["choices"]}
    columns = beside(summary["metric"])
    rows = []
    for name, label in ROWS.items():
        if name in _VANILLA_ROWS:
            entry = summary["vanilla"][_VANILLA_ROWS[name]]
        else:
            place = chosen.get(_CHOICE_ROWS[name])
            entry = None if place is None else summary["points"][place]
        rows.append({"row": name, "label": label, **_measured(entry), "published": _published(name, columns)})
    return rows + _other_rows(summary)


def _other_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was chosen of methods that the papers' table has no row for, where it is faster than vanilla.

    Where both choices are one point, it stands once.
    """
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for choice in summary["choices"]:
        method, drafter, place = choice["method"], choice["drafter"], choice["point"]
        if place is None or any((method, drafter) == known[:2] for known in _CHOICE_ROWS.values()):
            continue
        point = summary["points"][place]
        if point["speedup"] <= 1:
            continue
        label = f"{method.replace('_', ' ')}, {drafter}, {CHOICE_WORDS[choice['choice']]}"
        name = f"{method}_{drafter}_{choice['choice']}"
        rows.setdefault((method, drafter, place), {"row": name, "label": label, **_measured(point), "published": []})
    return list(rows.values())


def _measured(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    if entry is None:
        return {"found": False, "settings": {}, "validation": None, "test": None, "large_calls_per_token": None}
    test = entry["test"]
    return {
        "found": True,
        "settings": entry.get("settings", {}),
        "validation": {name: entry[name] for name in _SHOWN},
        "test": None if test is None else {name: test[name] for name in _SHOWN},
        "large_calls_per_token": (entry if test is None else test)["large_calls_per_token"],
    }


def _published(name: str, columns: Sequence[Published]) -> list[dict[str, Any]]:
    found = [(column, column.rows[name]) for column in columns if name in column.rows]
    return [
        {"dataset": column.dataset, "metric": column.metric, "quality": quality, "speedup": speedup}
        for column, (quality, speedup) in found
    ]


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in the papers' letters: `α_FB 0.6 α_RB 2 ≤ 10`; switches that are off and the usual drafter are left out."""
    parts = []
    for name, value in settings.items():
        if value is False or (name, value) == _USUAL:
            continue
        words = _SHORT.get(name, name.replace("_", " "))
        number = f"{value:g}" if isinstance(value, int | float) else str(value).replace("inf", "∞")
        parts.append(words if value is True else f"{words} {number}")
    return " ".join(parts)


def as_markdown(summary: Mapping[str, Any]) -> str:
    """The table and its notes as Markdown."""
    headings, cells = _cells(summary)
    heading = _line([" ".join(words).strip() for words in headings])
    lines = [f"# {_title(summary)}", "", heading, _line(["---"] * len(headings)), *map(_line, cells), ""]
    return "\n".join(lines + [f"- {note}" for note in notes(summary)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_text(summary: Mapping[str, Any]) -> str:
    """The table and its notes for a terminal, columns aligned."""
    headings, cells = _cells(summary)
    lines = [[upper for upper, _ in headings], [lower for _, lower in headings], *cells]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    texts.insert(2, "─" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join([_title(summary), "", *texts, "", *notes(summary)]) + "\n"


def _title(summary: Mapping[str, Any]) -> str:
    metric = METRIC_NAMES[summary["metric"]]
    return f"Task {summary['task']}: {metric} and speed-up over the vanilla large model [95 % intervals]"


def _cells(summary: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """The headings in two lines, and the body; a column of differences from vanilla only where they were measured."""
    rows, metric = table_rows(summary), METRIC_NAMES[summary["metric"]]
    columns = beside(summary["metric"])
    paired = any(row["test"] and row["test"]["quality_difference_interval"] for row in rows)
    headings = [("", "method"), ("valid.", metric), ("valid.", "speed-up"), ("test", metric), ("test", "speed-up")]
    headings += [("test", f"{metric} − vanilla")] if paired else []
    headings += [("large", "calls/token"), ("", "settings"), *(("published", column.dataset) for column in columns)]
    vanilla = rows[0]["test"]
    body = []
    for row in rows:
        chosen, test = row["validation"] or {}, row["test"] or {}
        cells = [row["label"], _number(chosen.get("quality")), _number(chosen.get("speedup"), "×")]
        cells.append(_number(test.get("quality")) + _interval(test.get("quality_interval"), 1))
        cells.append(_number(test.get("speedup"), "×") + _interval(test.get("speedup_interval"), 2))
        if paired:
            cells.append(_difference(test, vanilla))
        cells += [_number(row["large_calls_per_token"]), settings_text(row["settings"]) or _NOTHING]
        body.append(cells + [_beside(row["published"], column) for column in columns])
    return headings, body


def _number(value: float | None, unit: str = "") -> str:
    return _NOTHING if value is None else f"{value:.2f}{unit}"


def _interval(interval: Sequence[float] | None, digits: int) -> str:
    return f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval else ""


def _difference(test: Mapping[str, Any], vanilla: Mapping[str, Any] | None) -> str:
    interval = test.get("quality_difference_interval")
    if not interval or vanilla is None:
        return _NOTHING
    return f"{test['quality'] - vanilla['quality']:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"


def _beside(published: Sequence[Mapping[str, Any]], column: Published) -> str:
    for entry in published:
        if entry["dataset"] == column.dataset:
            return _number(entry["quality"]) + (f" · {entry['speedup']:.2f}×" if entry["speedup"] else "")
    return _NOTHING


def notes(summary: Mapping[str, Any]) -> list[str]:
    """What has to be said under the table, a sentence or two each."""
    chosen = (
        f"No loss: the fastest setting with validation quality ≥ vanilla − {TOLERANCES['no_loss']:g}; ≤ 1 point: "
        f"≥ vanilla − {TOLERANCES['one_point']:g}; speculative: no loss. Chosen on validation, reported on test. Other methods "
        "stand here where their choice is faster than vanilla there."
    )
    found = [chosen]
    for row in table_rows(summary):
        best = row["test"] or row["validation"]
        if not row["found"]:
            found.append(f"{row['label']}: {'not measured' if row['row'] in _VANILLA_ROWS else 'no such setting was found'}.")
        elif row["row"] in _CHOICE_ROWS and best["speedup"] < 1:
            found.append(f"{row['label']}: slower than vanilla, and yet the fastest that keeps the quality.")
    found.append(_frontier_note(summary["frontier"]["gap"]))
    if summary["failed"]:
        count = len(summary["failed"])
        found.append(f"{count} point{'s' if count > 1 else ''} failed; see `failed` in summary.json.")
    if summary["metric"] == "bleu" and summary["signature"]:
        found.append(f"BLEU: {summary['signature']}.")
    found.append(f"Published: {SOURCE}.")
    columns = beside(summary["metric"])
    return found + [f"Published {column.dataset}: {column.remark}." for column in columns if column.remark]


def _frontier_note(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return "Aligned against unaligned: no latency up to vanilla's at which both were measured."
    quality = f"{gap['mean_quality_difference']:+.2f}{_interval(gap['quality_interval'], 2)} points"
    speed = f"{gap['mean_speedup_ratio']:.2f}{_interval(gap['speedup_interval'], 2)} times"
    return (
        f"Aligned against unaligned BiLD (validation): {quality} at equal latency on average, from {gap['latency_from']:.2f} "
        f"to {gap['latency_to']:.2f} of vanilla's (above over {gap['share_above']:.0%} of that range, below over "
        f"{gap['share_below']:.0%}); {speed} as fast at equal quality."
    )
