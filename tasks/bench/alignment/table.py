"""Summarises drafters: means over seeds, differences from BiLD's own alignment, and Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tasks.bench.alignment.recipes import RECIPES, SEQUENCE, UNALIGNED
from tasks.bench.alignment.rows import DrafterRow


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


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    spread: float | None
    """Sample standard deviation; None for a single value."""
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """A recipe over its seeds."""

    seeds: list[int]
    columns: dict[str, Spread]
    """By the name of the column; without columns that have no value."""
    start: str = ""
    """The model that training began with; empty for the small model that is not aligned, and so is `source`."""
    source: str = ""
    """The paper."""
    against: str = ""
    """The recipe that this one is compared with: BiLD's own alignment of the same start; empty without a comparison."""
    difference: dict[str, Spread] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return plain values; texts that are empty are left out."""
        texts = {"start": self.start, "source": self.source, "against": self.against}
        compared = {"difference": _plain(self.difference)} if self.against else {}
        return {"seeds": self.seeds, **_plain(self.columns), **{key: text for key, text in texts.items() if text}, **compared}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All recipes, and the best of them by α at temperature 1."""

    recipes: dict[str, RecipeSummary]
    best: str | None
    """None if only the unaligned model was measured."""
    best_over_sequence: dict[str, Spread] | None
    """Difference of the best from BiLD's alignment; None if that was not measured."""

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        over = {} if self.best_over_sequence is None else {"best_over_sequence": _plain(self.best_over_sequence)}
        return {"recipes": {name: recipe.as_json() for name, recipe in self.recipes.items()}, "best": self.best, **over}


def summarize(rows: Sequence[DrafterRow]) -> Summary:
    """Return the summary of the rows; of two rows with the same recipe and seed, the last one counts."""
    by_recipe: dict[str, dict[int, DrafterRow]] = {}
    for row in rows:
        by_recipe.setdefault(row.recipe, {})[row.seed] = row
    recipes = {name: _summarize_recipe(name, seeds, by_recipe) for name, seeds in by_recipe.items()}
    trained = [name for name in recipes if name != UNALIGNED]
    best = max(trained, key=lambda name: _rate(recipes[name]), default=None)
    sequence = by_recipe.get(SEQUENCE["pretrained"])
    over = None if best is None or sequence is None else _differences(by_recipe[best], sequence)
    return Summary(recipes=recipes, best=best, best_over_sequence=over)


def _summarize_recipe(
    name: str, seeds: Mapping[int, DrafterRow], by_recipe: Mapping[str, Mapping[int, DrafterRow]]
) -> RecipeSummary:
    columns = {}
    for column in COLUMNS:
        values = [getattr(seeds[seed], column.name) for seed in sorted(seeds)]
        known = [value for value in values if value is not None]
        if known:
            columns[column.name] = spread(known)
    if name not in RECIPES:
        return RecipeSummary(seeds=sorted(seeds), columns=columns)
    start, reference = RECIPES[name].start, SEQUENCE[RECIPES[name].start]
    compared = name != reference and reference in by_recipe
    return RecipeSummary(
        seeds=sorted(seeds),
        columns=columns,
        start=start,
        source=RECIPES[name].source,
        against=reference if compared else "",
        difference=_differences(seeds, by_recipe[reference]) if compared else {},
    )


def _differences(seeds: Mapping[int, DrafterRow], others: Mapping[int, DrafterRow]) -> dict[str, Spread]:
    """Compare seed by seed, for the seeds that both have: a seed orders the same examples for both."""
    pairs = [(seeds[seed], others[seed]) for seed in sorted(seeds.keys() & others.keys())]
    speeds = [(one.bild_speedup, other.bild_speedup) for one, other in pairs]
    values = {
        "acceptance_rate": [one.acceptance_rate - other.acceptance_rate for one, other in pairs],
        "rejections_fewer": [_fewer(one.acceptance_rate, other.acceptance_rate) for one, other in pairs],
        "acceptance_greedy": [one.acceptance_greedy - other.acceptance_greedy for one, other in pairs],
        "rejections_fewer_greedy": [_fewer(one.acceptance_greedy, other.acceptance_greedy) for one, other in pairs],
        "bild_speedup": [one / other for one, other in speeds if one is not None and other is not None],
    }
    return {name: spread(found) for name, found in values.items() if found}


def _fewer(rate: float, other: float) -> float:
    """Relative reduction of the rejection rate, compared with a drafter of acceptance rate `other`."""
    return 1 - (1 - rate) / (1 - other) if other < 1 else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the standard deviation of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, list(values))


def markdown(summary: Summary) -> str:
    """Return two tables: the numbers of each recipe, and its difference from BiLD's alignment of the same start."""
    recipes = summary.recipes
    ordered = sorted(recipes, key=lambda name: _rate(recipes[name]), reverse=True)
    lines = _head(["recipe", "start", "seeds", *(column.title for column in COLUMNS)])
    for name in ordered:
        one = recipes[name]
        cells = [_cell(one.columns.get(column.name), column) for column in COLUMNS]
        lines.append(_line([f"`{name}`", one.start.replace("_", "-"), str(len(one.seeds)), *cells]))
    compared = [name for name in ordered if recipes[name].difference]
    if compared:
        lines += ["", *_head(["recipe", "against", *(column.title for column in DIFFERENCES)])]
    for name in compared:
        one = recipes[name]
        cells = [_cell(one.difference.get(column.name), column) for column in DIFFERENCES]
        lines.append(_line([f"`{name}`", f"`{one.against}`", *cells]))
    return "\n".join(lines)


def _rate(recipe: RecipeSummary) -> float:
    return recipe.columns["acceptance_rate"].mean


def _plain(spreads: Mapping[str, Spread]) -> dict[str, object]:
    return {name: asdict(one) for name, one in spreads.items()}


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---"] * len(titles))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(one: Spread | None, column: Column) -> str:
    if one is None:
        return "–"
    deviation = "" if one.spread is None else f" ± {column.scale * one.spread:{column.form.removeprefix('+')}}"
    return f"{column.scale * one.mean:{column.form}}{deviation}"
