"""BiLD's tables beyond its first, from what the sweeps measured (Kim et al., NeurIPS 2023): Tables 2 and 5, Figures 6 and 7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.decoding.method import SamplingSettings
from tasks.evaluation.report.formatting import CHOICE_NAMES
from tasks.evaluation.report.table_points import best, fastest_at, other_drafter, temperature, warning
from tasks.evaluation.results.bild_tables import EarlyExitRow, SampledRow, SizesRow
from tasks.evaluation.results.codec import Settings, joined
from tasks.evaluation.results.pair import ModelSizes
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.results.tables import PointFigures
from tasks.evaluation.selection import keeps_quality
from tasks.evaluation.settings import CHOICES
from tasks.paths import ARMS


def sizes_rows(summary: Summary) -> Iterator[SizesRow]:
    """Table 2: the decoders of the large model and of the small ones, which mostly have one shape."""
    sizes = {arm: summary.pairs.of(arm).sizes for arm in ARMS}
    large = next((one.large for one in sizes.values() if one and one.large), None)
    small = {arm: one.small for arm, one in sizes.items() if one and one.small}
    if large is not None:
        yield _sizes_row("large model", large)
    alike = len(set(small.values())) == 1
    for arm, one in small.items():
        yield _sizes_row("small model" if alike else f"small model, {arm}", one)
        if alike:
            return


def _sizes_row(label: str, sizes: ModelSizes) -> SizesRow:
    # What a token is multiplied with leaves out the keys and values of the source, and counts the head.
    weights = sizes.decoder_parameters - sizes.head_parameters + sizes.memory_parameters
    return joined(SizesRow, sizes, label=label, decoder_parameters=weights)


def sampled_rows(summary: Summary) -> Iterator[SampledRow]:
    """Table 5: vanilla, and BiLD where it is best, as chosen for no loss, and for one point; of a sweep that draws tokens."""
    drawn = [point for point in summary.timed_points(method="bild") if temperature(point) > 0]
    if not drawn:
        return
    nothing: Settings = {}
    alone = {"label": "vanilla large", "arm": "", "settings": nothing, "speedup": None, "speedup_interval": None}
    yield joined(SampledRow, _sampling(drawn[0]), summary.vanilla.large, **alone)
    chosen = {(one.arm, one.choice): point for one, point in summary.chosen_points() if one.method == "bild"}
    for arm in ARMS:
        found = {"BiLD, best": best([point for point in drawn if point.arm == arm])}
        found |= {f"BiLD, {CHOICE_NAMES[choice]}": chosen.get((arm, choice)) for choice in CHOICES}
        for label, point in found.items():
            if point is not None and temperature(point) > 0:
                words = f"{label}, {arm}{warning(summary, label, point)}"
                yield joined(SampledRow, _sampling(point), point, label=words)


def _sampling(point: TimedPoint) -> SamplingSettings:
    return point.sampling or SamplingSettings()


def early_exit_rows(summary: Summary) -> Iterator[EarlyExitRow]:
    """Figures 6 and 7: BiLD beside CALM at equal demands, at each quality of CALM's frontier, and at each of its speeds.

    BiLD stands there by what drafts for it: with `early_layer` both leave the same model early.
    """
    for arm in ARMS:
        calm, bild = summary.timed_points(arm, "calm"), summary.timed_points(arm, "bild")
        for proposer in dict.fromkeys(map(other_drafter, bild)) if calm else ():
            own = [point for point in bild if other_drafter(point) == proposer]
            where = f"{proposer and f'drafts: {proposer}, '}{arm}"
            for choice in CHOICES:
                margin = summary.margins.of(choice)
                yield _early_exit(f"{CHOICE_NAMES[choice]}, {where}", _keeping(calm, margin), _keeping(own, margin))
            for point in summary.front(arm, "calm"):
                yield _early_exit(f"as good as CALM, {where}", point, fastest_at(own, point.quality))
                fast = [one for one in own if one.speedup >= point.speedup]
                yield _early_exit(f"as fast as CALM, {where}", point, best(fast))


def _keeping(points: Sequence[TimedPoint], margin: float) -> TimedPoint | None:
    """The fastest point that was shown to lose less than the margin, as choices are made."""
    bounded = [(point, point.difference_bounds) for point in points]
    return fastest_at([point for point, bound in bounded if bound is not None and keeps_quality(bound.lower, margin)], 0.0)


def _early_exit(label: str, calm: TimedPoint | None, bild: TimedPoint | None) -> EarlyExitRow:
    return EarlyExitRow(
        label=label,
        calm=None if calm is None else joined(PointFigures, calm),
        bild=None if bild is None else joined(PointFigures, bild),
        quality_gain=None if calm is None or bild is None else bild.quality - calm.quality,
    )
