"""The rows of the papers' tables but Table 1: what was measured here, then what the papers print of the task's data set.

A table is a function that yields the measured rows; its name is that of the layout in `tables.yaml`. Theory stands in columns
of its own (`expected_…`). Everything measured is of the validation split, unless the table says test.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks.decoding.methods.baselines import VANILLA
from tasks.decoding.methods.speculative import expected_operations, expected_speedup, oracle_speedup, oracle_tokens
from tasks.evaluation.report.formatting import CHOICE_NAMES, mark_of, method_name, packaged
from tasks.evaluation.results.files import KeptOutputs, point_key
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary, acceptance_of, cost_ratios_of, fastest, temperature
from tasks.evaluation.scoring.metrics import compared_as, metric_of, rouge_table
from tasks.evaluation.selection import keeps_quality
from tasks.evaluation.settings import CHOICES, Experiment
from tasks.paths import ARMS

Row = dict[str, Any]
"""A row as `summary.json` holds it: `label`, `source` (measured or published), and the fields of its columns."""
_QUALITY_AND_SPEED = (
    *("quality", "quality_interval", "quality_difference", "quality_difference_interval", "speedup", "speedup_interval"),
)
# A difference of nothing may be slightly less than 0 in floating point.
_EDGE = 1e-9
_TOLERANCES, _EPSILON = (0.02, 0.05, 0.1), 0.05
"""δ and ε of `calibrated`."""
Outputs = Mapping[tuple[str, str], KeptOutputs]
_Calibrated = tuple[TimedPoint, float]
"""A setting of CALM, and the mean distance of its outputs from vanilla's."""


def published_rows(metric: str, experiment: Experiment) -> dict[str, list[Row]]:
    """The rows that the papers print in each table of `published.yaml` and that compare with a task: of the same data set, of
    its paper where it names one, and of the same metric where they hold a quality. Where rows are of its pair of models, there
    are no others; where none are, all stand there, and their labels name the models.

    Args:
        metric: The task's metric. The papers' tokenizers are the usual ones: a metric with another has no rows.
        experiment: The task's data set, paper and pair.
    """
    printed, metric = packaged("published.yaml"), compared_as(metric)
    results = [
        (name, found)
        for name, table in printed["tables"].items()
        for found in table["results"]
        if found["dataset"] == experiment.dataset
        and experiment.paper in ("any", found["paper"])
        and found.get("metric") in (None, metric)
    ]

    def of_the_pair(found: Row) -> bool:
        pair = zip(found["pair"], (experiment.small, experiment.large), strict=True)
        return all(name is None or model in printed["models"][name] for name, model in pair)

    of_pair = [(name, found) for name, found in results if of_the_pair(found)]
    rows: dict[str, list[Row]] = {name: [] for name in printed["tables"]}
    for name, found in of_pair or results:
        table, (small, large) = printed["tables"][name], found["pair"]
        known = {"paper": printed["papers"][found["paper"]]["name"], "small": small, "large": large}
        for values in found["rows"]:
            row = {"dataset": printed["names"][found["dataset"]], **known, **dict(zip(table["columns"], values, strict=True))}
            rows[name].append({"source": "published", "label": table["label"].format(**row), **row})
    return rows


def anything_published(metric: str, experiment: Experiment) -> bool:
    """Whether any table prints a result that compares with a task, see `published_rows`; a model's size is no result."""
    return any(rows for name, rows in published_rows(metric, experiment).items() if name != "sizes")


def paper_tables(summary: Summary, outputs: Outputs | None = None) -> dict[str, list[Row]]:
    """The rows of every table, the published ones last; without a measured row a table is empty.

    Args:
        summary: With points, choices and pairs; its own tables are not read.
        outputs: Of the points on validation, by `point_key`, which thresholds are calibrated by.
    """
    found, printed = {}, published_rows(summary.metric, summary.experiment)
    for rows in (sizes, shares, sampled, early_exit, cascade, acceptance, speculative, lenience):
        own = [{"source": "measured", **row} for row in rows(summary)]
        found[rows.__name__] = own + (printed[rows.__name__] if own else [])
    found["calibrated"] = [{"source": "measured", **row} for row in calibrated(summary, outputs or {})]
    return found


