"""The texts and table cells of the page's sections; the template lays them out and escapes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.basis import outputs_sentence
from tasks.evaluation.report.batches import batch_sentence, memory_facts
from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    NOTHING,
    field_text,
    method_name,
    number_text,
    point_text,
    settings_text,
)
from tasks.evaluation.report.headline import cost_text, processor
from tasks.evaluation.report.selection import Sweeps, fastest_choice, reported, rows_of
from tasks.evaluation.results.pair import PairRecord, VanillaScatter
from tasks.evaluation.results.rows import OperatingPoint, ShownExample, TimedPoint, TimedRow
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.rounds import scatter_text
from tasks.paths import ARMS

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


def timed_examples(summary: Summary) -> str:
    """How many examples a point was timed on; from the fewest to the most where points differ."""
    counts = {point.timed_examples for point in summary.timed_points()} or {0}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def evidence(summary: Summary) -> list[tuple[str, Pairs]]:
    """For each sweep that recorded its models: the plan, the error of its predictions, the costs and the machine."""
    found = []
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        if pair != PairRecord():
            lineage = ((words, pair.origin(name) or "") for name, words in _LINEAGE.items())
            measured = [*_plan(pair), *_acceptance(pair), *_costs(pair), *_batches(pair), *memory_facts(summary, arm)]
            facts = [*measured, ("runtime", pair.runtime or NOTHING), *lineage]
            found.append((arm, [(words, text) for words, text in facts if text]))
    return found


def _plan(pair: PairRecord) -> Iterator[tuple[str, str]]:
    if pair.plan is None:
        return
    plan, error = pair.plan, pair.plan.prediction_error
    yield "points of the grid", f"{plan.points}, {plan.distinct or plan.points} distinct"
    yield "without decoding", f"{plan.replayed or 0} replayed from cached predictions, token for token"
    yield "timed", f"{plan.timed or 0}"
    for name, found in (
        ("random sample", error and error.sample),
        ("frontier and choices", error and error.frontier),
        ("all timed", error and error.all),
    ):
        if found and found.points:
            bias = "" if found.bias is None else f", {found.bias:+.1%} too high"
            text = f"{found.mean:.1%} on average{bias}, {found.worst:.1%} at worst, {found.points} points"
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
    if pair.costs is not None:
        costs, runs = pair.costs, list((pair.costs.verify_ms or {}).items())[:6]
        yield "a small step", "" if costs.small_step_ms is None else f"{costs.small_step_ms:.3f} ms"
        yield "a run of the large model, by positions", ", ".join(f"{length}: {value:.3f} ms" for length, value in runs)
        yield "c, small step over large step", "" if costs.cost_ratio is None else f"{costs.cost_ratio:.3f}"


def _batches(pair: PairRecord) -> Iterator[tuple[str, str]]:
    if pair.batches is not None:
        yield "by batch size", batch_sentence(pair.batches)


def cost_lines(summary: Summary) -> list[str]:
    """What the recommended point may cost beyond the average: outputs that differ, loop or lose much, on one split."""
    point = summary.recommended
    if point is None:
        return []
    measured, split = reported(point)
    cost = cost_text(measured, summary.metric, lossless=point.lossless)
    lines = [f"It {cost}." if point.lossless else f"On average it {cost} on {split}."]
    lines += filter(None, [outputs_sentence(summary, point)])
    index = summary.index_of(point)
    worst = [one.worst[0].loss for one in summary.worst if (one.point, one.split) == (index, split)]
    if worst:
        lines.append(f"The worst single output on {split} loses {worst[0]:.1f} points; see the outputs below.")
    return lines


def grounds(summary: Summary, sweeps: Sweeps) -> Pairs:
    """Control, seeds, splits, timing, intervals and processor, in words."""
    seeds = sorted({result.seed for result in summary.arms.results})
    rows = [row for rows in sweeps.values() for row in rows if isinstance(row, TimedRow)]
    rounds = max((len(row.rounds or ()) or 1 for row in rows), default=1)
    large, margins = summary.vanilla.large, summary.margins
    tested = large.test.examples if large.test else 0
    times = f"in {rounds} rounds spread over the sweep" if rounds > 1 else "in one round"
    covered = "examples and rounds" if rounds > 1 else "examples only, not other rounds"
    return [
        ("processor", processor(summary)),
        (
            "control",
            "The unaligned drafter starts like the aligned one and trains for as many steps on the same inputs; it learns from "
            "references, the aligned one from the large model.",
        ),
        ("seeds", ", ".join(map(str, seeds)) if seeds else "one"),
        (
            "splits",
            f"Settings are chosen on validation ({large.examples or 'all'} texts) and reported on test ({tested or 'no'} "
            "texts), which takes no part in the choice.",
        ),
        (
            "margins",
            f"No loss: less than {margins.no_loss:g} points below the large model; ≤ 1 point: less than {margins.one_point:g}. "
            f"A setting is chosen where the lower bound of its paired difference shows that; the bounds of all settings and "
            f"both drafters hold together with {margins.confidence:.0%} confidence. By the same bound test confirms "
            "the choice, contradicts it, or leaves it open.",
        ),
        (
            "speed",
            f"Measured end to end at batch 1 on {timed_examples(summary)} texts {times}, each beside the large model on the "
            "same text, so that a slow moment slows both.",
        ),
        (
            "intervals",
            f"95 %, paired with the large model. Those of quality cover examples, those of speed {covered}; those of what "
            "alignment gives also cover seeds.",
        ),
        *((f"{arm} sweep", scatter_text(scatter, arm)) for arm in ARMS if (scatter := _scatter(summary, arm))),
        ("predictions", "Stand in columns of their own. A point that was only predicted is never chosen."),
    ]


def _scatter(summary: Summary, arm: str) -> VanillaScatter | None:
    return summary.pairs.of(arm).vanilla_scatter


def examples(summary: Summary, sweeps: Sweeps) -> list[tuple[TimedPoint, str, list[ShownExample]]]:
    """Outputs of the recommended point and of each drafter's fastest chosen point, with a title each; all of one split."""
    wanted = [("recommended", summary.recommended)] if summary.recommended else []
    for choice, point in filter(None, (fastest_choice(summary, arm) for arm in ARMS)):
        if point is not summary.recommended:
            wanted.append((CHOICE_NAMES[choice], point))
    for split in (REPORTED_ON, CHOSEN_ON):
        groups = []
        for words, point in wanted:
            rows = (row for row in rows_of(point, sweeps) if isinstance(row, TimedRow) and row.split == split)
            for shown in filter(None, (row.shown for row in rows)):
                groups.append((point, f"{point_text(point)}: {words}, on {split}", shown))
        if groups:
            return groups
    return []


