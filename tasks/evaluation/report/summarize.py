"""The summary of a task: the rows of both sweeps, put together for users, figures and tables.

Choices are made on the validation split from unrounded numbers, each arm against the vanilla large model of its own rows;
chosen points are then looked up on the test split. Ratios are made once, from raw counts.

What alignment gives is counted, and confirmed by the clock, which timed both arms in turn (`evaluation.effect`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.corpora.example import Example
from tasks.decoding.methods.baselines import VANILLA
from tasks.errors import InputError
from tasks.evaluation import effect
from tasks.evaluation.operations import relative_operations
from tasks.evaluation.report.formatting import packaged
from tasks.evaluation.report.paper_tables import paper_tables
from tasks.evaluation.report.recommendation import recommend
from tasks.evaluation.report.tables import PURPOSES, table_rows
from tasks.evaluation.results import rows as records
from tasks.evaluation.results import summary as parts
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.files import KeptOutputs, point_key, split_at
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import Choice, MeasuredRow, SweepRow, TimedPoint, TimedRound, TimedRow, numbers_of
from tasks.evaluation.results.summary import ALL_METHODS, BILD_FRONTIERS, AlignmentEffect, ArmPoint, ArmResult, Summary, Sweeps
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import example_statistics, loops, value_of
from tasks.evaluation.scoring.statistics import speedup_of
from tasks.evaluation.selection import BASELINES, TradeOff, choose_rows, frontier, keeps_quality
from tasks.evaluation.settings import CHOICES, CHOSEN_ON, REPORTED_ON, Experiment
from tasks.paths import ARMS

Point = TimedPoint | records.UntimedPoint
_Kind = TypeVar("_Kind")
Swept = tuple[Sequence[SweepRow], PairRecord]
"""The rows of one sweep and what it recorded of its pair."""
Seeds = Mapping[tuple[str, int], Swept]
"""The sweeps by arm and seed, the first seed first."""
Outputs = Mapping[tuple[str, int, str], Mapping[tuple[str, str], KeptOutputs]]
"""What every drafter's points give, by arm, seed and split (`results.files.read_hypotheses`)."""


