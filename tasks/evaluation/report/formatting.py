"""Names, numbers, settings and points as the report writes them."""

from __future__ import annotations

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.points import Measurements, OperatingPoint, PointHeader, TestMeasurements
from tasks.evaluation.statistics import Interval

METRIC_NAMES = {
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
CHOICE_NAMES = {"no_loss": "no loss", "one_point": "≤ 1 point"}
NOTHING = "–"
_METHOD_NAMES = {"bild": "BiLD", "calm": "CALM"}
_SYMBOLS = {"fallback_threshold": "α_FB", "rollback_threshold": "α_RB", "max_draft": "≤", "draft_length": "γ"}
_DEFAULT_DRAFTER = ("drafter", "small")


def method_name(method: str) -> str:
    """A method's name: `bild` is BiLD, `speculative_lossy` is speculative lossy."""
    return _METHOD_NAMES.get(method, method.replace("_", " "))


def settings_text(settings: Settings) -> str:
    """Settings by the papers' symbols: `α_FB 0.6 α_RB 2 ≤ 10`, without disabled switches and the default drafter."""
    parts = []
    for name, value in settings.items():
        if value is False or (name, value) == _DEFAULT_DRAFTER:
            continue
        symbol = _SYMBOLS.get(name, name.replace("_", " "))
        number = f"{value:g}" if isinstance(value, int | float) else str(value).replace("inf", "∞")
        parts.append(symbol if value is True else f"{symbol} {number}")
    return " ".join(parts)


def number_text(
    value: float | None,
    interval: Interval | None = None,
    *,
    digits: int = 2,
    unit: str = "",
    sign: str = "",
    interval_digits: int | None = None,
) -> str:
    """A number with its 95 % interval: `1.62× [1.58, 1.66]`; a dash where there is no value.

    Args:
        value: the number.
        interval: its interval, where it has one.
        digits: decimals.
        unit: follows the number.
        sign: `+` to show the sign of positive numbers as well.
        interval_digits: decimals of the interval, where they differ.
    """
    return (
        NOTHING
        if value is None
        else f"{value:{sign}.{digits}f}{unit}{interval_text(interval, sign, interval_digits or digits)}"
    )


def interval_text(interval: Interval | None, sign: str = "", digits: int = 2) -> str:
    """` [1.80, 1.97]`, with a space before it; empty without an interval."""
    return f" [{interval[0]:{sign}.{digits}f}, {interval[1]:{sign}.{digits}f}]" if interval else ""


def point_text(point: PointHeader) -> str:
    """A point in a sentence: `BiLD with the aligned drafter (α_FB 0.6 α_RB 2 ≤ 10)`."""
    settings = settings_text(point.settings)
    return f"{method_name(point.method)} with the {point.drafter} drafter" + (f" ({settings})" if settings else "")


def speed_text(measured: Measurements) -> str:
    """`1.89× [1.80, 1.97]`."""
    return number_text(measured.speedup, measured.speedup_interval, unit="×")


def difference_text(measured: OperatingPoint | TestMeasurements) -> str:
    """`-0.78 points [-1.49, -0.26]` from vanilla; `no difference measured` where vanilla was not measured on that split."""
    if measured.quality_difference is None:
        return "no difference measured"
    difference = f"{measured.quality_difference:+.2f}".replace("-0.00", "+0.00")
    return f"{difference} points" + interval_text(measured.quality_difference_interval, "+")


def quality_text(measured: OperatingPoint | TestMeasurements, metric: str) -> str:
    """`BLEU 93.90 (+0.04 points [-0.30, +0.40] from vanilla)`."""
    return f"{METRIC_NAMES[metric]} {measured.quality:.2f} ({difference_text(measured)} from vanilla)"


def markdown_table(headings: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def aligned_columns(rows: list[list[str]]) -> list[str]:
    """Rows of equally many cells as lines of text, columns aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
