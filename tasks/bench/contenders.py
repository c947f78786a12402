"""The contenders of the benchmark, the settings that each is tried at, and the ratios formed between them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tasks.bench.baselines import assisted, generate
from tasks.bench.cases import LoadedCase
from tasks.bench.ctranslate import TranslatorProcess
from tasks.bench.timing import TimedWork, Work, timed_by
from tasks.decoding.settings import SpeculativeSettings, VanillaSettings

Settings = dict[str, TimedWork]
"""One contender: its work by the label of a setting; a label ends with the number of threads."""

STATIC = "static cache"
CACHES = {"dynamic cache": False, STATIC: True}
"""Caches of `generate`: label to whether it is preallocated."""
DRAFT_LENGTHS = (3, 5, 8)
RATIOS = {
    "vanilla_over_generate": ("vanilla", "generate"),
    "vanilla_over_ctranslate2": ("vanilla", "ctranslate2"),
    "drafter_step_over_generate": ("drafter", "drafter by generate"),
    "speculative_over_assisted": ("speculative", "assisted"),
    "speculative_over_vanilla": ("speculative", "vanilla"),
    "bild_over_vanilla": ("bild", "vanilla"),
    "bild_over_ctranslate2": ("bild", "ctranslate2"),
    "batched_over_generate": ("batched", "batched by generate"),
    "batched_over_ctranslate2": ("batched", "batched by ctranslate2"),
}
"""By name: our contender and the baseline."""


def thread_counts(threads: int) -> list[int]:
    """Thread counts that every contender is tried at: the requested number, and all cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({threads, cores})


def singles(loaded: LoadedCase, translators: Mapping[str, TranslatorProcess], counts: list[int]) -> dict[str, Settings]:
    """Contenders that decode one text at a time, end to end from source ids to output ids."""
    case, limit = loaded.case, loaded.case.limit

    def each(work: Work) -> Work:
        """Do the sources of a round one after the other."""
        return lambda round_index: [work(round_index * case.examples + offset) for offset in range(case.examples)]

    def here(method: str, settings: object) -> Work:
        return each(lambda index: loaded.here(method, settings, case.window(index, 1), limit))

    def by_generate(model: object, *, static: bool) -> Work:
        return each(lambda index: generate(model, case.window(index, 1), limit, static=static))

    def assisted_by(length: int | None) -> Work:
        return each(lambda index: assisted(loaded.large, loaded.small, case.window(index, 1)[0], limit, length))

    found = {
        "vanilla": _threaded({"": here("vanilla_large", VanillaSettings())}, counts),
        "generate": _threaded({name: by_generate(loaded.large, static=one) for name, one in CACHES.items()}, counts),
    }
    if translators:
        found["ctranslate2"] = _translated(loaded, translators, counts, batched=False)
    if case.small is None:
        return found
    found |= {
        "drafter": _threaded({"": here("vanilla_small", VanillaSettings())}, counts),
        "drafter by generate": _threaded({name: by_generate(loaded.small, static=one) for name, one in CACHES.items()}, counts),
        "speculative": _threaded(
            {f"draft length {one}": here("speculative", SpeculativeSettings(draft_length=one)) for one in DRAFT_LENGTHS}, counts
        ),
        "assisted": _threaded(
            {"draft length by its rules": assisted_by(None)}
            | {f"draft length {one}": assisted_by(one) for one in DRAFT_LENGTHS},
            counts,
        ),
    }
    if case.bild is not None:
        bild = each(lambda index: loaded.bild(case.window(index, 1), limit))
        found["bild"] = _threaded({"": bild}, counts)
    return found


def batches(loaded: LoadedCase, translators: Mapping[str, TranslatorProcess], counts: list[int]) -> dict[str, Settings]:
    """Contenders that decode many texts as one batch."""
    case, limit = loaded.case, loaded.case.batch_limit

    def by_generate(*, static: bool) -> Work:
        return lambda round_index: generate(loaded.large, case.window(round_index, case.batch), limit, static=static)

    found = {
        "batched": _threaded({"": lambda round_index: loaded.vanilla(case.window(round_index, case.batch), limit)}, counts),
        "batched by generate": _threaded({name: by_generate(static=one) for name, one in CACHES.items()}, counts),
    }
    if translators:
        found["batched by ctranslate2"] = _translated(loaded, translators, counts, batched=True)
    return found


def _threaded(runs: Mapping[str, Work], counts: list[int]) -> Settings:
    return {label(name, count): timed_by(run, threads=count) for name, run in runs.items() for count in counts}


def _translated(
    loaded: LoadedCase, translators: Mapping[str, TranslatorProcess], counts: list[int], *, batched: bool
) -> Settings:
    case = loaded.case
    count, limit = (case.batch, case.batch_limit) if batched else (case.examples, case.limit)

    def timed(process: TranslatorProcess, threads: int) -> TimedWork:
        return lambda round_index: process.run(
            case.converted, case.window(round_index, count), limit, threads, batched=batched
        )[0]

    return {label(name, one): timed(process, one) for name, process in translators.items() for one in counts}


def label(name: str, threads: int) -> str:
    """The label of a setting."""
    return ", ".join(part for part in (name, f"{threads} thread{'s' if threads > 1 else ''}") if part)


def threads_of(label: str) -> int:
    """The number of threads in a label."""
    return int(label.split(", ")[-1].split()[0])
