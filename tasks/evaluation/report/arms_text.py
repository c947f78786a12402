"""What alignment gives, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.evaluation.report.arms import NO_LOSS, ONE_POINT, PURPOSES, SPECULATIVE
from tasks.evaluation.report.formatting import interval_text, settings_text
from tasks.evaluation.report.marks import mark_of
from tasks.evaluation.results.summary import AlignmentEffect, ArmComparison, ArmPoint, ArmResult
from tasks.paths import ARMS

PURPOSE_NAMES = {
    SPECULATIVE: "speculative decoding",
    NO_LOSS: "BiLD chosen for no loss",
    ONE_POINT: "BiLD chosen for at most one point",
}
"""What a point is chosen for, as it stands in a sentence."""
_FINDINGS = {
    "helps": "alignment makes {what} {ratio} times as fast on test",
    "hurts": "alignment slows {what} down to {ratio} times its speed on test",
    "open": "whether alignment helps {what} is open ({ratio} times as fast on test)",
}


def effect_sentences(arms: ArmComparison) -> Iterator[str]:
    """What alignment changes beyond seeds and examples, a sentence for each purpose; nothing where no arms were compared."""
    for effect in arms.effects:
        seeds = len(effect.by_seed)
        over = f"over {seeds} seeds" if seeds > 1 else "with one seed, which proves nothing"
        ratio = f"{effect.mean:.2f}{interval_text(effect.interval)}"
        text = _FINDINGS[effect.finding].format(what=PURPOSE_NAMES[effect.purpose], ratio=ratio)
        yield f"Against drafters trained equally long on references, {text}, {over}."


def purpose_of(method: str, choice: str | None) -> str | None:
    """The purpose under which the arms compare such a point; None where they do not."""
    wanted = (method, choice or "no_loss")
    return next((purpose for purpose, known in PURPOSES.items() if known == wanted), None)


def seed_sentence(arms: ArmComparison, purpose: str | None, seed: int | None) -> str:
    """How far the speed-up of a choice varies over the seeds of both arms, and what alignment gives; empty for one seed."""
    effect = _effect(arms, purpose)
    if effect is None or len(effect.by_seed) < 2:
        return ""
    spans = []
    for arm in ARMS:
        own = [(one.speedup, one.quality_difference) for one in _points(arms, arm, purpose)]
        speeds, losses = zip(*own, strict=True)
        quality = f"{min(losses):+.2f} to {max(losses):+.2f} points"
        spans.append(f"{min(speeds):.2f} to {max(speeds):.2f}× ({quality}) {arm}")
    place = list(effect.by_seed).index(seed) + 1 if seed in effect.by_seed else None
    this = "" if place is None else f"this drafter is seed {place} of {len(effect.by_seed)}; "
    ratio = f"{effect.mean:.2f}{interval_text(effect.interval)}"
    result = {
        "open": f"aligned drafters are {ratio} times as fast: skipping alignment is not shown to cost anything",
        "helps": f"aligned drafters are {ratio} times as fast: alignment pays",
        "hurts": f"aligned drafters are {ratio} times as fast: do without alignment",
    }[effect.finding]
    return f"{this}over the seeds, chosen alike, {' and '.join(spans)} on test; {result}"


def alignment_in_brief(arms: ArmComparison, purpose: str | None) -> str:
    """A clause on whether alignment is shown to help; empty where nothing was compared."""
    effect = _effect(arms, purpose)
    words = {"open": "alignment is not shown to help", "helps": "alignment helps", "hurts": "alignment slows drafting down"}
    return "" if effect is None else words[effect.finding]


def _effect(arms: ArmComparison, purpose: str | None) -> AlignmentEffect | None:
    return next((one for one in arms.effects if one.purpose == purpose), None)


def _points(arms: ArmComparison, arm: str, purpose: str | None) -> list[ArmPoint]:
    own = (result for result in arms.results if result.arm == arm)
    return [point for result in own for point in result.points if point.purpose == purpose]


def arms_table(arms: ArmComparison) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: a row for each drafter, with its points on test, and a row for each effect."""
    headings = ["drafter", "seed", "steps", "target tokens", *PURPOSE_NAMES.values()]
    rows = [_drafter_row(result) for result in arms.results]
    if arms.effects:
        effects = {effect.purpose: effect for effect in arms.effects}
        cells = [_effect_cell(effects.get(purpose)) for purpose in PURPOSE_NAMES]
        rows.append(["aligned over unaligned", "all", "", "", *cells])
    return headings, rows


def _drafter_row(result: ArmResult) -> list[str]:
    training, points = result.training, {point.purpose: point for point in result.points}
    taken = ["", ""] if training is None else [str(training.steps), f"{training.target_tokens:,}"]
    return [result.arm, str(result.seed), *taken, *(_point_cell(points.get(purpose)) for purpose in PURPOSE_NAMES)]


def _point_cell(point: ArmPoint | None) -> str:
    if point is None:
        return "not swept"
    if point.settings is None:
        return "none: vanilla"
    speed = f"{point.speedup:.2f}×{interval_text(point.speedup_interval)}"
    quality = f"{point.quality_difference:+.2f}{interval_text(point.quality_difference_interval, '+')}"
    mark = mark_of(point.test, point.margin)
    warning = f", {mark.words}" if mark.kind == "contradicted" else ""
    return f"{speed}, {quality} ({settings_text(point.settings)}){warning}"


def _effect_cell(effect: AlignmentEffect | None) -> str:
    if effect is None:
        return ""
    return f"{effect.mean:.2f}{interval_text(effect.interval)}: {effect.finding}"
