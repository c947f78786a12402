"""The rows of the papers' tables but Table 1: what was measured here, then what the papers print of the task's data set.

A table is a function, registered by its name, that yields the measured rows; `tables.yaml` has its layout. Theory stands in
columns of its own (`expected_…`). Everything measured is of the validation split, unless the table says test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.speculative import expected_operations, expected_speedup, oracle_speedup, oracle_tokens
from tasks.evaluation.report.formatting import CHOICE_NAMES, is_contradicted, marks_of_point, method_name, settings_text
from tasks.evaluation.report.points import acceptance_of, cost_of, fastest, temperature, work_of
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.scoring.metrics import compared_as
from tasks.evaluation.scoring.statistics import Status
from tasks.evaluation.selection import controlled as controlled_sequences
from tasks.evaluation.selection import hoeffding_bentkus, keeps_quality, threshold_of
from tasks.evaluation.settings import CHOICES, RiskSettings
from tasks.paths import ARMS

Row = dict[str, Any]
"""A row as `summary.json` holds it: `label`, `source` (measured or published), and the fields of its columns."""
_FIGURES = (
    *("arm", "settings", "quality", "quality_interval", "quality_difference", "quality_difference_interval"),
    *("speedup", "speedup_interval"),
)
# A difference of nothing may be slightly less than 0 in floating point.
_EDGE = 1e-9
# What the papers print, from `published.yaml`. A printed number is shown with a measured one only where both are of the same
# data set and metric.
_SOURCE = Source("published.yaml", "correct the file")


@dataclass(frozen=True, kw_only=True)
class PublishedResults:
    """The rows of a table for one data set."""

    dataset: str
    """As `corpus.dataset` names it."""
    metric: str | None = None
    """By which the qualities in the rows compare; None where the table prints none."""
    rows: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table as printed."""

    label: str = ""
    """Of a row, with its columns as fields."""
    columns: list[str]
    results: list[PublishedResults]

    def rows(self, dataset: str, metric: str) -> list[dict[str, Any]]:
        """The rows of a data set whose qualities are of a metric, or that hold no quality, by column."""
        # The papers' tokenizers are the usual ones: a metric with another has no rows here.
        metric = compared_as(metric) if metric else metric
        return [
            {"dataset": published().names[found.dataset], **dict(zip(self.columns, row, strict=True))}
            for found in self.results
            if found.dataset == dataset and found.metric in (None, metric)
            for row in found.rows
        ]


@dataclass(frozen=True, kw_only=True)
class Published:
    """All that the papers print."""

    source: str
    """Where the columns of Table 1 come from."""
    names: dict[str, str]
    """Of the data sets, as printed."""
    tables: dict[str, PublishedTable]


@dataclass(frozen=True, kw_only=True)
class PublishedColumn:
    """One data set's column of BiLD's Table 1."""

    dataset: str
    models: str
    rows: dict[str, tuple[float, float | None]]
    """Quality and speed-up by the names of the rows of Table 1; vanilla has no speed-up."""
    remark: str


@functools.cache
def published() -> Published:
    """The content of `published.yaml`."""
    text = resources.files("tasks.evaluation.report").joinpath("published.yaml").read_text(encoding="utf-8")
    return decode(Published, yaml.safe_load(text), _SOURCE)


def table_1_columns(dataset: str, metric: str) -> list[PublishedColumn]:
    """The columns to show with the Table 1 of a task.

    Args:
        dataset: The task's public data set, as `corpus.dataset` names it; there are no columns for any other name.
        metric: The task's metric.
    """
    return [decode(PublishedColumn, row, _SOURCE) for row in published().tables["table_1"].rows(dataset, metric)]


def published_rows(name: str, dataset: str, metric: str) -> list[dict[str, Any]]:
    """The rows of another table that compare with a task, see `table_1_columns`; none of a table that no paper prints."""
    printed = published().tables.get(name)
    rows = [] if printed is None else printed.rows(dataset, metric)
    return [{"source": "published", "label": printed.label.format(**row), **row} for row in rows if printed is not None]


def anything_published(dataset: str, metric: str) -> bool:
    """Whether any table prints a result that compares with a task, see `table_1_columns`; a model's size is no result."""
    return any(table.rows(dataset, metric) for name, table in published().tables.items() if name != "sizes")


# What was measured.
_ROWS: dict[str, Callable[[Summary], Iterator[Row]]] = {}


def _paper_table(rows: Callable[[Summary], Iterator[Row]]) -> Callable[[Summary], Iterator[Row]]:
    """Register the measured rows of a table under the name of the function, which `tables.yaml` has too."""
    _ROWS[rows.__name__] = rows
    return rows


