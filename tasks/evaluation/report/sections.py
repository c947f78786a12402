"""The texts and table cells of the page's sections; the template lays them out and escapes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, TOLERANCES
from tasks.evaluation.report.figures.lookup import Sweeps, fastest_choice, reported_row, rows_of
from tasks.evaluation.report.formatting import CHOICE_NAMES, METRIC_NAMES, NOTHING, method_name, number_text, settings_text
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.points import OperatingPoint
from tasks.evaluation.results.rows import ShownExample, TimedRow
from tasks.evaluation.results.summary import Summary
from tasks.paths import DRAFTERS

Pairs = list[tuple[str, str]]
"""Names and their texts."""

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
"""Who proposed a piece of text, as rows abbreviate it."""


def cards(summary: Summary) -> Pairs:
    """The recommended point in numbers, on test where it was measured there; none where vanilla large is recommended."""
    point = summary.recommended
    if point is None:
        return []
    split, found = (REPORTED_ON, point.test) if point.test else (CHOSEN_ON, point)
    difference = number_text(found.quality_difference, found.quality_difference_interval, sign="+")
    return [
        (number_text(found.speedup, found.speedup_interval, unit="×"), f"as fast as vanilla large ({split})"),
        (difference, f"{METRIC_NAMES[summary.metric]} points against vanilla large ({split})"),
        (f"{found.latency_ms:.2f} ms", "for an example, batch 1, encoders included"),
        (number_text(found.large_calls_per_token), "runs of the large model for each token (vanilla: 1)"),
    ]


def settings_lines(summary: Summary) -> list[str]:
    """The recommended settings as lines of a configuration file; none where vanilla large is recommended."""
    point = summary.recommended
    if point is None:
        return []
    yaml = {"inf": ".inf", "True": "true", "False": "false"}
    lines = [f"method: {point.method}", f"# with the {point.drafter} small model as drafter"]
    return lines + [f"{name}: {yaml.get(str(value), value)}" for name, value in point.settings.items()]


def protocol(summary: Summary) -> list[str]:
    """How it was measured, a few sentences."""
    timed = sorted({point.timed_examples for point in summary.timed_points()}) or [0]
    examples = " to ".join(str(count) for count in dict.fromkeys((timed[0], timed[-1])))
    return [
        f"Quality is measured on the whole split ({summary.vanilla.large.examples or 'all'} examples on validation).",
        f"Latency is measured at batch 1, end to end, encoders included, on a fixed random subset ({examples} examples). Each "
        "example is timed with the method and with the vanilla large model one right after the other; a speed-up is the sum of "
        "vanilla's times over the sum of the method's. A slow moment of the machine slows both sides.",
        "Settings are chosen on the validation split and reported on the test split, which takes no part in the choice. No "
        f"loss: at most {TOLERANCES['no_loss']:g} point below vanilla; ≤ 1 point: at most {TOLERANCES['one_point']:g} below.",
        "Intervals are 95 % bootstrap intervals over examples, paired where a method is compared with vanilla; that of the gap "
        "between two frontiers is a normal one, and cautious. The intervals cover variation across examples only, not across "
        "runs: another training seed, or a shared machine, can move a point further.",
        "Measured, predicted and theoretical numbers are in separate columns. A point that was only predicted is never chosen.",
    ]


def evidence(summary: Summary) -> list[tuple[str, Pairs]]:
    """For each sweep that recorded its models: the plan, the error of its predictions, the costs and the machine."""
    found = []
    for drafter in DRAFTERS:
        pair = summary.pairs.of(drafter)
        if pair != PairRecord():
            facts = [*_plan(pair), *_acceptance(pair), *_costs(pair), ("runtime", pair.runtime or NOTHING)]
            facts += [(words, pair.origin(name)) for name, words in _LINEAGE.items() if pair.origin(name)]
            found.append((drafter, facts))
    return found


def _plan(pair: PairRecord) -> Iterator[tuple[str, str]]:
    if pair.plan is None:
        return
    plan, error = pair.plan, pair.plan.prediction_error
    yield "points of the grid", f"{plan.points}, of which {plan.distinct or plan.points} behave differently"
    yield "without decoding", f"{plan.replayed or 0} replayed from cached predictions, token for token"
    yield "timed", f"{plan.timed or 0}"
    for name, found in (("random sample", error and error.sample), ("all timed", error and error.all)):
        if found and found.points:
            text = f"{found.mean:.1%} on average, {found.worst:.1%} at worst, {found.points} points"
            yield f"error of the prediction, {name}", text
    if plan.replay_seconds is not None:
        yield "duration", f"{plan.replay_seconds:.0f} s to replay, {plan.timing_seconds or 0:.0f} s to time"


def _acceptance(pair: PairRecord) -> Iterator[tuple[str, str]]:
    for sampled, name in ((False, "greedy"), (True, "sampled")):
        rate = pair.acceptance_rate(sampled=sampled)
        if rate:
            temperature = "" if rate.temperature is None else f", T = {rate.temperature:g}"
            text = f"{number_text(rate.rate, rate.interval, digits=3)}{temperature}, {rate.tokens} tokens"
            yield f"acceptance rate α, {name}", text


def _costs(pair: PairRecord) -> Iterator[tuple[str, str]]:
    if pair.costs is None:
        return
    if pair.costs.small_step_ms is not None:
        yield "a small step", f"{pair.costs.small_step_ms:.3f} ms"
    if pair.costs.verify_ms:
        runs = [f"{positions}: {value:.3f} ms" for positions, value in pair.costs.verify_ms.items()]
        yield "a run of the large model, by positions", ", ".join(runs[:6])
    if pair.cost_ratio is not None:
        yield "c, small step over large step", f"{pair.cost_ratio:.3f}"


def examples(summary: Summary, sweeps: Sweeps) -> list[tuple[str, list[ShownExample]]]:
    """Outputs of the recommended point and of each drafter's fastest chosen point, with a title each."""
    wanted = [("recommended", summary.recommended)] if summary.recommended else []
    for choice, point in filter(None, (fastest_choice(summary, drafter) for drafter in DRAFTERS)):
        if point is not summary.recommended:
            wanted.append((CHOICE_NAMES[choice], point))
    groups = []
    for words, point in wanted:
        rows = [reported_row(point, sweeps), *rows_of(point, sweeps).values()]
        shown = next((row.shown for row in rows if isinstance(row, TimedRow) and row.shown), None)
        if shown:
            title = f"{method_name(point.method)}, {point.drafter} ({words}): {settings_text(point.settings)}"
            groups.append((title, shown))
    return groups


