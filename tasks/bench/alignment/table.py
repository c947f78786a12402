"""Drafters as means over seeds, as differences from BiLD's own alignment, and as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.bench.alignment.recipes import RECIPES, SEQUENCE, UNALIGNED
from tasks.bench.alignment.rows import Row
from tasks.bench.timing import Found


@dataclass(frozen=True)
class Column:
    """A column of the table, and its format."""

    name: str
    title: str
    form: str = ".3f"
    scale: float = 1.0


COLUMNS = (
    Column("acceptance_rate", "α, T = 1"),
    Column("acceptance_greedy", "α, greedy"),
    Column("accepted_length", "accepted length", ".2f"),
    Column("fallback_rate", "fallbacks, %", ".1f", 100),
    Column("rollback_rate", "rollbacks, %", ".1f", 100),
    Column("bild_speedup", "BiLD, no loss, ×", ".2f"),
    Column("bild_quality_difference", "its quality − vanilla", "+.2f"),
    Column("speculative_speedup", "speculative, ×", ".2f"),
    Column("training_seconds", "training, s", ".0f"),
    Column("steps", "steps", ".0f"),
    Column("steps_per_second", "steps/s", ".1f"),
    Column("target_tokens", "target tokens, M", ".2f", 1e-6),
)
DIFFERENCES = (
    Column("acceptance_rate", "α, T = 1, difference", "+.3f"),
    Column("rejections_fewer", "fewer rejections, T = 1, %", "+.1f", 100),
    Column("acceptance_greedy", "α, greedy, difference", "+.3f"),
    Column("rejections_fewer_greedy", "fewer rejections, greedy, %", "+.1f", 100),
    Column("bild_speedup", "BiLD, no loss, ratio", ".3f"),
)

Spread = Found
"""`mean`, `spread` (sample standard deviation; none for a single value) and `values`."""


def summary(rows: Sequence[Row]) -> Found:
    """Recipes by name, the best of them by α at temperature 1, and its difference from BiLD's alignment."""
    by_recipe: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_recipe.setdefault(row["recipe"], {})[row["seed"]] = row
    recipes = {name: _recipe(name, seeds, by_recipe) for name, seeds in by_recipe.items()}
    trained = [name for name in recipes if name != UNALIGNED]
    best = max(trained, key=lambda name: recipes[name]["acceptance_rate"]["mean"], default=None)
    found: Found = {"recipes": recipes, "best": best}
    if best is not None and SEQUENCE["pretrained"] in by_recipe:
        found["best_over_sequence"] = _differences(by_recipe[best], by_recipe[SEQUENCE["pretrained"]])
    return found


def _recipe(name: str, seeds: Mapping[int, Row], by_recipe: Mapping[str, Mapping[int, Row]]) -> Found:
    found: Found = {"seeds": sorted(seeds)}
    for column in COLUMNS:
        values = [seeds[seed][column.name] for seed in sorted(seeds) if seeds[seed].get(column.name) is not None]
        if values:
            found[column.name] = spread(values)
    if name in RECIPES:
        found["start"], found["source"] = RECIPES[name].start, RECIPES[name].source
        reference = SEQUENCE[found["start"]]
        if name != reference and reference in by_recipe:
            found["against"], found["difference"] = reference, _differences(seeds, by_recipe[reference])
    return found


def _differences(seeds: Mapping[int, Row], others: Mapping[int, Row]) -> dict[str, Spread]:
    """Seed by seed, as both have it: the seed orders the same examples for both."""
    pairs = [(seeds[seed], others[seed]) for seed in sorted(seeds.keys() & others.keys())]
    if not pairs:
        return {}
    speeds = [(one["bild_speedup"], other["bild_speedup"]) for one, other in pairs]
    values = {
        "acceptance_rate": [one["acceptance_rate"] - other["acceptance_rate"] for one, other in pairs],
        "rejections_fewer": [_fewer(one["acceptance_rate"], other["acceptance_rate"]) for one, other in pairs],
        "acceptance_greedy": [one["acceptance_greedy"] - other["acceptance_greedy"] for one, other in pairs],
        "rejections_fewer_greedy": [_fewer(one["acceptance_greedy"], other["acceptance_greedy"]) for one, other in pairs],
        "bild_speedup": [one / other for one, other in speeds if one is not None and other is not None],
    }
    return {name: spread(found) for name, found in values.items() if found}


def _fewer(rate: float, other: float) -> float:
    """Relative reduction of the rejection rate, compared with a drafter of acceptance rate `other`."""
    return 1 - (1 - rate) / (1 - other) if other < 1 else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of some values."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "spread": deviation, "values": list(values)}


def markdown(found: Found) -> str:
    """Two tables: what each recipe gives, and how it differs from BiLD's alignment of the same start."""
    recipes = found["recipes"]
    ordered = sorted(recipes, key=lambda name: recipes[name]["acceptance_rate"]["mean"], reverse=True)
    lines = _head(["recipe", "start", "seeds", *(column.title for column in COLUMNS)])
    for name in ordered:
        one = recipes[name]
        cells = [_cell(one.get(column.name), column) for column in COLUMNS]
        lines.append(_line([f"`{name}`", one.get("start", "").replace("_", "-"), str(len(one["seeds"])), *cells]))
    compared = [name for name in ordered if recipes[name].get("difference")]
    if compared:
        lines += ["", *_head(["recipe", "against", *(column.title for column in DIFFERENCES)])]
    for name in compared:
        one = recipes[name]
        cells = [_cell(one["difference"].get(column.name), column) for column in DIFFERENCES]
        lines.append(_line([f"`{name}`", f"`{one['against']}`", *cells]))
    return "\n".join(lines)


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---"] * len(titles))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(one: Spread | None, column: Column) -> str:
    if one is None:
        return "–"
    beside = "" if one["spread"] is None else f" ± {column.scale * one['spread']:{column.form.removeprefix('+')}}"
    return f"{column.scale * one['mean']:{column.form}}{beside}"