def summarize(
    task: str,
    metric: str,
    seeds: Seeds,
    experiment: Experiment | None = None,
    test_names: Sequence[str] = (),
    further: Mapping[str, Seeds] | None = None,
    corpus: str = "",
    temperatures: Mapping[tuple[str, float], Sequence[SweepRow]] | None = None,
    outputs: Outputs | None = None,
    examples: Sequence[Example] = (),
    warnings: Sequence[str] = (),
) -> Summary:
    """The summary of one task, numbers rounded as in `summary.json`.

    Args:
        task: Its name.
        metric: Its metric.
        seeds: The sweeps of every seed, both splits; of rows for the same point the last counts. Points are of the first seed.
        experiment: What decides which published numbers are shown.
        test_names: The names of the test sets, the main one first.
        further: For the name of each test set but the main one the sweeps with its rows alone.
        corpus: What the texts are, in words.
        temperatures: The rows of each sweep at further temperatures, by arm and temperature.
        outputs: Of every drafter, by arm, seed and split; without them nothing is said of what alignment gives.
        examples: The texts of validation, for the quality of these outputs.
        warnings: Of the stages before the sweep.

    Raises:
        InputError: a sweep lacks a measured vanilla large row on the validation split.
    """
    first = _of_first_seed(seeds)
    rows = {arm: latest(swept) for arm, (swept, _) in first.items()}
    pairs = {arm: with_own_timings(pair, rows[arm]) for arm, (_, pair) in first.items()}
    points, choices = points_of(task, rows, pairs)
    measured = [row for arm in ARMS for row in rows[arm] if isinstance(row, MeasuredRow)]
    results = arm_results(task, seeds)
    # One clock priced the runs of all drafters, tested itself on all of them, and all were chosen by the same margins.
    of_all = pairs["unaligned"]
    alignment = None
    if outputs and of_all.costs is not None:
        costs = effect.cost_model(of_all.costs)
        counted, clock = along_frontiers(metric, examples, seeds, outputs, costs)
        alignment = parts.Alignment(
            counted=counted,
            clock=clock,
            null_test=of_all.null_test,
            choices=at_proven_quality(seeds or {}, outputs, costs),
            costs=costs,
        )
    summary = Summary(
        task=task,
        metric=metric,
        experiment=experiment or Experiment(),
        corpus=corpus,
        split=CHOSEN_ON,
        signature=next((row.signature for row in measured if row.signature), None),
        vanilla=models_alone(rows),
        points=points,
        choices=choices,
        margins=of_all.margins,
        pareto=pareto_fronts(points),
        pairs=pairs,
        arms=results,
        alignment=alignment,
        failed=failures(rows),
        definitions=packaged("definitions.yaml"),
        tables={},
        recommendation=parts.Recommendation(text="", changes=[]),
        table=[],
        temperatures=temperature_points(task, temperatures or {}, pairs),
    )
    # Tables of the papers and the recommendation are made from unrounded numbers, Table 1 from those that the user reads.
    of_first = (outputs or {}).get(("unaligned", next(seed for arm, seed in seeds if arm == "unaligned"), CHOSEN_ON), {})
    summary = dataclasses.replace(summary, tables=paper_tables(summary, of_first), recommendation=recommend(summary, warnings))
    found = summary.recommendation
    found = dataclasses.replace(found, warnings=[*found.warnings, *loop_warning(summary, outputs or {})])
    summary = dataclasses.replace(summary, recommendation=found)
    summary = parts.rounded(summary)
    summary = dataclasses.replace(summary, table=table_rows(summary))
    return dataclasses.replace(summary, test_sets=named_test_sets(summary, test_names, seeds, further or {}, outputs or {}))


def _of_first_seed(seeds: Seeds) -> dict[str, Swept]:
    return {arm: next(swept for (one, _), swept in seeds.items() if one == arm) for arm in ARMS}


# The points of a sweep, each a row of validation with its row of test.


def points_of(
    task: str, sweeps: Mapping[str, Sequence[SweepRow]], pairs: Mapping[str, PairRecord]
) -> tuple[list[Point], list[Choice]]:
    """The points of sweeps by arm on validation, in the order of the rows and without baselines and failures; and the choices.

    Args:
        task: Its name, for errors.
        sweeps: For each arm its rows, both splits, each point once (`latest`).
        pairs: What each sweep recorded of its two models, and of what a choice may lose.

    Raises:
        InputError: a sweep has no timed vanilla large row on the validation split.
    """
    points, chosen = list[Point](), list[Choice]()
    for arm, rows in sweeps.items():
        timed, margins = _timed_rows(rows), pairs[arm].margins
        vanilla = {row.split: row.value for row in timed if row.method == VANILLA}
        if CHOSEN_ON not in vanilla:
            fix = f"make it by: {parts.sweep_command(task)}"
            raise InputError(f"the {arm} sweep of task {task} has no measured {VANILLA} row on the {CHOSEN_ON} split; {fix}")
        tests = {
            _setting_key(row): _measured(records.TimedMeasurements, row, vanilla) for row in timed if row.split == REPORTED_ON
        }
        swept = [row for row in rows if row.split == CHOSEN_ON]
        choices, index_of = choose_rows(swept, margins), dict[int | None, int]()
        for position, row in enumerate(swept):
            if isinstance(row, MeasuredRow) and row.method not in BASELINES:
                index_of[position] = len(points)
                about = {
                    "acceptance_by_position": None if row.counts.kept is None else acceptance_by_position(row.counts),
                    "operations": _operations(row, pairs[arm]),
                    # The stricter choice names a point that is both; `choices` lists each choice by itself.
                    "chosen": next((name for name in CHOICES if choices[row.method, name] == position), None),
                    "test": tests.get(_setting_key(row)),
                }
                kind: type[Point] = TimedPoint if isinstance(row, TimedRow) else records.UntimedPoint
                points.append(_measured(kind, row, vanilla, **about))
        for (method, name), found in choices.items():
            index, margin = index_of.get(found), margins.of(name)
            status = None if index is None else parts.test_status(points[index].test, margin)
            chosen.append(Choice(method=method, arm=arm, choice=name, margin=margin, point=index, test=status))
    return points, chosen