def paper_tables(summary: Summary) -> dict[str, list[Row]]:
    """The rows of every registered table, the published ones last; without a measured row a table is empty.

    Args:
        summary: With points, choices and pairs; its own tables are not read.
    """
    found = {}
    for name, rows in _ROWS.items():
        own = [{"source": "measured", **row} for row in rows(summary)]
        found[name] = own + (published_rows(name, summary.dataset, summary.metric) if own else [])
    return found


def _figures(point: OperatingPoint) -> Row:
    return {name: getattr(point, name) for name in _FIGURES}


def _best(points: Sequence[TimedPoint]) -> TimedPoint | None:
    """The point of the highest observed quality; of equally good ones the fastest, then the first."""
    return max(points, key=lambda point: (point.quality, point.speedup), default=None)


def _fastest_at(points: Sequence[TimedPoint], quality: float) -> TimedPoint | None:
    """The fastest point of at least this observed quality; of equally fast ones the better, then the first."""
    return fastest(point for point in points if point.quality >= quality - _EDGE)


def _label(summary: Summary, label: str, arm: str, point: TimedPoint) -> str:
    """A row's label, with a warning where it names a choice that test contradicts."""
    named = label.endswith(("no loss", "≤ 1 point")) or label == "speculative"
    red = named and is_contradicted(marks_of_point(summary, summary.index_of(point)))
    return f"{label}, {arm}" + (" (contradicted on test)" if red else "")


def _other_drafter(point: OperatingPoint) -> str:
    """What drafts; empty where it is the small model."""
    drafter = str(point.settings.get("drafter", "small"))
    return "" if drafter == "small" else drafter


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def _points(summary: Summary, method: str) -> Iterator[OperatingPoint]:
    """The points of a method arm by arm, timed or not: their counts are exact either way."""
    return (point for arm in ARMS for point in summary.points if (point.arm, point.method) == (arm, method))


@_paper_table
def sizes(summary: Summary) -> Iterator[Row]:
    """BiLD, Table 2: the decoders of the large model and of the small ones, which mostly have one shape."""
    found = {arm: pair for arm in ARMS if (pair := summary.pairs.of(arm).sizes) is not None}
    large = next((pair.large for pair in found.values() if pair.large), None)
    small = {arm: pair.small for arm, pair in found.items() if pair.small}
    models = {} if large is None else {"large model": large}
    if len(set(small.values())) == 1:
        models["small model"] = next(iter(small.values()))
    else:
        models |= {f"small model, {arm}": one for arm, one in small.items()}
    for label, one in models.items():
        # What a token is multiplied with leaves out the keys and values of the source, and counts the head.
        weights = one.decoder_parameters - one.head_parameters + one.memory_parameters
        shape = {name: getattr(one, name) for name in ("layers", "width", "feed_forward_width")}
        yield {"label": label, **shape, "decoder_parameters": weights}


@_paper_table
def shares(summary: Summary) -> Iterator[Row]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share for a
    fixed window too, which low confidence never ends: there a fallback can only be control passed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    chosen = {(choice.arm, choice.method, choice.choice): point for choice, point in summary.chosen_points()}
    for arm in ARMS:
        bild = summary.timed_points(arm, "bild")
        speculative = chosen.get((arm, "speculative", "no_loss"))
        found = {
            "speculative": speculative,
            "BiLD as fast as speculative": speculative and _best([p for p in bild if p.speedup >= speculative.speedup]),
            "BiLD as good as speculative": speculative and _fastest_at(bild, speculative.quality),
            **{f"BiLD, {name}": chosen.get((arm, "bild", choice)) for choice, name in CHOICE_NAMES.items()},
        }
        for label, point in found.items():
            if point is not None:
                counts = point.counts
                yield {
                    "label": _label(summary, label, arm, point),
                    "method": point.method,
                    **_figures(point),
                    "fallback_share": ratio(counts.large_calls, counts.tokens),
                    "rollback_share": ratio(counts.rollbacks, counts.tokens),
                }