def _figures(point: OperatingPoint) -> Row:
    return {"settings": point.settings, **{name: getattr(point, name) for name in _QUALITY_AND_SPEED}}


def _best(points: Sequence[TimedPoint]) -> TimedPoint | None:
    """The point of the highest observed quality; of equally good ones the fastest, then the first."""
    return max(points, key=lambda point: (point.quality, point.speedup), default=None)


def _fastest_at(points: Sequence[TimedPoint], quality: float) -> TimedPoint | None:
    """The fastest point of at least this observed quality; of equally fast ones the better, then the first."""
    return fastest(point for point in points if point.quality >= quality - _EDGE)


def _chosen(summary: Summary, arm: str, method: str, choices: Sequence[str] = CHOICES) -> dict[str, TimedPoint]:
    """A method's chosen points by label, with a warning where test contradicts a choice."""
    found = {}
    for choice, point in summary.chosen_points():
        if (choice.arm, choice.method) == (arm, method) and choice.choice in choices:
            red = " (contradicted on test)" if mark_of(choice.test, choice.margin).kind == "contradicted" else ""
            found[f"{method_name(method)}, {CHOICE_NAMES[choice.choice]}, {arm}{red}"] = point
    return found


def _drafts(point: OperatingPoint) -> str:
    """What drafts, for a label; empty where it is the small model."""
    return "" if point.drafter == "small" else f"drafts: {point.drafter}"


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def sizes(summary: Summary) -> Iterator[Row]:
    """BiLD, Table 2: the decoders of the large model and of the small ones, which mostly have one shape."""
    found = {arm: pair for arm in ARMS if (pair := summary.pairs[arm].sizes) is not None}
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


def shares(summary: Summary) -> Iterator[Row]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share for a
    fixed window too, which low confidence never ends: there a fallback can only be control passed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    for arm in ARMS:
        bild, found = summary.timed_points(arm, "bild"), dict[str, TimedPoint | None]()
        for label, point in _chosen(summary, arm, "speculative", CHOICES[:1]).items():
            as_fast = _best([one for one in bild if one.speedup >= point.speedup])
            found |= {label: point, f"BiLD as fast as speculative, {arm}": as_fast}
            found[f"BiLD as good as speculative, {arm}"] = _fastest_at(bild, point.quality)
        for label, one in {**found, **_chosen(summary, arm, "bild")}.items():
            if one is not None:
                counts = one.counts
                fallbacks, rollbacks = (ratio(count, counts.tokens) for count in (counts.large_calls, counts.rollbacks))
                yield {"label": label, **_figures(one), "fallback_share": fallbacks, "rollback_share": rollbacks}


def sampled(summary: Summary) -> Iterator[Row]:
    """BiLD, Table 5: vanilla, and BiLD where it is best, as chosen for no loss, and for one point; of a sweep that draws."""
    drawn = [point for point in summary.timed_points(method="bild") if point.sampling and temperature(point) > 0]
    if not drawn:
        return

    def sampling(point: TimedPoint) -> Row:
        return {"temperature": temperature(point), "top_p": point.sampling and point.sampling.top_p}

    large = summary.vanilla.large
    yield {"label": "vanilla large", **sampling(drawn[0]), "quality": large.quality, "quality_interval": large.quality_interval}
    for arm in ARMS:
        best = _best([point for point in drawn if point.arm == arm])
        for label, point in {f"BiLD, best, {arm}": best, **_chosen(summary, arm, "bild")}.items():
            if point is not None and point in drawn:
                yield {"label": label, **sampling(point), **_figures(point)}


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
        for drafts in dict.fromkeys(map(_drafts, bild)) if calm else ():
            own, where = [point for point in bild if _drafts(point) == drafts], _joined(drafts, arm)
            for choice, name in CHOICE_NAMES.items():
                margin = summary.margins.of(choice)
                yield row(f"{name}, {where}", keeping(calm, margin), keeping(own, margin))
            for point in summary.front(arm, "calm"):
                yield row(f"as good as CALM, {where}", point, _fastest_at(own, point.quality))
                yield row(f"as fast as CALM, {where}", point, _best([one for one in own if one.speedup >= point.speedup]))