def _measured(kind: type[_Kind], row: MeasuredRow, vanilla: Mapping[str, float], **more: object) -> _Kind:
    """The measurements of a row, with their difference from vanilla's quality on its split and with further fields."""
    difference = row.value - vanilla[row.split] if row.split in vanilla else None
    return joined(kind, row, **{**numbers_of(row), "quality_difference": difference, **more})


def _operations(row: MeasuredRow, pair: PairRecord) -> records.Operations | None:
    """The theoretical work of a point over that of the large model alone; None where sizes were not recorded."""
    if pair.sizes is None or not row.examples:
        return None
    sizes = pair.sizes if row.drafter == "small" else dataclasses.replace(pair.sizes, small=None)
    return relative_operations(row.counts, row.examples, sizes)


def acceptance_by_position(counts: records.DecodingCounts) -> list[float]:
    """P(token i of a draft is kept | all before it were, and it exists), for i = 1, 2, …, up to the last position reached."""
    split = ((key.split("/"), number) for key, number in (counts.kept or {}).items())
    drafts = {(int(drafted), int(kept)): number for (drafted, kept), number in split}
    shares = []
    for position in range(1, max((drafted for drafted, _ in drafts), default=0) + 1):
        reached = sum(number for (drafted, kept), number in drafts.items() if drafted >= position and kept >= position - 1)
        if not reached:
            break
        shares.append(sum(number for (_, kept), number in drafts.items() if kept >= position) / reached)
    return shares


def models_alone(sweeps: Sweeps) -> parts.VanillaModels:
    """The models alone: large and small of the unaligned sweep, and the aligned small model.

    Args:
        sweeps: By arm; the unaligned one holds vanilla large on validation (`points_of`).
    """

    def alone(arm: str, method: str) -> records.ModelAlone | None:
        rows = {row.split: row for row in _timed_rows(sweeps[arm]) if row.method == method}
        own, test = rows.get(CHOSEN_ON), rows.get(REPORTED_ON)
        tested = None if test is None else joined(records.TimedMeasurements, test, **numbers_of(test))
        return None if own is None else joined(records.ModelAlone, own, **numbers_of(own), test=tested)

    large = alone("unaligned", VANILLA)
    assert large is not None  # noqa: S101 (`points_of` refuses such a sweep)
    return parts.VanillaModels(
        large=large, small=alone("unaligned", "vanilla_small"), small_aligned=alone("aligned", "vanilla_small")
    )


def failures(sweeps: Sweeps) -> list[records.FailedRow]:
    """The rows that hold an error."""
    return [row for arm in ARMS for row in sweeps[arm] if isinstance(row, records.FailedRow)]


def _timed_rows(rows: Iterable[SweepRow]) -> list[TimedRow]:
    return [row for row in rows if isinstance(row, TimedRow)]


def with_own_timings(pair: PairRecord, rows: Sequence[SweepRow]) -> PairRecord:
    """What a sweep recorded, with its own timings on test as those of batches of one: Table 1 and the verdict report them."""
    if pair.batches is None:
        return pair
    tests = [row for row in _timed_rows(rows) if row.split == pair.batches.split]
    points = []
    for one in pair.batches.points:
        row = next((row for row in tests if (row.method, row.settings) == (one.method, one.settings)), None)
        if one.batch_size == 1 and row is not None:
            visits = row.rounds or [TimedRound(latency_ms=row.latency_ms, vanilla_latency_ms=row.vanilla_latency_ms)]
            rounds = [speedup_of([visit]) for visit in visits]
            one = dataclasses.replace(one, speedup=row.speedup, rounds=rounds)
        points.append(one)
    return dataclasses.replace(pair, batches=dataclasses.replace(pair.batches, points=points))


