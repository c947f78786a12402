"""What the sections of the page say, as plain texts and cells: the template sets them, and escapes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, TOLERANCES
from tasks.evaluation.report.figures.lookup import Point, Sweeps, best_chosen_point, reported_row, rows_of
from tasks.evaluation.report.figures.theme import DRAFTERS, with_interval
from tasks.evaluation.report.published import beside
from tasks.evaluation.report.table import CHOICE_WORDS, METRIC_NAMES, settings_text, table_rows
from tasks.evaluation.report.tables import method_name

_NOTHING = "–"
_LINEAGE = {
    "host_cpu": "processor",
    "host_cores": "cores",
    "host_gpu": "GPU",
    "git_commit": "commit",
    "git_dirty": "uncommitted changes",
    "python": "Python",
    "torch": "PyTorch",
    "transformers": "Transformers",
}
PROPOSERS = {"s": "small", "l": "large", "c": "corrected"}


@dataclass(frozen=True)
class Cell:
    """A text of a table, with the number that it is sorted by."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Card:
    """One number at the top, and what it is."""

    number: str
    words: str


def cards(summary: Mapping[str, Any]) -> list[Card]:
    """The recommended point in numbers, on test where it was measured there; none where vanilla stays."""
    place = summary["verdict"]["point"]
    if place is None:
        return []
    point = summary["points"][place]
    split, found = (REPORTED_ON, point["test"]) if point["test"] else (CHOSEN_ON, point)
    metric = METRIC_NAMES[summary["metric"]]
    difference = with_interval(found["quality_difference"], found["quality_difference_interval"], sign="+")
    return [
        Card(with_interval(found["speedup"], found["speedup_interval"], unit="×"), f"as fast as vanilla large ({split})"),
        Card(difference, f"{metric} against vanilla large ({split})"),
        Card(f"{found['latency_ms']:.2f} ms" if found["latency_ms"] else _NOTHING, "an example, batch 1, encoders included"),
        Card(with_interval(found["large_calls_per_token"], None), "runs of the large model for each token (vanilla: 1)"),
    ]


def settings_lines(point: Point) -> list[str]:
    """What to write into a configuration: one line a setting."""
    lines = [f"method: {point['method']}", f"# the {point['drafter']} small model drafts"]
    return lines + [f"{name}: {_plain(value)}" for name, value in point["settings"].items()]


def _plain(value: Any) -> str:
    return {"inf": ".inf", "True": "true", "False": "false"}.get(str(value), str(value))


def first_table(summary: Mapping[str, Any]) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Table 1: our headings, the published columns' headings, and rows of `label`, `own` and `published` cells."""
    metric, columns = METRIC_NAMES[summary["metric"]], beside(summary["metric"])
    own = ["settings", "validation", f"test {metric}", f"test {metric} − vanilla", "test speed-up"]
    rows = []
    for row in table_rows(summary):
        chosen, test = row["validation"] or {}, row["test"] or {}
        vanilla = (summary["vanilla"]["large"]["test"] or {}).get("quality")
        difference = None if vanilla is None or "quality" not in test else test["quality"] - vanilla
        paired = test.get("quality_difference_interval")
        cells = [
            # A number stays in the line of its letter.
            re.sub(r" (?=[\d∞])", "\u00a0", settings_text(row["settings"])) or _NOTHING,
            f"{chosen['quality']:.2f} · {chosen['speedup']:.2f}×" if chosen else _NOTHING,
            with_interval(test.get("quality"), test.get("quality_interval")),
            with_interval(difference, paired, sign="+") if paired else _NOTHING,
            with_interval(test.get("speedup"), test.get("speedup_interval"), unit="×"),
        ]
        printed = {entry["dataset"]: _published(entry) for entry in row["published"]}
        beside_it = [printed.get(column.dataset, _NOTHING) for column in columns]
        rows.append({"label": row["label"], "found": row["found"], "own": cells, "published": beside_it})
    return own, [f"{column.dataset}, {column.metric}" for column in columns], rows


def _published(entry: Mapping[str, Any]) -> str:
    return f"{entry['quality']:.2f}" + (f" · {entry['speedup']:.2f}×" if entry["speedup"] else "")


def protocol(summary: Mapping[str, Any]) -> list[str]:
    """How it was measured, a few sentences."""
    large, points = summary["vanilla"]["large"], summary["points"]
    clock = [point["timed_examples"] for point in points if point["timed"]]
    timed = f"{min(clock)}" if clock and min(clock) == max(clock) else f"{min(clock)} to {max(clock)}" if clock else "no"
    return [
        f"Quality is measured on the whole split ({large['examples'] or 'all'} examples on validation).",
        f"Latency is measured at batch 1, end to end, encoders included, on a fixed random subset ({timed} examples). Each "
        "example is timed with the method and with the vanilla large model one right after the other: a speed-up is the sum of "
        "vanilla's times over the sum of the method's, a ratio of neighbours. A slow moment slows both sides.",
        "Settings are chosen on the validation split and reported on the test split, which takes no part in the choice. No "
        f"loss: at most {TOLERANCES['no_loss']:g} point under vanilla; ≤ 1 point: at most {TOLERANCES['one_point']:g}.",
        "Intervals are 95 % bootstrap intervals over examples, paired where a method is set against vanilla; that of the gap "
        "between two frontiers is a normal one, and cautious. They do not cover what else differs from run to run: the seed of "
        "a training, or a shared machine, on which two timings of one point can lie further apart.",
        "Measured, predicted and theory are separate columns. A point that was only predicted is never chosen.",
    ]