@_paper_table
def sampled(summary: Summary) -> Iterator[Row]:
    """BiLD, Table 5: vanilla, and BiLD where it is best, as chosen for no loss, and for one point; of a sweep that draws."""
    drawn = [point for point in summary.timed_points(method="bild") if temperature(point) > 0]
    if not drawn:
        return

    def sampling(point: TimedPoint) -> Row:
        used = point.sampling or SamplingSettings()
        return {"temperature": used.temperature, "top_k": used.top_k, "top_p": used.top_p}

    large = summary.vanilla.large
    yield {"label": "vanilla large", **sampling(drawn[0]), "quality": large.quality, "quality_interval": large.quality_interval}
    chosen = {(one.arm, one.choice): point for one, point in summary.chosen_points() if one.method == "bild"}
    for arm in ARMS:
        found = {"BiLD, best": _best([point for point in drawn if point.arm == arm])}
        found |= {f"BiLD, {name}": chosen.get((arm, choice)) for choice, name in CHOICE_NAMES.items()}
        for label, point in found.items():
            if point is not None and temperature(point) > 0:
                yield {"label": _label(summary, label, arm, point), **sampling(point), **_figures(point)}


@_paper_table
def early_exit(summary: Summary) -> Iterator[Row]:
    """BiLD, Figures 6 and 7: BiLD and CALM at equal demands, at each quality of CALM's frontier, and at each of its speeds.

    BiLD has a row for what drafts for it: with `early_layer` both leave the same model early.
    """

    def row(label: str, calm: TimedPoint | None, bild: TimedPoint | None) -> Row:
        gain = None if calm is None or bild is None else bild.quality - calm.quality
        return {"label": label, "calm": calm and _figures(calm), "bild": bild and _figures(bild), "quality_gain": gain}

    def keeping(points: Sequence[TimedPoint], margin: float) -> TimedPoint | None:
        bounded = [(point, point.difference_bounds) for point in points]
        return fastest(point for point, bound in bounded if bound is not None and keeps_quality(bound.lower, margin))

    for arm in ARMS:
        calm, bild = summary.timed_points(arm, "calm"), summary.timed_points(arm, "bild")
        for drafter in dict.fromkeys(map(_other_drafter, bild)) if calm else ():
            own = [point for point in bild if _other_drafter(point) == drafter]
            where = _joined(drafter and f"drafts: {drafter}", arm)
            for choice in CHOICES:
                margin = summary.margins.of(choice)
                yield row(f"{CHOICE_NAMES[choice]}, {where}", keeping(calm, margin), keeping(own, margin))
            for point in summary.front(arm, "calm"):
                yield row(f"as good as CALM, {where}", point, _fastest_at(own, point.quality))
                yield row(f"as fast as CALM, {where}", point, _best([one for one in own if one.speedup >= point.speedup]))


@_paper_table
def controlled(summary: Summary) -> Iterator[Row]:
    """CALM's threshold by Learn then Test: chosen on validation, reported on test; none where no losses were measured."""
    for arm in ARMS:
        risk = summary.pairs.of(arm).risk or RiskSettings()
        for sequence in controlled_sequences(summary.timed_points(arm), risk):
            point, accepted = sequence.chosen, sequence.accepted
            row: Row = {
                "label": f"CALM, {settings_text(sequence.fixed)}, {arm} sweep",
                "arm": arm,
                "tested": len(sequence.points),
                "accepted": accepted,
                "tolerance_share": risk.tolerance,
                "level": sequence.level,
            }
            if accepted < len(sequence.points):
                row["refused_threshold"] = threshold_of(sequence.points[accepted])
                row["refused_p_value"] = sequence.p_values[accepted]
            if point is not None:
                p_value = sequence.p_values[accepted - 1]
                row |= {"settings": point.settings, "loss_share": point.loss_share, "p_value": p_value}
                if point.test is not None:
                    status = _risk_status(point.test.loss_share, point.test.examples, risk)
                    row |= {"test_loss_share": point.test.loss_share, "test_status": status}
                    row |= {name: getattr(point.test, name) for name in _FIGURES[-4:]}
            yield row


def _risk_status(loss: float | None, examples: int | None, risk: RiskSettings) -> Status | None:
    """What the test split says of a chosen threshold by the same p-value, one test at level ε in either direction."""
    if loss is None or not examples:
        return None
    if hoeffding_bentkus(loss, examples, risk.tolerance) <= risk.level:
        return "confirmed"
    # A risk of at most δ is a gain of at least 1 - δ, which the same inequality refutes.
    return "contradicted" if hoeffding_bentkus(1.0 - loss, examples, 1.0 - risk.tolerance) <= risk.level else "open"