def calibrated(summary: Summary, outputs: Outputs) -> Iterator[Row]:
    """CALM with λ by Learn then Test: the fastest setting whose texts are proven to stay near the full model's on average.

    Distance is 1 - ROUGE-L of an output against vanilla's. For each confidence and decay, λ falls from the highest of the grid
    while `p_value_of_mean` rejects that the mean distance is above δ (Schuster et al., 2022: fixed-sequence testing). Over all
    confidences, decays and δ together, an error has a probability of at most ε.
    """
    vanilla, ways = outputs.get(point_key(VANILLA, {})), dict[tuple[Any, Any], list[_Calibrated]]()
    if vanilla is None:
        return
    for point in sorted(summary.timed_points("unaligned", "calm"), key=lambda one: -float(one.settings["threshold"] or 0.0)):
        kept = outputs.get(point_key(point.method, point.settings))
        if kept is not None and temperature(point) == 0:
            distance = _distance(kept.texts, vanilla.texts, metric_of(summary.metric).rouge_tokenizer)
            ways.setdefault((point.settings["confidence"], point.settings.get("decay")), []).append((point, distance))
    level, count = _EPSILON / max(1, len(ways) * len(_TOLERANCES)), len(vanilla.texts)
    for kind, tolerance in itertools.product(dict.fromkeys(kind for kind, _ in ways), _TOLERANCES):
        own = [points for (one, _), points in ways.items() if one == kind]
        proven = [found for points in own if (found := _least_proven(points, tolerance, count, level))]
        row = {"label": f"CALM [{kind}]", "tolerance": tolerance, "distance": None}
        if proven:
            point, distance = max(proven, key=lambda found: found[0].speedup)
            row |= {"distance": distance, **_figures(point)}
        yield row


def _least_proven(points: Sequence[_Calibrated], tolerance: float, count: int, level: float) -> _Calibrated | None:
    """The last setting, λ falling, before the first whose distance is not proven; None where the first one's is not."""
    near = list(itertools.takewhile(lambda found: p_value_of_mean(found[1], tolerance, count) <= level, points))
    return near[-1] if near else None


def p_value_of_mean(mean: float, most: float, count: int) -> float:
    """The largest probability of so small a mean of `count` numbers in [0, 1] whose expectation is above `most`.

    Hoeffding (1963), Theorem 1: exp(-n KL(mean‖most)). Its corollary exp(-2 n (most - mean)²) is far above it for small means:
    it proves no δ of 0.02 by fewer than 5,000 texts, even where all outputs are vanilla's.
    """
    if mean >= most:
        return 1.0
    near = mean * math.log(mean / most) if mean > 0 else 0.0
    return math.exp(-count * (near + (1 - mean) * math.log((1 - mean) / (1 - most))))


def _distance(texts: Sequence[str], references: Sequence[str], tokenizer: str) -> float:
    near = rouge_table(texts, [(one,) for one in references], ("rougeL",), tokenizer)[:, 0].tolist()
    # Equal texts without a word have a ROUGE of 0.
    both = zip(texts, references, near, strict=True)
    return statistics.fmean(0.0 if text == reference else 1 - share / 100 for text, reference, share in both)


def cascade(summary: Summary) -> Iterator[Row]:
    """SpecCascade, Table 2: how fast at the large model's quality, and how good within the large model's latency."""

    def label_of(point: OperatingPoint) -> str:
        settings = point.settings
        rule = settings.get("rule") or settings.get("confidence") or ("tuned" if settings.get("tuned") else "")
        length = f"γ {settings['draft_length']}" if "draft_length" in settings else ""
        return _joined(method_name(point.method) + (f" [{rule}]" if rule else ""), _drafts(point), point.arm, length)

    variants: dict[str, list[TimedPoint]] = {}
    for point in summary.timed_points():
        variants.setdefault(label_of(point), []).append(point)
    for label, own in variants.items():
        # Every sweep has its own run of vanilla; its quality is what the differences were taken from.
        equal = _fastest_at(own, own[0].quality - (own[0].quality_difference or 0.0))
        within = _best([point for point in own if point.speedup >= 1.0])
        yield {"label": label, "at_quality": equal and _figures(equal), "at_latency": within and _figures(within)}