def grounds(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each sweep that left a note about its models: what was planned, how well foretold, and where it ran."""
    found = []
    for drafter in DRAFTERS:
        pair = summary["pairs"].get(drafter)
        if pair:
            entries = [*_plan(pair.get("plan") or {}), *_acceptance(pair.get("acceptance") or {})]
            entries += [*_costs(pair.get("costs") or {}), ("runtime", pair.get("runtime") or _NOTHING)]
            lineage = pair.get("lineage") or {}
            entries += [(words, str(lineage[name])) for name, words in _LINEAGE.items() if lineage.get(name)]
            found.append({"drafter": drafter, "entries": entries})
    return found


def _plan(plan: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if "points" in plan:
        yield "points of the grid", f"{plan['points']}, of which {plan.get('distinct', plan['points'])} behave differently"
        yield "without decoding", f"{plan.get('replayed', 0)} replayed from noted readings, token for token"
        yield "timed on the clock", f"{plan.get('timed', 0)}"
    for name, words in (("sample", "error of the prediction, random sample"), ("all", "error of the prediction, all timed")):
        error = (plan.get("prediction_error") or {}).get(name)
        if error and error["points"]:
            yield words, f"{error['mean']:.1%} on average, {error['worst']:.1%} at worst, {error['points']} points"
    if "replay_seconds" in plan:
        yield "took", f"{plan['replay_seconds']:.0f} s to replay, {plan.get('timing_seconds', 0):.0f} s to time"


def _acceptance(acceptance: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, words in (("greedy", "acceptance rate α, greedy"), ("sampled", "acceptance rate α, sampled")):
        found = acceptance.get(name)
        if found:
            at = f", T = {found['temperature']:g}" if "temperature" in found else ""
            yield words, f"{with_interval(found['rate'], found['interval'], 3)}{at}, {found['tokens']} tokens"


def _costs(costs: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if costs.get("small_step_ms") is not None:
        yield "a small step", f"{costs['small_step_ms']:.3f} ms"
    if costs.get("verify_ms"):
        runs = ", ".join(f"{positions}: {value:.3f} ms" for positions, value in list(costs["verify_ms"].items())[:6])
        yield "a large run, by positions", runs
    if costs.get("cost_ratio") is not None:
        yield "c, small step over large step", f"{costs['cost_ratio']:.3f}"


def examples(summary: Mapping[str, Any], sweeps: Sweeps) -> list[dict[str, Any]]:
    """Outputs of the recommended point and of each drafter's best, in pieces by who proposed them."""
    place = summary["verdict"]["point"]
    wanted = [] if place is None else [(summary["points"][place], "recommended")]
    best = [found for drafter in DRAFTERS if (found := best_chosen_point(summary, drafter))]
    wanted += [(point, CHOICE_WORDS[choice]) for choice, point in best if not any(point is one for one, _ in wanted)]
    groups: list[dict[str, Any]] = []
    for point, words in wanted:
        row = reported_row(point, sweeps) or {}
        known = [one["shown"] for one in (row, *rows_of(point, sweeps).values()) if one.get("shown")]
        shown: Sequence[Mapping[str, Any]] = known[0] if known else ()
        if shown:
            title = f"{method_name(point['method'])}, {point['drafter']} ({words}): {settings_text(point['settings'])}"
            items = [{**one, "pieces": [(text, PROPOSERS[who]) for text, who in one["pieces"]]} for one in shown]
            groups.append({"title": title, "items": items})
    return groups


POINT_HEADINGS = (
    "method",
    "drafter",
    "settings",
    "quality",
    "− vanilla",
    "speed-up, measured",
    "speed-up, predicted",
    "ms, median",
    "ms, 95 %",
    "large calls / token",
    "accepted",
    "chosen as",
    "timed because",
)


def point_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All points of the validation split: the recommended, what was chosen, then by speed; what was not timed comes last."""
    entries = list(enumerate(summary["points"]))
    best = summary["verdict"]["point"]
    entries.sort(key=lambda entry: (entry[0] != best, not entry[1]["chosen"], -(entry[1]["speedup"] or 0.0)))
    return [{"timed": point["timed"], "best": place == best, "cells": _point_cells(point)} for place, point in entries]


def _point_cells(point: Point) -> Sequence[Cell]:
    predicted = (point.get("predicted") or {}).get("speedup")
    same = f" = {settings_text(point['same_as'])}" if point.get("same_as") is not None else ""
    difference = with_interval(point["quality_difference"], point["quality_difference_interval"], sign="+")
    return (
        Cell(method_name(point["method"])),
        Cell(point["drafter"]),
        Cell((settings_text(point["settings"]) or _NOTHING) + same),
        Cell(with_interval(point["quality"], point["quality_interval"]), point["quality"]),
        Cell(difference, point["quality_difference"]),
        Cell(with_interval(point["speedup"], point["speedup_interval"], unit="×"), point["speedup"]),
        _number(predicted, "×"),
        _number(point["latency_ms_p50"]),
        _number(point["latency_ms_p95"]),
        _number(point["large_calls_per_token"]),
        _number(point["accepted_share"]),
        Cell(CHOICE_WORDS.get(point["chosen"] or "", "")),
        Cell(point.get("why") or ("" if point["timed"] else "not timed")),
    )


def _number(value: float | None, unit: str = "") -> Cell:
    return Cell(with_interval(value, None, unit=unit), value)
