"""What a sweep measured by batch size, in words and as a table: where drafting stops paying, and the energy of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tasks.evaluation.report.formatting import NOTHING, method_name, settings_text
from tasks.evaluation.results.batch_timings import BatchTiming, BatchTimings
from tasks.evaluation.results.memory import ModelMemory
from tasks.evaluation.results.summary import Summary
from tasks.paths import DRAFTERS

NO_ENERGY = "not readable on this machine"


def timings_of(summary: Summary) -> dict[str, BatchTimings]:
    """By drafter what its sweep measured; sweeps that measured nothing by batch size are left out."""
    found = ((drafter, summary.pairs.of(drafter).batches) for drafter in DRAFTERS)
    return {drafter: timings for drafter, timings in found if timings is not None and timings.vanilla}


def point_name(point: BatchTiming, drafter: str) -> str:
    """A point with its drafter: `BiLD α_FB 0.6 α_RB 2 ≤ 10, aligned`."""
    return f"{method_name(point.method)} {settings_text(point.settings)}, {drafter}"


def batch_sentence(timings: BatchTimings) -> str:
    """From which batch size on drafting no longer pays."""
    if timings.error:
        return f"not measured: {timings.error}"
    if not timings.points:
        return "nothing was chosen that drafts"
    stops, fact = timings.stops_paying(), "faster in every round than vanilla at the same batch size"
    if stops is None:
        return f"drafting still pays at batch {timings.sizes[-1]}, the largest measured: a chosen point is {fact}"
    if stops == timings.sizes[0]:
        return f"drafting does not pay at any batch size: no chosen point is {fact}"
    return f"drafting stops paying at batch {stops}: from there on no chosen point is {fact}"


def paying_in_brief(timings: BatchTimings | None) -> str:
    """A clause on the batch sizes at which drafting pays; empty where that was not measured."""
    if timings is None or timings.error or not timings.points:
        return ""
    stops = timings.stops_paying()
    if stops is None:
        return f"drafting pays up to batch {timings.sizes[-1]}, the largest measured"
    paying = [size for size in timings.sizes if size < stops]
    if not paying:
        return "drafting pays at no batch size"
    return f"drafting pays at batch {paying[0]} only" if len(paying) == 1 else f"drafting pays up to batch {paying[-1]} only"


def energy_text(joules: float | None) -> str:
    """Energy of a text."""
    return NO_ENERGY if joules is None else f"{1000 * joules:.2f} mJ"


def batch_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: vanilla's throughput, then each point's speed-up, by batch size."""
    found = timings_of(summary)
    sizes = sorted({size for timings in found.values() for size in timings.sizes})
    rows: list[list[str]] = []
    for drafter, timings in found.items():
        own = {one.batch_size: f"{one.throughput:.2f}× of batch 1" for one in timings.vanilla}
        rows.append(_row(f"vanilla large, throughput ({drafter} sweep)", own, sizes, timings.vanilla[0].joules_per_text))
        for point in timings.by_point():
            cells = {one.batch_size: f"{one.speedup:.2f}× ({min(one.rounds):.2f} to {max(one.rounds):.2f})" for one in point}
            rows.append(_row(point_name(point[0], drafter), cells, sizes, point[0].joules_per_text))
    headings = ["point", *(f"batch {size}" for size in sizes), "energy of a text, batch 1"]
    if not _energy_known(found.values()):
        return headings[:-1], [row[:-1] for row in rows]
    return headings, rows


def _energy_known(timings: Iterable[BatchTimings]) -> bool:
    known = [one.joules_per_text for own in timings for one in own.vanilla]
    known += [one.joules_per_text for own in timings for one in own.points]
    return any(joules is not None for joules in known)


def batch_notes(summary: Summary) -> list[str]:
    """How to read the table, and its result for each sweep."""
    found = timings_of(summary)
    energy = "that of the whole processor package, all that runs on it included" if _energy_known(found.values()) else NO_ENERGY
    return [
        "Speed-up over vanilla at the same batch size: the median of the rounds (lowest to highest round).",
        "At batch 1 the fastest executor runs; larger batches run in the general loop, with Python between two model runs.",
        f"Energy is {energy}.",
        *(f"{drafter}: {batch_sentence(timings)}." for drafter, timings in found.items()),
    ]


def memory_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: the bytes of each model, and of its caches for one text of maximal length."""
    models: dict[str, ModelMemory] = {}
    for drafter in DRAFTERS:
        if memory := summary.pairs.of(drafter).memory:
            # The large model is the same in both sweeps.
            models |= {"large": memory.large, f"small, {drafter}": memory.small}
    rows = [[name, megabytes(one.weights), megabytes(one.cache)] for name, one in models.items()]
    return ["model", "weights", "caches of one text"], rows


def shared_weights_note(summary: Summary) -> str:
    """A sentence on the small models whose encoder is the large model's; empty where there is none."""
    sizes = {drafter: summary.pairs.of(drafter).sizes for drafter in DRAFTERS}
    shared = [drafter for drafter, one in sizes.items() if one is not None and one.shared_parameters]
    if not shared:
        return ""
    return f"The encoder that the large and the small model share ({', '.join(shared)}) is counted with the large one."


def memory_facts(summary: Summary, drafter: str) -> Iterator[tuple[str, str]]:
    """The same of one sweep as names and texts."""
    memory = summary.pairs.of(drafter).memory
    if memory is not None:
        lengths = f"a text of {memory.source_tokens} and {memory.target_tokens} tokens"
        for name, one in (("large", memory.large), ("small", memory.small)):
            sizes = summary.pairs.of(drafter).sizes
            besides = " besides the shared encoder" if name == "small" and sizes is not None and sizes.shared_parameters else ""
            yield (
                f"memory, {name} model",
                f"{megabytes(one.weights)} of weights{besides}, {megabytes(one.cache)} of caches for {lengths}",
            )


def megabytes(count: int) -> str:
    """Bytes as `1.25 MB`, a million bytes each."""
    return f"{count / 1e6:.2f} MB"


def _row(name: str, cells: dict[int, str], sizes: Sequence[int], joules: float | None) -> list[str]:
    return [name, *(cells.get(size, NOTHING) for size in sizes), energy_text(joules)]
