"""Markdown tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.bench.alignment.criterion import Choice, Difference
from tasks.bench.alignment.summary import BudgetSummary, Spread, Summary, TestResult

_TITLES = {"steps": "Equal steps", "time": "Equal time"}
_STARTS = {"fine_tuned": "fine-tuned", "pretrained": "random"}


@dataclass(frozen=True)
class Column:
    """A column of a table, and its format."""

    name: str
    title: str
    form: str = ".3f"
    scale: float = 1.0


COLUMNS = (
    Column("bild_speedup", "BiLD at kept quality, ×", ".3f"),
    Column("bild_quality_difference", "its quality − vanilla", "+.2f"),
    Column("acceptance_greedy", "greedy agreement"),
    Column("acceptance_rate", "α, T = 1"),
    Column("speculative_speedup", "speculative, ×"),
    Column("drafter_quality", "drafter alone", ".1f"),
    Column("training_seconds", "training, s", ".1f"),
    Column("target_tokens", "target tokens, M", ".2f", 1e-6),
)


def markdown(summary: Summary, tested: Sequence[TestResult]) -> str:
    """Return for each budget the numbers of every recipe and the comparisons of the choice; then the default on test."""
    lines: list[str] = []
    for budget, one in summary.budgets.items():
        lines += [f"**{_TITLES[budget]}**, validation", "", *_recipes(one), "", *_comparisons(one.choice), ""]
    lines.append(f"Default: `{summary.default}`")
    if tested:
        lines += ["", "**Test**", "", *_tested(tested)]
    return "\n".join(lines)


def _recipes(budget: BudgetSummary) -> list[str]:
    """One line for each recipe, that with the highest criterion first."""
    recipes = budget.recipes
    ordered = sorted(recipes, key=lambda name: recipes[name].columns["bild_speedup"].mean, reverse=True)
    lines = _head(["recipe", "family", "start", "steps", "seeds", *(column.title for column in COLUMNS), "thresholds"])
    for name in ordered:
        one = recipes[name]
        cells = [_cell(one.columns[column.name], column) for column in COLUMNS]
        named = [f"`{name}`", one.family, _STARTS[one.start], str(one.steps), str(len(one.seeds))]
        lines.append(_line([*named, *cells, ", ".join(one.thresholds)]))
    return lines


def _comparisons(choice: Choice) -> list[str]:
    """The comparisons that led to a choice, in their order."""
    lines = _head(["recipe", "against", "difference, ×", "beyond seeds"])
    for one in choice.comparisons:
        lines.append(_line([f"`{one.recipe}`", f"`{one.against}`", _difference(one), "yes" if one.is_beyond_seeds else "no"]))
    return [*lines, "", f"Choice: `{choice.recipe}`"]


def _difference(one: Difference) -> str:
    between = "no interval" if one.interval is None else f"{one.interval[0]:+.3f}, {one.interval[1]:+.3f}"
    return f"{one.mean:+.3f} [{between}]"


def _tested(results: Sequence[TestResult]) -> list[str]:
    lines = _head(["recipe", "seeds", "BiLD, ×", "its quality − vanilla", "lower bound"])
    for one in results:
        cells = [_cell(one.speedup, Column("", "")), *(_cell(number, Column("", "", "+.2f")) for number in _qualities(one))]
        lines.append(_line([f"`{one.recipe}`", str(len(one.seeds)), *cells]))
    return lines


def _qualities(one: TestResult) -> tuple[Spread, Spread]:
    return one.quality_difference, one.lower_bound


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---"] * len(titles))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(one: Spread, column: Column) -> str:
    deviation = "" if one.spread is None else f" ± {column.scale * one.spread:{column.form.removeprefix('+')}}"
    return f"{column.scale * one.mean:{column.form}}{deviation}"
