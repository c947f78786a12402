"""What a sweep measured by batch size, in words and as a table: where drafting stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.evaluation.report.formatting import NOTHING, method_name, settings_text
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, ModelMemory
from tasks.evaluation.results.summary import Summary
from tasks.paths import ARMS


def timings_of(summary: Summary) -> dict[str, BatchTimings]:
    """By drafter what its sweep measured; sweeps that measured nothing by batch size are left out."""
    found = ((arm, summary.pairs.of(arm).batches) for arm in ARMS)
    return {arm: timings for arm, timings in found if timings is not None and timings.vanilla}


def point_name(point: BatchTiming, arm: str) -> str:
    """A point with its drafter: `BiLD α_FB 0.6 α_RB 2 ≤ 10, aligned`."""
    return f"{method_name(point.method)} {settings_text(point.settings)}, {arm}"


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


def batch_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: vanilla's throughput, then each point's speed-up, by batch size."""
    found = timings_of(summary)
    sizes = sorted({size for timings in found.values() for size in timings.sizes})
    rows: list[list[str]] = []
    for arm, timings in found.items():
        own = {one.batch_size: f"{one.throughput:.2f}× of batch 1" for one in timings.vanilla}
        rows.append(_row(f"vanilla large, throughput ({arm} sweep)", own, sizes))
        for point in timings.by_point():
            cells = {one.batch_size: f"{one.speedup:.2f}× ({min(one.rounds):.2f} to {max(one.rounds):.2f})" for one in point}
            rows.append(_row(point_name(point[0], arm), cells, sizes))
    headings = ["point", *(f"batch {size}" for size in sizes)]
    return headings, rows


def batch_notes(summary: Summary) -> list[str]:
    """How to read the table, and its result for each sweep."""
    found = timings_of(summary)
    return [
        "Speed-up over vanilla at the same batch size: the median of the rounds (lowest to highest round).",
        "At batch 1 the fastest executor runs; larger batches run in the general loop, with Python between two model runs.",
        *(f"{arm}: {batch_sentence(timings)}." for arm, timings in found.items()),
    ]


def memory_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: the bytes of each model, and of its caches for one text of maximal length."""
    models: dict[str, ModelMemory] = {}
    for arm in ARMS:
        if memory := summary.pairs.of(arm).memory:
            # The large model is the same in both sweeps.
            models |= {"large": memory.large, f"small, {arm}": memory.small}
    rows = [[name, megabytes(one.weights), megabytes(one.cache)] for name, one in models.items()]
    return ["model", "weights", "caches of one text"], rows


def shared_weights_note(summary: Summary) -> str:
    """A sentence on the small models whose encoder is the large model's; empty where there is none."""
    sizes = {arm: summary.pairs.of(arm).sizes for arm in ARMS}
    shared = [arm for arm, one in sizes.items() if one is not None and one.shared_parameters]
    if not shared:
        return ""
    return f"The encoder that the large and the small model share ({', '.join(shared)}) is counted with the large one."


def memory_facts(summary: Summary, arm: str) -> Iterator[tuple[str, str]]:
    """The same of one sweep as names and texts."""
    memory = summary.pairs.of(arm).memory
    if memory is not None:
        lengths = f"a text of {memory.source_tokens} and {memory.target_tokens} tokens"
        for name, one in (("large", memory.large), ("small", memory.small)):
            sizes = summary.pairs.of(arm).sizes
            besides = " besides the shared encoder" if name == "small" and sizes is not None and sizes.shared_parameters else ""
            yield (
                f"memory, {name} model",
                f"{megabytes(one.weights)} of weights{besides}, {megabytes(one.cache)} of caches for {lengths}",
            )


def megabytes(count: int) -> str:
    """Bytes as `1.25 MB`, a million bytes each."""
    return f"{count / 1e6:.2f} MB"


def _row(name: str, cells: dict[int, str], sizes: Sequence[int]) -> list[str]:
    return [name, *(cells.get(size, NOTHING) for size in sizes)]