def acceptance(summary: Summary) -> Iterator[Row]:
    """SD, Table 3: α of both small models and of each other drafter of the grid, greedy and at temperature 1."""
    rows: dict[str, Row] = {}
    for arm in ARMS:
        pair = summary.pairs[arm]
        for drafter in ("small", *(one.drafter for one in pair.acceptance if one.lenience == 1)):
            # Of tables, copies and the large model's own layers it is the same in both sweeps.
            label, row = f"small model, {arm}" if drafter == "small" else drafter, Row()
            for prefix, drawn in (("", False), ("sampled_", True)):
                if alpha := pair.acceptance_rate(sampled=drawn, drafter=drafter):
                    row |= {f"{prefix}acceptance_rate": alpha.rate, f"{prefix}acceptance_rate_interval": alpha.interval}
            if row:
                greedy = row.get("acceptance_rate")
                row["expected_oracle_tokens"] = None if greedy is None or greedy >= 1 else oracle_tokens(greedy)
                rows.setdefault(label, {"label": label, **row})
    yield from rows.values()


def _theory(law: Callable[..., float], *known: float | None) -> float | None:
    """What a theorem expects; None where it needs a number that was not measured."""
    return None if None in known else law(*known)


def drafting(summary: Summary, method: str) -> Iterator[tuple[OperatingPoint, Row]]:
    """The points of a method, timed or not, each with α, c and ĉ of what drafts, and with what the theorems expect of them.

    `checked_share` is of the tokens that were checked, not of all drafted. `counted_operations` are for each token over those
    of the large model alone: the positions that it checked, and ĉ for each run of the small model.
    """
    for point in summary.points:
        if point.method == method:
            pair, length = summary.pairs[point.arm], int(point.settings["draft_length"] or 0)
            alpha, (cost, work) = acceptance_of(pair, point), cost_ratios_of(pair, point)
            rate = None if alpha is None else alpha.rate
            check = None if pair.costs is None else pair.costs.verify(length + 1) / pair.costs.verify_ms[1]
            # Nothing bounds the speed-up where no token is ever rejected, and drafting costs nothing.
            bounded = rate if cost != 0.0 or rate != 1.0 else None
            counts, counted = point.counts, None
            if work is not None and counts.verified is not None:
                positions = sum(width * runs for width, runs in counts.verified.items())
                counted = ratio(positions + work * counts.small_steps, counts.tokens)
            row = {
                "label": _joined(method_name(method), _drafts(point), point.arm, f"γ {length}"),
                **_figures(point),
                "temperature": temperature(point),
                "draft_length": length,
                "lenience": point.settings.get("lenience"),
                "acceptance_rate": rate,
                "acceptance_rate_interval": alpha and alpha.interval,
                "cost_ratio": cost,
                "operations_ratio": work,
                "check_cost": check,
                "expected_speedup": _theory(expected_speedup, rate, length, cost),
                "expected_speedup_checked": _theory(expected_speedup, rate, length, cost, check),
                "expected_oracle_speedup": _theory(oracle_speedup, bounded, cost),
                "expected_operations": _theory(expected_operations, rate, length, work),
                "counted_operations": counted,
                "tokens_per_large_call": point.tokens_per_large_call,
                "accepted_share": point.accepted_share,
                "checked_share": ratio(counts.accepted, counts.accepted + counts.rollbacks),
            }
            yield point, row


def speculative(summary: Summary) -> Iterator[Row]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    return (row for _, row in drafting(summary, "speculative"))


def lenience(summary: Summary) -> Iterator[Row]:
    """SD, Table 5: what lenience gains and costs."""
    return (row for _, row in drafting(summary, "speculative_lenient"))