POINT_COLUMNS: dict[str, Callable[[OperatingPoint], str]] = {
    "method": lambda point: method_name(point.method),
    "drafter": lambda point: point.drafter,
    "settings": lambda point: (
        (settings_text(point.settings) or NOTHING) + ("" if point.same_as is None else f" = {settings_text(point.same_as)}")
    ),
    "quality": lambda point: number_text(point.quality, point.quality_interval),
    "− vanilla": lambda point: number_text(point.quality_difference, point.quality_difference_interval, sign="+"),
    "speed-up, measured": lambda point: number_text(point.speedup, point.speedup_interval, unit="×"),
    "speed-up, predicted": lambda point: number_text(point.predicted.speedup if point.predicted else None, unit="×"),
    "ms, median": lambda point: number_text(point.latency_ms_p50),
    "ms, 95 %": lambda point: number_text(point.latency_ms_p95),
    "large calls / token": lambda point: number_text(point.large_calls_per_token),
    "accepted": lambda point: number_text(point.accepted_share),
    "chosen as": lambda point: CHOICE_NAMES.get(point.chosen or "", ""),
    "timed because": lambda point: point.why or ("" if point.timed else "not timed"),
}
"""Of the table of all points, whose rows are the tooltips of the charts' points too."""


def ordered_points(summary: Summary) -> list[tuple[int, OperatingPoint]]:
    """All points with their indices: the recommended one, the chosen ones, then by speed; untimed points come last."""
    best, points = summary.recommendation.point, enumerate(summary.points)
    return sorted(points, key=lambda entry: (entry[0] != best, not entry[1].chosen, -(entry[1].speedup or 0.0)))
