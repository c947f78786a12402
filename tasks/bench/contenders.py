"""Who runs against whom: each contender with the settings that it is tried at, and the ratios that are made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tasks.bench.baselines import assisted, generate
from tasks.bench.cases import Opened
from tasks.bench.ctranslate import Translating
from tasks.bench.timing import Run, Timed, clocked
from tasks.decoding.settings import SpeculativeSettings, VanillaSettings

Settings = dict[str, Timed]
"""A contender: its settings by label; a label ends with the number of threads."""

STATIC = "static cache"
CACHES = {"dynamic cache": False, STATIC: True}
"""Of `generate`, and whether it is preallocated."""
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
"""Ours and theirs."""


def thread_counts(threads: int) -> list[int]:
    """Those that every contender is tried with: the number asked for, and all cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({threads, cores})


def singles(opened: Opened, translators: Mapping[str, Translating], counts: list[int]) -> dict[str, Settings]:
    """One text at a time, end to end: source ids to output ids."""
    case, limit = opened.case, opened.case.limit

    def each(work: Run) -> Run:
        """The sources of a turn one after the other."""
        return lambda turn: [work(turn * case.examples + offset) for offset in range(case.examples)]

    def here(method: str, settings: object) -> Run:
        return each(lambda place: opened.here(method, settings, case.window(place, 1), limit))

    def there(model: object, *, static: bool) -> Run:
        return each(lambda place: generate(model, case.window(place, 1), limit, static=static))

    def aided(length: int | None) -> Run:
        return each(lambda place: assisted(opened.large, opened.small, case.window(place, 1)[0], limit, length))

    found = {
        "vanilla": _threaded({"": here("vanilla_large", VanillaSettings())}, counts),
        "generate": _threaded({name: there(opened.large, static=one) for name, one in CACHES.items()}, counts),
    }
    if translators:
        found["ctranslate2"] = _translated(opened, translators, counts, batched=False)
    if case.small is None:
        return found
    found |= {
        "drafter": _threaded({"": here("vanilla_small", VanillaSettings())}, counts),
        "drafter by generate": _threaded({name: there(opened.small, static=one) for name, one in CACHES.items()}, counts),
        "speculative": _threaded(
            {f"draft length {one}": here("speculative", SpeculativeSettings(draft_length=one)) for one in DRAFT_LENGTHS}, counts
        ),
        "assisted": _threaded(
            {"draft length by its rules": aided(None)} | {f"draft length {one}": aided(one) for one in DRAFT_LENGTHS}, counts
        ),
    }
    if case.bild is not None:
        bild = each(lambda place: opened.bild(case.window(place, 1), limit))
        found["bild"] = _threaded({"": bild}, counts)
    return found


def batches(opened: Opened, translators: Mapping[str, Translating], counts: list[int]) -> dict[str, Settings]:
    """Many texts side by side."""
    case, limit = opened.case, opened.case.batch_limit

    def there(*, static: bool) -> Run:
        return lambda turn: generate(opened.large, case.window(turn, case.batch), limit, static=static)

    found = {
        "batched": _threaded({"": lambda turn: opened.vanilla(case.window(turn, case.batch), limit)}, counts),
        "batched by generate": _threaded({name: there(static=one) for name, one in CACHES.items()}, counts),
    }
    if translators:
        found["batched by ctranslate2"] = _translated(opened, translators, counts, batched=True)
    return found


def _threaded(runs: Mapping[str, Run], counts: list[int]) -> Settings:
    return {label(name, count): clocked(run, threads=count) for name, run in runs.items() for count in counts}


def _translated(opened: Opened, translators: Mapping[str, Translating], counts: list[int], *, batched: bool) -> Settings:
    case = opened.case
    count, limit = (case.batch, case.batch_limit) if batched else (case.examples, case.limit)

    def timed(process: Translating, threads: int) -> Timed:
        return lambda turn: process.run(case.converted, case.window(turn, count), limit, threads, batched=batched)[0]

    return {label(name, one): timed(process, one) for name, process in translators.items() for one in counts}


def label(name: str, threads: int) -> str:
    """A setting in words."""
    return ", ".join(part for part in (name, f"{threads} thread{'s' if threads > 1 else ''}") if part)
