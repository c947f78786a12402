"""What the verdict rests on, a line for each question that a reader asks first: texts, models, measurement, seeds, outputs."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.evaluation.report.arms_text import alignment_in_brief, purpose_of, seed_sentence
from tasks.evaluation.report.batches import paying_in_brief
from tasks.evaluation.report.candidates import Candidate
from tasks.evaluation.report.headline import processor
from tasks.evaluation.report.selection import reported
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import OutputStatistics, TimedPoint
from tasks.evaluation.results.summary import Summary


def basis(summary: Summary, found: Candidate | None) -> dict[str, str]:
    """Name and text of each line, in the order in which they are read; what was not recorded is left out.

    Args:
        summary: with vanilla, points, pairs, arms and corpus.
        found: the point to deploy; None for the large model alone.
    """
    return {name: text for name, text in _lines(summary, found) if text}


def outputs_sentence(summary: Summary, point: TimedPoint) -> str:
    """Looping and cut-off outputs of a point beside vanilla's own on the same split; empty where they were not counted."""
    measured, split = reported(point)
    vanilla = summary.vanilla.large if split == summary.split else summary.vanilla.large.test
    if measured.outputs is None or not measured.examples:
        return ""
    count, differ = f"{measured.examples:,}", f"{measured.outputs.differs:,}"
    own = f"Of its {count} outputs on {split}, {differ} differ from the large model's; {_ends(measured.outputs)}"
    if vanilla is None or vanilla.outputs is None:
        return f"{own}."
    return f"{own}. Of the large model's own, {_ends(vanilla.outputs)}."


def _lines(summary: Summary, found: Candidate | None) -> Iterator[tuple[str, str]]:
    pair = summary.pairs.of(found.point.arm if found else "unaligned")
    yield "texts and models", "; ".join(filter(None, (summary.corpus, _models(pair))))
    yield "measured", _measured(summary, found, pair)
    if found is None:
        return
    purpose = purpose_of(found.point.method, found.choice)
    yield "seeds", seed_sentence(summary.arms, purpose, pair.seed)
    yield "outputs", outputs_sentence(summary, found.point)
    yield "why believe it", _why(found)
    limits = (alignment_in_brief(summary.arms, purpose), paying_in_brief(pair.batches), f"one processor ({processor(summary)})")
    yield "what would change it", "; ".join(filter(None, limits))


def _models(pair: PairRecord) -> str:
    if pair.sizes is None or pair.sizes.large is None or pair.sizes.small is None:
        return ""
    large, small = (_parameters(one.parameters) for one in (pair.sizes.large, pair.sizes.small))
    shared = pair.sizes.shared_parameters
    own = f", {_parameters(shared)} of them the large model's own (its encoder)" if shared else ""
    return f"large model of {large} parameters, small model of {small}{own}"


def _parameters(count: int) -> str:
    """`1.9 million`, `0.24 million`, `7.2 billion`: two significant digits."""
    scale, name = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    return f"{float(f'{count / scale:.2g}'):g} {name}"


def _measured(summary: Summary, found: Candidate | None, pair: PairRecord) -> str:
    """On how many texts quality and time were measured, and how."""
    measured, split = reported(found.point) if found else (summary.vanilla.large, summary.split)
    if not measured.examples or not measured.timed_examples:
        return ""
    rounds, threads = (pair.swept_with(name) for name in ("latency_rounds", "latency_threads"))
    how = [f"time on {measured.timed_examples:,} of them"]
    how += [f"{rounds} round{'s' if rounds != 1 else ''}"] if rounds else []
    how += ["batch 1"]
    how += ["one thread" if threads == 1 else f"{threads} threads"] if threads else []
    return f"quality on {measured.examples:,} texts of {split}; {', '.join(how)}"


def _why(found: Candidate) -> str:
    if found.status is None:
        return ""
    words = {"confirmed": "confirms", "open": "leaves open", "contradicted": "contradicts"}
    status, lossless = found.status, found.point.lossless
    quality = "" if status.quality is None or lossless else f", and {words[status.quality]} that it keeps its margin"
    speed = "" if status.speed is None else f"; test {words[status.speed]} that it is faster than the large model{quality}"
    return f"chosen on validation alone{speed}"


def _ends(counted: OutputStatistics) -> str:
    verb = "loops" if counted.looping == 1 else "loop"
    return f"{counted.looping} {verb} and {counted.cut_off} {'is' if counted.cut_off == 1 else 'are'} cut off"
