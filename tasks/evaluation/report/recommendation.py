"""The recommendation: which operating point to deploy, what it gains and costs, what supports it and what would change it.

The candidates are the choices of validation that are faster than vanilla beyond noise: first those for no loss, then the
fastest lossless point, then those for one point of loss, each from the fastest on. The first is deployed unless test
contradicts its quality, or does not confirm that it is faster than vanilla. Whatever replaces it is picked by the test split as
well, so test has to confirm its quality too.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.decoding.method import SamplingSettings
from tasks.decoding.registry import METHODS
from tasks.evaluation.report import formatting
from tasks.evaluation.report.formatting import field_text, interval_text, mark_of, metric_name, point_text
from tasks.evaluation.report.tables import alignment_sentences, batch_sentence, clock_warning
from tasks.evaluation.results import summary as results
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import Measurements, TestStatus, TimedPoint
from tasks.evaluation.results.summary import PassedOver, Recommendation, Summary
from tasks.evaluation.scoring.quality import against_teacher
from tasks.evaluation.settings import CHOICES
from tasks.paths import ARMS, TaskPaths

_CHOICES = {"no_loss": "at no loss", "one_point": "within one point of vanilla"}
_YAML = {"inf": ".inf", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Candidate:
    """A point that may be deployed."""

    point: TimedPoint
    choice: str | None
    """What it was chosen for; None for a lossless point that is no choice."""
    status: TestStatus | None
    """What test says of it; None where it was not measured there."""
    first: bool
    """Whether no candidate was faster."""

    @property
    def held_to(self) -> str:
        """The choice whose margin it is held to."""
        return self.choice or CHOICES[0]


def find_candidate(summary: Summary) -> tuple[Candidate | None, list[PassedOver]]:
    """The point to deploy, None for vanilla large, and the candidates before it with what test says against them."""
    passed_over: list[PassedOver] = []
    for candidate in _candidates(summary):
        if (reason := _objection(summary, candidate)) is None:
            return candidate, passed_over
        passed_over.append(PassedOver(point=summary.index_of(candidate.point), choice=candidate.held_to, reason=reason))
    return None, passed_over


def _candidates(summary: Summary) -> Iterator[Candidate]:
    groups: list[tuple[str | None, list[TimedPoint]]] = [(choice, results.chosen(summary, choice)) for choice in CHOICES]
    lossless = results.fastest_lossless(summary)
    groups.insert(1, (None, [] if lossless is None else [lossless]))
    seen = set[int]()
    for choice, points in groups:
        # The fastest first, of equal ones the better.
        for point in sorted(filter(results.is_faster, points), key=lambda point: (-point.speedup, -point.quality)):
            if id(point) not in seen:
                status = results.test_status(point.test, summary.margins.of(choice or CHOICES[0]))
                yield Candidate(point, choice, status, first=not seen)
                seen.add(id(point))


def _objection(summary: Summary, candidate: Candidate) -> str | None:
    """A sentence on what the test split says against a candidate; None if it may be deployed."""
    status, excused = candidate.status, candidate.first or candidate.point.lossless
    # Test picks what replaces the first, so it has to confirm its quality.
    refused = ("contradicted",) if excused else ("contradicted", "open")
    if excused if status is None else status.speed not in ("contradicted", "open") and status.quality not in refused:
        return None
    what, words = point_text(candidate.point), mark_of(status, summary.margins.of(candidate.held_to)).words
    return f"{what[0].upper()}{what[1:]} is faster on validation; on test it is {words}."


def recommend(summary: Summary, warnings: Sequence[str] = ()) -> Recommendation:
    """The recommendation for a task.

    Args:
        summary: With points, choices, vanilla, arms and pairs; its own recommendation is not read.
        warnings: Of the stages before the sweep.
    """
    # What a sweep found beside its points: a baseline that flatters speed-ups.
    costs = (summary.pairs[arm].costs for arm in ARMS)
    flattering = dict.fromkeys(one.baseline_warning for one in costs if one is not None and one.baseline_warning)
    warned = [*warnings, *flattering]
    if reasons := reasons_against(summary):
        return Recommendation(
            headline="These models support no recommendation: the large model is not shown to beat something cheaper, so a "
            "speed-up over it is worth nothing.",
            text=f"On validation, {'; '.join(reasons)}. No point of the sweeps is recommended.",
            changes=[
                "Look at the large model's outputs (on the page, and in its card). Train it further (`finetune.large.steps`) "
                "while its validation loss falls, or on more data, or start from a published one (`models.large.pretrained`); "
                "then run the pipeline again."
            ],
            warnings=[one for one in warned if one not in reasons],
            against=reasons,
        )
    found, passed_over = find_candidate(summary)
    objections = [one.reason for one in passed_over]
    nothing = "No method beats the vanilla large model on validation: keep it."
    if objections:
        nothing = "No choice of the validation split holds on test: keep the vanilla large model."
    sentences = [nothing] if found is None else [*_deploy(summary, found)]
    return Recommendation(
        point=None if found is None else summary.index_of(found.point),
        choice=None if found is None else found.choice,
        test=None if found is None else found.status,
        passed_over=passed_over,
        headline=clock_warning(summary) or headline(summary, found),
        warnings=warned,
        basis={name: text for name, text in _basis(summary, found) if text},
        text=" ".join([*sentences, *objections]),
        evidence=list(_evidence(summary, found)),
        changes=list(_conditions(summary, found)),
    )


def reasons_against(summary: Summary) -> list[str]:
    """What makes any speed-up over this large model worthless, a clause each: it is no better than trivial outputs or than a
    small model alone on validation."""
    checks = [check for arm in ARMS if (check := summary.pairs[arm].outputs) is not None]
    found = dict.fromkeys(clause for check in checks for clause in against_teacher(check))
    for arm, small in summary.vanilla.small_models():
        interval = small.quality_difference_interval
        if interval is not None and interval[1] >= 0:
            difference = f"{small.quality - summary.vanilla.large.quality:+.2f}{interval_text(interval, '+')}"
            clause = f"the large model is not shown to beat the {arm} small model alone, which is at {difference}"
            found[f"{clause} {metric_name(summary.metric)} points of it"] = None
    return list(found)


def headline(summary: Summary, found: Candidate | None) -> str:
    """One line for a reader who reads no other: what to deploy, how fast it is, what it costs, and on which processor."""
    where = f"{processor(summary)}, one text at a time"
    if found is None:
        ms = _milliseconds((summary.vanilla.large.test or summary.vanilla.large).latency_ms)
        return f"Keep the large model alone: no tested setting is reliably faster at equal quality ({where}; {ms} for a text)."
    measured, split = results.reported(found.point)
    interval = interval_text(measured.speedup_interval)
    first = point_text(found.point).partition(" (")[0]
    times = f"{_milliseconds(measured.latency_ms)} instead of {_milliseconds(measured.latency_ms * measured.speedup)}"
    cost = cost_text(measured, summary.metric, lossless=found.point.lossless)
    speed = f"{measured.speedup:.2f}×{interval} as fast as the large model alone on {split} ({where}; {times})"
    return f"Deploy {first}: {speed}; {cost}."


def processor(summary: Summary) -> str:
    """The hardware that the sweeps name."""
    names = (pair.origin("host_gpu") or pair.origin("host_cpu") for pair in summary.pairs.values())
    return next(filter(None, names), "processor not recorded")


def _milliseconds(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} ms"


def unit_of(metric: str) -> str:
    """What a loss is counted in: `BLEU`, `points of exact match`, `points of perplexity`."""
    name = metric_name(metric).removeprefix("−")
    return name if name[0].isupper() else f"points of {name}"


def cost_text(measured: Measurements, metric: str, *, lossless: bool) -> str:
    """What a point costs in quality, as a clause: `no measurable loss of quality (−0.19 BLEU [−0.44, +0.08])`."""
    difference, interval = measured.quality_difference, measured.quality_difference_interval
    if lossless:
        return "the output is the large model's own"
    if difference is None:
        return "its quality was not compared"
    shown = f"{difference:+.2f} {unit_of(metric)}{interval_text(interval, '+')}"
    if interval is None:
        return f"quality differs by {shown}; its noise was not measured"
    if interval[0] <= 0 <= interval[1]:
        return f"no measurable {'loss' if difference <= 0 else 'change'} of quality ({shown})"
    return f"quality {'falls' if difference < 0 else 'rises'} ({shown})"


def _deploy(summary: Summary, found: Candidate) -> Iterator[str]:
    """What to deploy, then what the split that played no part in the choice says of it, then what validation says."""
    point, margin = found.point, summary.margins.of(found.held_to)
    if found.choice == "one_point" and found.first:
        yield "No timed setting within the no-loss margin is shown to beat the large model."
    yield f"Deploy {point_text(point)}."
    if point.lossless:
        yield "Its output is the large model's own (in greedy decoding; when sampling, the same distribution)."
    if point.test is None:
        yield "Not measured on test: these validation numbers were used to choose it, so they are optimistic."
    elif not point.lossless:
        yield f"On test the choice is {mark_of(found.status, margin).words}."
    rank = "timed setting" if found.first else "timed setting of its method"
    why = "the fastest lossless setting" if found.choice is None else f"the fastest {rank} {_CHOICES[found.choice]}"
    gives = f"{field_text(point, 'speedup')} as fast as the large model alone"
    yield f"Validation chose it as {why}: {gives}, at {formatting.quality_text(point, summary.metric)}."
    bounds = point.difference_bounds
    if found.choice is not None and bounds is not None and not point.lossless:
        yield (
            f"With {summary.margins.confidence:.0%} confidence it loses less than {max(-bounds.lower, 0.0):.2f} points there, "
            f"a bound that holds for all settings of both arms at once; the margin is {margin:g}."
        )


def _basis(summary: Summary, found: Candidate | None) -> Iterator[tuple[str, str]]:
    """What the verdict rests on, a line for each question that a reader asks first; texts are empty where not recorded."""
    pair = summary.pairs[found.point.arm if found else "unaligned"]
    yield "texts and models", "; ".join(filter(None, (summary.corpus, _models(pair))))
    measured, split = results.reported(found.point) if found else (summary.vanilla.large, summary.split)
    if measured.examples and measured.timed_examples:
        large = f"the large model has {summary.vanilla.large.quality:.2f} {unit_of(summary.metric)} on {summary.split}"
        how = [f"quality on {measured.examples:,} texts of {split}; time on {measured.timed_examples:,} of them"]
        threads = field_text(pair, "lineage.settings.sweep.latency_threads")
        for number, unit in ((str(measured.timed_rounds), "round"), (threads, "thread")):
            how += [f"{number} {unit}{'s' if number != '1' else ''}"] if number not in ("0", formatting.NOTHING) else []
        yield "measured", f"{', '.join([*how, 'batch 1'])}; {large}"
    point = found.point if found else next(iter(summary.points), None)
    if point is not None and point.sampling is not None and not point.sampling.greedy:
        yield (
            "tokens",
            f"{_drawn(point.sampling, pair)}; gains and losses are over the large model drawn so too, not its greedy output",
        )
    if found is not None:
        seeds = sorted({one.seed for one in summary.arms})
        several = pair.seed in seeds and len(seeds) > 1
        yield "seeds", f"trained: {', '.join(map(str, seeds))}; timed and to deploy: {pair.seed}" if several else ""


def _drawn(sampling: SamplingSettings, pair: PairRecord) -> str:
    """How tokens are drawn, and how many outputs of each text."""
    how = [f"drawn at temperature {sampling.temperature:g}"]
    how += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    how += [f"nucleus {sampling.top_p:g}"] if sampling.top_p < 1 else []
    samples = field_text(pair, "lineage.settings.sweep.samples")
    how += [f"{samples} outputs of each text"] if samples not in ("1", formatting.NOTHING) else []
    own = field_text(pair, "lineage.settings.sweep.drafter_sampling.temperature")
    how += [f"drafts at temperature {own}, which generate and serve do not do"] if own != formatting.NOTHING else []
    return ", ".join(how)


def _models(pair: PairRecord) -> str:
    sizes = pair.sizes
    if sizes is None or sizes.large is None or sizes.small is None:
        return ""
    numbers = (sizes.large.parameters, sizes.small.parameters, sizes.shared_parameters)
    large, small, shared = map(formatting.parameters_text, numbers)
    own = f", {shared} of them the large model's own (its encoder)" if sizes.shared_parameters else ""
    return f"large model of {large} parameters, small model of {small}{own}"


def _evidence(summary: Summary, found: Candidate | None) -> Iterator[str]:
    """What alignment gives, why the choice may differ from it, and what was compared."""
    yield from alignment_sentences(summary)
    counted = None if summary.alignment is None else summary.alignment.counted
    favoured = None if counted is None else {"helps": "aligned", "hurts": "unaligned"}.get(counted.finding)
    if counted is not None and found is not None and favoured not in (None, found.point.arm):
        choice = "the choice, with one drafter seed, is between the fastest settings of all methods"
        yield f"That alignment {counted.finding} is about BiLD over all settings and seeds; {choice}."
    points, timed = len(summary.points), len(summary.timed_points())
    counts = f"The choice was among {timed} timed settings of {points}; counts use all of BiLD and speculative decoding."
    yield counts if points else "Nothing was measured but the models alone."


def _conditions(summary: Summary, found: Candidate | None) -> Iterator[str]:
    """What else was measured under: batches and the machine."""
    arm = "unaligned" if found is None else found.point.arm
    pair = summary.pairs[arm]
    if pair.batches is not None:
        yield f"By batch size, with the {arm} drafter on test, {batch_sentence(pair.batches)}."
    yield "Times are of this machine: on other hardware the relative costs of the models' steps differ; rerun the sweep there."


def configuration(summary: Summary, point: TimedPoint | None) -> list[str]:
    """The models' folders and the settings, as lines of a configuration file; of the large model alone without a point."""
    paths = TaskPaths(summary.task)
    lines = [f"large_model: {paths.model('large')}"]
    if point is None:
        return [*lines, "method: vanilla_large"]
    if point.drafter == "small":
        lines.append(f"small_model: {paths.model(point.arm, summary.pairs[point.arm].seed)}")
    # A switch that is off is the default of every method.
    named = {name: value for name, value in point.settings.items() if value is not False}
    return [*lines, f"method: {point.method}", *(f"{name}: {_YAML.get(str(value), value)}" for name, value in named.items())]