def _setting_key(row: SweepRow) -> str:
    """Names the point of a row whatever its split: method, settings and sampling."""
    return json.dumps([row.method, row.settings, row.sampling and dataclasses.asdict(row.sampling)], sort_keys=True)


def latest(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """One row for each point and split, the last written: a point that failed and was run again counts as it ended."""
    return list({(row.split, _setting_key(row)): row for row in rows}.values())


# Frontiers of methods, and how far the aligned one lies above the unaligned one.


def pareto_fronts(points: Sequence[records.OperatingPoint]) -> list[parts.ParetoFront]:
    """For each arm the frontier of each of its methods with a timed point, and of all its methods together."""
    found = []
    for arm in ARMS:
        timed = {index: point for index, point in enumerate(points) if isinstance(point, TimedPoint) and point.arm == arm}
        for method in dict.fromkeys([*(point.method for point in timed.values()), ALL_METHODS]) if timed else ():
            own = [index for index, point in timed.items() if method in (ALL_METHODS, point.method)]
            front = frontier([TradeOff(timed[index].quality, timed[index].speedup) for index in own])
            found.append(parts.ParetoFront(arm=arm, method=method, points=[own[place] for place in front]))
    return found


# Aligned against unaligned over seeds: what each arm's sweep chose, and what alignment gives by counts.


def arm_results(task: str, sweeps: Seeds) -> list[ArmResult]:
    """What the sweep of every drafter chose.

    Raises:
        InputError: a sweep has no measured vanilla large row on validation.
    """
    results = []
    for (arm, seed), (rows, pair) in sweeps.items():
        purposes = list[ArmPoint]()
        points, choices = points_of(task, {arm: latest(rows)}, {arm: pair})
        chosen = {(one.method, one.choice): one for one in choices}
        for purpose, (method, name, _) in PURPOSES.items():
            if (choice := chosen.get((method, name))) is not None:
                test = None if choice.point is None else points[choice.point].test
                if choice.point is None:
                    purposes.append(ArmPoint(purpose=purpose))
                elif test is not None:
                    about = {"settings": points[choice.point].settings, "margin": choice.margin, "test": choice.test}
                    purposes.append(joined(ArmPoint, test, purpose=purpose, **about))
        rates = {"agreement": pair.acceptance_rate(), "alpha": pair.acceptance_rate(sampled=True)}
        results.append(ArmResult(arm=arm, seed=seed, training=pair.training, points=purposes, **rates))
    return results


def at_proven_quality(seeds: Seeds, outputs: Outputs, costs: parts.CostModel) -> list[AlignmentEffect]:
    """What alignment gives at equal proven quality on validation, by purpose.

    Each drafter decodes at the setting that takes least by counts among those that are proven to lose no more than the margin.
    The fastest by the clock would not do: on a busy machine it is another one. Where none is proven, the large model decodes
    alone. Settings whose drafter does not run the small model say nothing of it, and are left out.

    Args:
        seeds: The sweeps of every seed.
        outputs: Of every drafter, by arm, seed and split.
        costs: The cost model of both arms.
    """
    found = []
    for purpose, (method, choice, _) in PURPOSES.items():
        arms: dict[str, dict[int, NDArray[np.int32]]] = {arm: {} for arm in ARMS}
        for (arm, seed), (rows, pair) in seeds.items():
            kept = outputs.get((arm, seed, CHOSEN_ON), {})
            swept = {
                point_key(row.method, row.settings): None if row.difference_bounds is None else row.difference_bounds.lower
                for row in latest(rows)
                if isinstance(row, MeasuredRow) and (row.split, row.method) == (CHOSEN_ON, method) and row.drafter == "small"
            }
            margin = pair.margins.of(choice)
            proven = [kept[key].work for key, lower in swept.items() if key in kept and keeps_quality(lower, margin)]
            if swept and (key := point_key(VANILLA, {})) in kept:
                works = proven or [kept[key].work]
                arms[arm][seed] = min(works, key=lambda work: effect.milliseconds(work, costs).sum())
        found.append(effect.effect_of_choices(purpose, CHOSEN_ON, arms, costs))
    return [one for one in found if one is not None]


def counted_choices(
    split: str, results: Sequence[ArmResult], outputs: Outputs, costs: parts.CostModel
) -> list[AlignmentEffect]:
    """What alignment gives on a test set at the points that the sweeps chose by the clock, by purpose.

    A seed counts only where the arms' own models draft: a copy or a table drafts alike in both, and its speed is no effect.

    Args:
        split: That of the test set.
        results: What each sweep chose.
        outputs: Of every drafter, by arm, seed and split.
        costs: The cost model of both arms.
    """
    found = []
    for purpose, (method, *_) in PURPOSES.items():
        arms: dict[str, dict[int, NDArray[np.int32]]] = {arm: {} for arm in ARMS}
        for result in results:
            kept = outputs.get((result.arm, result.seed, split), {})
            for point in result.points:
                key = point_key(VANILLA, {}) if point.settings is None else point_key(method, point.settings)
                by_model = point.settings is None or point.settings.get("drafter", "small") == "small"
                if point.purpose == purpose and by_model and key in kept:
                    arms[result.arm][result.seed] = kept[key].work
        found.append(effect.effect_of_choices(purpose, split, arms, costs))
    return [one for one in found if one is not None]


def along_frontiers(
    metric: str, examples: Sequence[Example], seeds: Seeds, outputs: Outputs, costs: parts.CostModel
) -> tuple[AlignmentEffect | None, AlignmentEffect | None]:
    """What alignment gives at equal quality along BiLD's frontiers on validation: by counts, and by the clock.

    Every setting was replayed and counts; the clock has those that were timed.

    Args:
        metric: The task's; given texts have no outputs to compare, so that their perplexity gives None.
        examples: The texts of validation.
        seeds: The sweeps of every seed.
        outputs: Of every drafter, by arm, seed and split.
        costs: The cost model of both arms.
    """
    if metric_of(metric).name == PERPLEXITY:
        return None, None
    references = [example.references for example in examples]
    counted: dict[str, dict[int, effect.Curves]] = {arm: {} for arm in ARMS}
    clock: dict[str, dict[int, effect.Curves]] = {arm: {} for arm in ARMS}
    vanilla = None
    for (arm, seed), (rows, _) in seeds.items():
        kept = outputs.get((arm, seed, CHOSEN_ON), {})
        if vanilla is None and (key := point_key(VANILLA, {})) in kept:
            vanilla = value_of(kept[key].texts, references, metric)
        scores = {
            key: example_statistics(one.texts, references, metric)
            for key, one in kept.items()
            if key[0] == "bild" and json.loads(key[1]).get("drafter", "small") == "small"
        }
        own = [row for row in latest(rows) if isinstance(row, TimedRow) and row.split == CHOSEN_ON]
        rounds = [(point_key(row.method, row.settings), row.rounds or []) for row in own]
        # Settings that fell behind have fewer rounds.
        most = max((len(found) for _, found in rounds), default=0)
        timed = [(found, scores[key]) for key, found in rounds if key in scores and found and len(found) == most]
        if scores:
            counted[arm][seed] = effect.counted_curves([(kept[key].work, one) for key, one in scores.items()], costs)
        if timed:
            clock[arm][seed] = effect.timed_curves(timed)
    if vanilla is None:
        return None, None
    by_counts, by_clock = (effect.effect_of_frontiers(BILD_FRONTIERS, CHOSEN_ON, arms, vanilla) for arms in (counted, clock))
    return by_counts, by_clock


def loop_warning(summary: Summary, outputs: Outputs) -> list[str]:
    """A clause where outputs of the recommended point repeat themselves more often than vanilla's, which averages hide."""
    point = summary.recommended
    if point is None:
        return []
    split = REPORTED_ON if point.test else CHOSEN_ON
    kept = next((kept for (arm, _, one), kept in outputs.items() if (arm, one) == (point.arm, split)), {})
    keys = point_key(point.method, point.settings), point_key(VANILLA, {})
    own, vanilla = (sum(map(loops, kept[key].texts)) if key in kept else 0 for key in keys)
    texts = f"{own} outputs of the recommended setting on {split} repeat themselves, {vanilla} of the large model alone"
    return [texts] if own > vanilla else []


# Further temperatures and test sets.


def temperature_points(
    task: str, sweeps: Mapping[tuple[str, float], Sequence[SweepRow]], pairs: Mapping[str, PairRecord]
) -> list[parts.TemperaturePoints]:
    """What each sweep measured at each further temperature, compared with vanilla at the same.

    Args:
        task: Its name, for errors.
        sweeps: Rows by arm and temperature.
        pairs: What each sweep recorded of its two models.

    Raises:
        InputError: a temperature lacks a measured vanilla row.
    """
    found = []
    for (arm, degree), rows in sweeps.items():
        own = [dataclasses.replace(row, split=CHOSEN_ON) for row in latest(rows) if row.split == split_at(degree)]
        swept, _ = points_of(task, {arm: own}, {arm: pairs[arm]})
        vanilla = next(row.value for row in own if isinstance(row, MeasuredRow) and row.method == VANILLA)
        points = [dataclasses.replace(point, chosen=None) for point in swept]
        found.append(parts.TemperaturePoints(arm=arm, temperature=degree, vanilla_quality=vanilla, points=points))
    return found


def named_test_sets(
    summary: Summary, names: Sequence[str], seeds: Seeds, further: Mapping[str, Seeds], outputs: Outputs
) -> list[parts.NamedTestSet]:
    """The test sets of a task, the main one first; none where the only one has no name.

    Each further one has Table 1 and the effects with its rows in place of test: the points are those that validation chose.

    Args:
        summary: With Table 1 and the arms, which are of the main set.
        names: Of all sets, the main one first.
        seeds: The sweeps; their rows of test are of the main set.
        further: For the name of every other set the sweeps with its rows alone.
        outputs: Of every drafter, by arm, seed and split.
    """
    found, counted = [], summary.alignment
    for name in names:
        if name == names[0]:
            split, vanilla, table = REPORTED_ON, summary.vanilla, summary.table
            results = summary.arms
        else:
            split, swept = f"{REPORTED_ON}.{name}", dict[tuple[str, int], Swept]()
            for key, (rows, pair) in seeds.items():
                kept = [row for row in rows if row.split == CHOSEN_ON]
                swept[key] = [*kept, *(dataclasses.replace(row, split=REPORTED_ON) for row in further[name][key][0])], pair
            first = {arm: latest(rows) for arm, (rows, _) in _of_first_seed(swept).items()}
            points, choices = points_of(summary.task, first, dict.fromkeys(ARMS, PairRecord(margins=summary.margins)))
            vanilla = models_alone(first)
            of_set = dataclasses.replace(summary, points=points, choices=choices, vanilla=vanilla)
            table = [{**row, "published": {}} for row in table_rows(parts.rounded(of_set))]
            results = arm_results(summary.task, swept)
        effects = [] if counted is None else counted_choices(split, results, outputs, counted.costs)
        examples = vanilla.large.test.examples if vanilla.large.test else None
        found.append(parts.NamedTestSet(name=name, split=split, examples=examples, table=table, effects=effects))
    return found