@_paper_table
def cascade(summary: Summary) -> Iterator[Row]:
    """SpecCascade, Table 2: how fast at the large model's quality, and how good within the large model's latency."""

    def variant_of(point: OperatingPoint) -> tuple[str, str, str]:
        settings = point.settings
        rule = settings.get("rule") or settings.get("confidence") or ("tuned" if settings.get("tuned") else "")
        return point.method, str(rule), _other_drafter(point)

    for arm in ARMS:
        timed = summary.timed_points(arm)
        for variant in dict.fromkeys(map(variant_of, timed)):
            own = [point for point in timed if variant_of(point) == variant]
            # Every sweep has its own run of vanilla; its quality is what the differences were taken from.
            equal = _fastest_at(own, own[0].quality - (own[0].quality_difference or 0.0))
            within = _best([point for point in own if point.speedup >= 1.0])
            method, rule, drafter = variant
            name = method_name(method) + (f" [{rule}]" if rule else "")
            yield {
                "label": _joined(name, drafter and f"drafts: {drafter}", arm),
                "variant": f"{method} {rule}".strip(),
                "arm": arm,
                "timed": len(own),
                "at_quality": equal and _figures(equal),
                "at_latency": within and _figures(within),
            }


@_paper_table
def acceptance(summary: Summary) -> Iterator[Row]:
    """SD, Table 3: α of both small models and of each other drafter of the grid, greedy and at temperature 1."""
    rows: dict[str, Row] = {}
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        for drafter in ("small", *(one.drafter for one in pair.acceptance if one.lenience == 1)):
            # Of tables, copies and the large model's own layers it is the same in both sweeps.
            label = f"small model, {arm}" if drafter == "small" else drafter
            greedy, drawn = (pair.acceptance_rate(sampled=kind, drafter=drafter) for kind in (False, True))
            if greedy is not None or drawn is not None:
                row = {"label": label, "drafter": drafter, **_alpha(greedy)}
                row |= {
                    "sampled_acceptance_rate": drawn and drawn.rate,
                    "sampled_acceptance_rate_interval": drawn and drawn.interval,
                    "expected_oracle_tokens": None if greedy is None or greedy.rate >= 1 else oracle_tokens(greedy.rate),
                }
                rows.setdefault(label, row)
    yield from rows.values()


def _alpha(alpha: AcceptanceRate | None) -> Row:
    return {"acceptance_rate": alpha and alpha.rate, "acceptance_interval": alpha and alpha.interval}


def _drafting(summary: Summary, point: OperatingPoint, name: str) -> tuple[Row, AcceptanceRate | None, float | None]:
    """The fields that tables of speculative decoding have in common, with α and c of what drafts."""
    pair, length = summary.pairs.of(point.arm), int(point.settings["draft_length"] or 0)
    alpha, cost = acceptance_of(pair, point), cost_of(pair, point)
    drafter = _other_drafter(point)
    row = {"label": _joined(name, drafter and f"drafts: {drafter}", point.arm, f"γ {length}"), **_figures(point)}
    row |= {"temperature": temperature(point), "draft_length": length, **_alpha(alpha)}
    expected = None if alpha is None or cost is None else expected_speedup(alpha.rate, length, cost)
    return {**row, "expected_speedup": expected}, alpha, cost


@_paper_table
def speculative(summary: Summary) -> Iterator[Row]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    for point in _points(summary, "speculative"):
        pair = summary.pairs.of(point.arm)
        row, alpha, cost = _drafting(summary, point, "speculative")
        length, work = row["draft_length"], work_of(pair, point)
        check = None if pair.costs is None else pair.costs.check_cost(length + 1)
        checked = oracle = operations = None
        if alpha is not None and cost is not None and check is not None:
            checked = expected_speedup(alpha.rate, length, cost, check)
        # Nothing bounds the speed-up where no token is ever rejected, and drafting costs nothing.
        if alpha is not None and cost is not None and (alpha.rate < 1 or cost > 0):
            oracle = oracle_speedup(alpha.rate, cost)
        if alpha is not None and work is not None:
            operations = expected_operations(alpha.rate, length, work)
        yield row | {
            "cost_ratio": cost,
            "check_cost": check,
            "expected_speedup_checked": checked,
            "expected_oracle_speedup": oracle,
            "expected_operations": operations,
            "tokens_per_large_call": point.tokens_per_large_call,
        }


@_paper_table
def lenience(summary: Summary) -> Iterator[Row]:
    """SD, Table 5: what lenience gains and costs. `checked_share` is of the tokens that were checked, not of all drafted."""
    for point in _points(summary, "speculative_lenient"):
        row, _, _ = _drafting(summary, point, "speculative lenient")
        accepted = point.counts.accepted
        row |= {"lenience": point.settings["lenience"], "accepted_share": point.accepted_share}
        yield {**row, "checked_share": ratio(accepted, accepted + point.counts.rollbacks)}