POINT_COLUMNS: dict[str, Callable[[OperatingPoint], str]] = {
    "method": lambda point: method_name(point.method),
    "drafter": lambda point: point.arm,
    "settings": lambda point: " = ".join(filter(None, (field_text(point, "settings"), settings_text(point.same_as or {})))),
    "quality": lambda point: field_text(point, "quality"),
    "− vanilla": lambda point: field_text(point, "quality_difference"),
    "speed-up, measured": lambda point: field_text(point, "speedup"),
    "speed-up, predicted": lambda point: field_text(point.predicted, "speedup"),
    "ms, median": lambda point: field_text(point, "latency_ms_p50"),
    "ms, 95 %": lambda point: field_text(point, "latency_ms_p95"),
    "tokens / large call": lambda point: field_text(point, "tokens_per_large_call"),
    "accepted": lambda point: number_text(point.accepted_share),
    "timed because": lambda point: point.why or ("" if point.timed else "not timed"),
}
"""Of the table of all points, whose rows are the tooltips of the charts' points too."""


def ordered_points(summary: Summary) -> list[tuple[int, OperatingPoint]]:
    """All points with their indices: the recommended one, the chosen ones, then by speed; untimed points come last."""
    best, points = summary.recommendation.point, enumerate(summary.points)
    return sorted(points, key=lambda entry: (entry[0] != best, not entry[1].chosen, -(entry[1].speedup or 0.0)))