def explained(point: TimedPoint) -> list[str]:
    """The method and the drafter in a sentence each, then the description of each setting that is not switched off."""
    words = formatting.packaged("tables.yaml")["explained"]
    names = [point.method, *([point.arm] if point.drafter == "small" else [])]
    found = [words[name] for name in names if name in words]
    method = METHODS.get(point.method)
    fields = () if method is None else dataclasses.fields(method.settings)
    described = {one.name: str(one.metadata.get("description", "")) for one in fields}
    for name, value in point.settings.items():
        if value is not False and (name, value) != ("drafter", "small"):
            shown = "" if value is True else f" = {str(value).replace('inf', '∞')}"
            found.append(f"{name}{shown}: {described.get(name, 'see docs/settings.md')}")
    return found


def as_lines(summary: Summary, width: int = 100_000) -> str:
    """The recommendation as text: its first line, the paragraph, the configuration, its grounds, and what would change it.

    Args:
        summary: Finished.
        width: Most characters in a line.
    """
    found = summary.recommendation

    def listed(texts: list[str]) -> list[str]:
        return [*(textwrap.fill(f"- {text}", width, subsequent_indent="  ") for text in texts), *([""] if texts else [])]

    lines = [*textwrap.wrap(found.headline, width), "", *listed([f"warning: {text}" for text in found.warnings])]
    lines += listed([f"{name}: {text}" for name, text in found.basis.items()])
    lines += [*textwrap.wrap(found.text, width), ""]
    if not found.against:
        settings = configuration(summary, summary.recommended)
        lines += ["The configuration to deploy:", "", *(f"    {line}" for line in settings), ""]
        lines += [] if summary.recommended is None else listed(explained(summary.recommended))
    for title, sentences in (("Why believe it:", found.evidence), ("What would change this choice:", found.changes)):
        lines += [title, "", *listed(sentences)] if sentences else []
    return "\n".join(lines).rstrip() + "\n"
