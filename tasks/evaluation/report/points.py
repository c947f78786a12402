"""The points of a sweep as the summary holds them: one entry a row that did not fail, timed or not.

A row without a speed-up was not timed: its quality and counts are exact, its latency is a prediction. It is a point that is
shown as such, never one that is chosen, and never on a frontier.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import InputError
from tasks.evaluation.acceptance import acceptance_by_position, accepted_lengths
from tasks.evaluation.frontier import BASELINES, CHOSEN_ON, REPORTED_ON, TOLERANCES, VANILLA, choose_rows, point_of
from tasks.evaluation.measurements import Row, measurements
from tasks.evaluation.operations import Sizes, relative_operations
from tasks.paths import DRAFTERS

Entry = dict[str, Any]
"""One point of the summary."""


@dataclass(frozen=True)
class SweepPoints:
    """What one drafter's sweep gave, failed rows aside."""

    entries: list[Entry]
    """Of the validation split, baselines left out, in the order of the rows."""
    rows: list[Row]
    """What each of them was made of."""
    chosen: dict[tuple[str, str], int | None]
    """By method and choice: an index into `entries`, or None where no timed setting keeps the quality."""


def sweep_points(task: str, drafter: str, rows: Sequence[Row], pair: Mapping[str, Any] | None) -> SweepPoints:
    """The points of one sweep and the choices among them.

    Args:
        task: its name, for errors.
        drafter: one of `DRAFTERS`.
        rows: both splits, each point once (`latest`).
        pair: what the sweep found out about its two models, where it wrote that down.

    Raises:
        InputError: there is no timed vanilla large row on the validation split.
    """
    validation = [row for row in rows if row["split"] == CHOSEN_ON]
    vanilla = {row["split"]: row for row in rows if row["method"] == VANILLA and point_of(row)}
    if CHOSEN_ON not in vanilla:
        raise InputError(
            f"the {drafter} sweep of task {task} has no measured {VANILLA} row on the {CHOSEN_ON} split; "
            f"make it by: {sweep_command(task, drafter)}"
        )
    tests = {point_key({**row, "split": CHOSEN_ON}): row for row in rows if row["split"] == REPORTED_ON and point_of(row)}
    choices = choose_rows(validation)
    entries: list[Entry] = []
    places: dict[int, int] = {}
    for place, row in enumerate(validation):
        if row["method"] in BASELINES or has_failed(row):
            continue
        places[place] = len(entries)
        names = [name for name in TOLERANCES if choices.get((row["method"], name)) == place]
        entries.append(_entry(row, tests.get(point_key(row)), names, vanilla, pair))
    sources = [validation[place] for place in places]
    return SweepPoints(entries, sources, {key: None if place is None else places[place] for key, place in choices.items()})


def _entry(
    row: Row, test: Row | None, names: Sequence[str], vanilla: Mapping[str, Row], pair: Mapping[str, Any] | None
) -> Entry:
    return {
        "method": row["method"],
        "drafter": row["drafter"],
        "settings": row["settings"],
        "sampling": row.get("sampling"),
        "lossless": row["lossless"],
        "timed": point_of(row) is not None,
        "how": row.get("how"),
        "why": row.get("why"),
        "same_as": row.get("same_as"),
        **_against(row, vanilla),
        **_drafts(row["counts"]),
        "operations": _operations(row, (pair or {}).get("sizes") or {}),
        # The stricter choice names a point that is both; `choices` lists each choice by itself.
        "chosen": names[0] if names else None,
        "test": _against(test, vanilla) if test else None,
    }


def _drafts(counts: Mapping[str, Any]) -> Entry:
    """What became of the drafts, where the row noted it."""
    noted = "kept" in counts
    return {
        "accepted_lengths": accepted_lengths(counts) if noted else None,
        "acceptance_by_position": acceptance_by_position(counts) if noted else None,
    }


def _operations(row: Row, sizes: Mapping[str, Any]) -> Entry | None:
    """Theory: relative to vanilla large, from the row's counts; None where sizes or counts do not tell.

    Args:
        row: not failed.
        sizes: `small` and `large` (`operations.Sizes`), `source_tokens` (mean), `shares_encoder`.
    """
    small, large, source_tokens = _sizes(sizes.get("small")), _sizes(sizes.get("large")), sizes.get("source_tokens")
    counts = row["counts"]
    if large is None or source_tokens is None or not row.get("examples") or not {"layers", "verified"} <= counts.keys():
        return None
    if row["settings"].get("drafter", "small") != "small":
        small = None
    shared = bool(sizes.get("shares_encoder"))
    found = relative_operations(counts, row["examples"], source_tokens, small, large, shares_encoder=shared)
    return None if found is None else dataclasses.asdict(found)


def _sizes(found: Mapping[str, Any] | None) -> Sizes | None:
    names = {field.name for field in dataclasses.fields(Sizes)}
    return Sizes(**{name: found[name] for name in names}) if found and names <= found.keys() else None


def _against(row: Row, vanilla: Mapping[str, Row]) -> Entry:
    """Measurements, with the difference of quality from the vanilla large model of the same sweep and split."""
    found, base = measurements(row), vanilla.get(row["split"])
    return {**found, "quality_difference": None if base is None else found["quality"] - base["quality"][base["metric"]]}


def models_alone(sweeps: Mapping[str, Sequence[Row]]) -> dict[str, Entry | None]:
    """The models alone: large and small as the unaligned sweep saw them, and the aligned drafter."""
    entries = (
        ("large", VANILLA, "unaligned"),
        ("small", "vanilla_small", "unaligned"),
        ("small_aligned", "vanilla_small", "aligned"),
    )
    found: dict[str, Entry | None] = {}
    for name, method, drafter in entries:
        splits = {row["split"]: measurements(row) for row in sweeps[drafter] if row["method"] == method and point_of(row)}
        found[name] = {**splits[CHOSEN_ON], "test": splits.get(REPORTED_ON)} if CHOSEN_ON in splits else None
    return found


def failures(sweeps: Mapping[str, Sequence[Row]]) -> list[Entry]:
    """The rows that hold an error, or numbers that are none."""
    return [
        {
            "method": row["method"],
            "drafter": drafter,
            "split": row["split"],
            "settings": row["settings"],
            "error": row.get("error", "no finite quality and speed-up"),
        }
        for drafter in DRAFTERS
        for row in sweeps[drafter]
        if has_failed(row)
    ]


def has_failed(row: Row) -> bool:
    """Whether a row holds an error, no finite quality, or a speed-up that is none; not being timed is no failure."""
    if "error" in row or "speedup" in row:
        return point_of(row) is None
    value = row["quality"].get(row["metric"])
    return value is None or not math.isfinite(value)


def point_key(row: Row) -> str:
    """Names the point of a row: its split, method, settings and way of sampling."""
    return json.dumps([row["split"], row["method"], row.get("settings"), row.get("sampling")], sort_keys=True)


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row a point, the last written: a point that failed and was run again counts as it ended."""
    return list({point_key(row): row for row in rows}.values())


def sweep_command(task: str, drafter: str) -> str:
    """What a user types to make the rows of a sweep."""
    return f"python -m tasks.sweep --task {task} --drafter {drafter}"
