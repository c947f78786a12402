"""Names, numbers, settings, points and what test says of a choice, as the report and the commands write them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import Measurements, PointHeader, TestStatus
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.statistics import Interval, Status

METRIC_NAMES = {
    "bleu": "BLEU",
    **{f"rouge{kind}": f"ROUGE-{kind}" for kind in ("1", "2", "L", "Lsum")},
    "exact_match": "exact match",
    "token_f1": "F1",
    "numeric_answer": "numeric answer",
    "pass_at_1": "pass@1",
    PERPLEXITY: "−perplexity",  # the quality of a row: more is better
}
CHOICE_NAMES = {"no_loss": "no loss", "one_point": "≤ 1 point"}
NOTHING = "–"
_METHOD_NAMES = {"bild": "BiLD", "calm": "CALM"}
_SYMBOLS = {"fallback_threshold": "α_FB", "rollback_threshold": "α_RB", "max_draft": "≤", "draft_length": "γ"}
_FORMATS = {
    ("level", "p_value"): "{:.2g}",
    ("temperature", "top_p", "lenience", "refused_threshold"): "{:g}",
    ("_share", "mean", "worst"): "{:.2%}",
    ("speedup", "speedup_checked", "expected_operations"): "{:.2f}×",
    ("quality_difference", "quality_gain"): "{:+.2f}",
    ("small_step_ms",): "{:.3f}",
    ("",): "{:.2f}",
}
"""Of a field by the end of its name, the first that fits."""
_DEFAULTS = {("drafter", "small")}
"""Settings that are left out of a text."""


@functools.cache
def packaged(name: str) -> dict[str, Any]:
    """The content of a YAML file of this package."""
    found: dict[str, Any] = yaml.safe_load(resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))
    return found


def points_text(value: float) -> str:
    """`0.5 points`, `1 point`."""
    return f"{value:g} point{'' if value == 1 else 's'}"


def metric_name(metric: str) -> str:
    """A metric by its full name, with a tokenizer of its own: `ROUGE-L`, `BLEU (zh)`."""
    settings = metric_of(metric)
    return METRIC_NAMES[settings.name] + (f" ({settings.tokenizer})" if settings.tokenizer else "")


def method_name(method: str) -> str:
    """A method's name: `bild` is BiLD, `speculative_lossy` is speculative lossy."""
    return _METHOD_NAMES.get(method, method.replace("_", " "))


def settings_text(settings: Settings) -> str:
    """Settings by the papers' symbols: `α_FB 0.6 α_RB 2 ≤ 10`, without disabled switches and default drafter and distance."""
    parts = []
    for name, value in settings.items():
        if value is False or (name, value) in _DEFAULTS:
            continue
        symbol = _SYMBOLS.get(name, name.replace("_", " "))
        number = f"{value:g}" if isinstance(value, int | float) else str(value).replace("inf", "∞")
        parts.append(symbol if value is True else f"{symbol} {number}")
    return " ".join(parts)


def number_text(
    value: float | None, interval: Interval | None = None, *, digits: int = 2, unit: str = "", sign: str = ""
) -> str:
    """A number with its 95 % interval: `1.62× [1.58, 1.66]`; a dash where there is no value.

    Args:
        value: the number.
        interval: its interval, where it has one.
        digits: decimals of all of them.
        unit: follows the number.
        sign: `+` to show the sign of positive numbers as well.
    """
    return NOTHING if value is None else f"{value:{sign}.{digits}f}{unit}{interval_text(interval, sign, digits)}"


def interval_text(interval: Interval | None, sign: str = "", digits: int = 2) -> str:
    """` [1.80, 1.97]`, with a space before it; empty without an interval."""
    return f" [{interval[0]:{sign}.{digits}f}, {interval[1]:{sign}.{digits}f}]" if interval else ""


def breakable(text: str) -> str:
    """A cell whose line may break before an interval, but not within it."""
    return re.sub(r"\[[^]]*\]", lambda found: found[0].replace(" ", "\u00a0"), text)


def field_text(record: object, path: str) -> str:
    """A field as text in its own format, with its interval where there is one; a dash where the record lacks it.

    Args:
        record: a dataclass or a mapping; its interval of `name` is `name_interval`.
        path: the field's name, dotted where it is the field of a record in the record.
    """
    *outer, name = path.split(".")
    for part in outer:
        record = _field(record, part)
    value = _field(record, name)
    if value is None or isinstance(value, str):
        return value or NOTHING
    if isinstance(value, dict):
        return settings_text(value) or NOTHING
    if name.endswith("_parameters"):
        return parameters_text(value)
    if isinstance(value, int):
        return str(value)
    form = next(form for ends, form in _FORMATS.items() if name.endswith(ends))
    text = form.format(value).replace("%", " %") + interval_text(_field(record, f"{name}_interval"), "+" if "+" in form else "")
    return text.replace("-0.00", "+0.00") if "+" in form else text


def _field(record: object, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def parameters_text(number: int) -> str:
    """A number of weights as the papers write it: `409 M`, `1.23 M`; below ten thousand in full."""
    if number < 10_000:
        return str(number)
    return f"{number / 1e6:,.0f} M" if number >= 100_000_000 else f"{number / 1e6:.3g} M"


def point_text(point: PointHeader) -> str:
    """A point in a sentence: `BiLD with the aligned drafter (α_FB 0.6 α_RB 2 ≤ 10)`."""
    settings = settings_text(point.settings)
    return f"{method_name(point.method)} with the {point.arm} drafter" + (f" ({settings})" if settings else "")


def quality_text(measured: Measurements, metric: str) -> str:
    """`BLEU 93.90 (+0.04 [-0.30, +0.40] from vanilla)`."""
    return f"{metric_name(metric)} {measured.quality:.2f} ({field_text(measured, 'quality_difference')} from vanilla)"


@dataclass(frozen=True)
class Mark:
    """What the test split says of a choice: the page shows contradicted ones in red, and always the words."""

    kind: Status | None
    """None where test did not measure it."""
    words: str


def mark_of(status: TestStatus | None, margin: float | None) -> Mark:
    """The mark of a choice that may lose `margin` points; the worse of quality and speed counts."""
    if status is None:
        return Mark(None, "not measured on test")
    more = "" if margin is None else f" more than {points_text(margin)}"
    if status.quality == "contradicted":
        return Mark("contradicted", f"contradicted: loses{more}")
    if status.speed == "contradicted":
        return Mark("contradicted", "contradicted: slower than vanilla")
    if status.speed == "open":
        return Mark("open", "open: not shown to be faster than vanilla")
    if status.quality == "open":
        return Mark("open", f"open: may lose{more}")
    if status.quality is None:
        return Mark(None, "quality on test not compared")
    return Mark("confirmed", "confirmed" if margin is None else f"confirmed: loses less than {points_text(margin)}")


def marks_of_point(summary: Summary, index: int) -> list[Mark]:
    """The marks of everything that a point was chosen for, each with the name of the choice: `no loss: contradicted: …`."""
    marks = [(one.choice, mark_of(one.test, one.margin)) for one in summary.choices if one.point == index]
    return [Mark(mark.kind, f"{CHOICE_NAMES[choice]}: {mark.words}") for choice, mark in marks]
