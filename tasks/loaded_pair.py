"""The models of a task, loaded once for all points of a sweep; what is measured of them, and what the rows depend on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.config import Params, Task
from tasks.console import log, quieten_transformers
from tasks.decoding.batches import batch_for
from tasks.decoding.decoder import Rows
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.method import OF_LARGE, Pair, Request, SamplingSettings
from tasks.decoding.pair_folder import calibration_targets
from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.acceptance import Drafting, LargeTexts, measure_acceptance, write_texts
from tasks.evaluation.operations import sizes_of
from tasks.evaluation.results.pair import AcceptanceRate, PairSizes
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.sweep.clock import PointTimer
from tasks.evaluation.sweep.given_text import GivenTextTimer
from tasks.evaluation.sweep.grid import Drafter, SweepPoint
from tasks.evaluation.sweep.rows import OfLarge
from tasks.evaluation.sweep.run import Grids
from tasks.files import checksum
from tasks.fingerprint import code_of, fingerprint
from tasks.machine import MachineSettings, on_threads, processes_of_a_device, set_up
from tasks.models.layers import shared_parameters
from tasks.paths import TaskPaths


def require_composable(grid: Iterable[SweepPoint], pair: Pair, request: Request) -> None:
    """Check that the pair can run every point, before any is measured.

    Raises:
        InputError: a method does not fit the pair or the sampling.
    """
    for point in grid:
        try:
            METHODS[point.method].make(point.settings, pair, request)
        except InputError as error:
            raise InputError(f"sweep.grid asks for {point.method}: {error}") from None


@dataclass(frozen=True)
class LoadedPair:
    """The two models of a task, loaded for a sweep."""

    opened: DecodingPair
    pair: Pair
    """Its decoders, with the calibration set that drafters without a model read."""
    inputs: list[Path]
    """Files and folders whose content a row depends on."""


def load_for_sweep(
    params: Params, task: Task, paths: TaskPaths, drafter: Path, grid: Sequence[SweepPoint], beside: LoadedPair | None = None
) -> LoadedPair:
    """Load the models once for all points.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        drafter: The folder of the small model.
        grid: The points.
        beside: A loaded pair of another drafter, with which this one shares the large model.

    Raises:
        InputError: a model is missing, or the models do not fit each other or the task.
    """
    large = paths.model("large")
    other = None if beside is None else beside.opened
    loaded = load_pair(large=large, drafter=drafter, text=task.text, **params.machine.of_models(), beside=other)
    calibration = calibration_targets(grid, paths.calibration_set, large, task.text.max_target_tokens)
    # The calibration set counts even if no point drafts from it, so that rows stay valid when such a point is added.
    inputs = [drafter, large, paths.split(CHOSEN_ON), paths.split(REPORTED_ON), paths.calibration_set]
    pair = dataclasses.replace(loaded.decoders, calibration=calibration)
    return LoadedPair(loaded, pair, inputs)


def with_fitting_batch(task: Task, loaded: LoadedPair, machine: MachineSettings) -> Task:
    """Return the task with a `sweep.quality_batch` that fits the device where it is 0; the sweep's record then holds it."""
    models, sharing = list(loaded.opened.models.values()), processes_of_a_device(machine)
    batch = batch_for(task.sweep.quality_batch, "sweep.quality_batch", models, task.text, sharing)
    return task.model_copy(update={"sweep": dataclasses.replace(task.sweep, quality_batch=batch)})


@dataclass(frozen=True)
class Handed:
    """A file of pairs that a sweep has written for its own processes; being pickled, it is opened only as it was written."""

    file: Path
    sha256: str


_HANDED_BYTES = 1 << 28
"""Bytes of weights up to which pairs are written for other processes: the system may still store them when timing begins."""


def _runs_layers(point: SweepPoint) -> bool:
    """Whether a point needs the large model's layers or heads, which `transformers` runs."""
    return METHODS[point.method].t5_only or getattr(point.settings, "drafter", "small") in OF_LARGE


class LoadedPairs:
    """The pairs of all drafters of a task, opened when one is needed, and closed while another process times."""

    def __init__(self, load: Callable[[Drafter, LoadedPair | None], LoadedPair]) -> None:
        """Take what loads the pair of a drafter, beside another one."""
        self._load = load
        self._loaded: dict[Drafter, LoadedPair] = {}
        # What the large model gives by itself is the same for all drafters.
        self.outputs = defaultdict[float, OfLarge](dict)
        """By temperature."""
        self.large_texts: dict[SamplingSettings, LargeTexts] = {}
        """On which acceptance is measured."""
        self.agreeing_layers: list[int] | None = None
        """See `PairRecord`."""
        self.handed: tuple[Handed, Handed] | None = None
        """From what other processes open the pairs, in this order and reversed; None: they load them as this one does."""

    def of(self, drafter: Drafter) -> LoadedPair:
        """The pair of a drafter."""
        if drafter not in self._loaded:
            self._loaded[drafter] = self._load(drafter, next(iter(self._loaded.values()), None))
        return self._loaded[drafter]

    def hand_over(self, grids: Grids, file: Path) -> None:
        """Write the pairs for other processes, which then need not import `transformers`: that takes most of their start.

        They are not written for another runtime than the native one, for methods that run layers of the large model, and where
        there is much to write.
        """
        loaded = {drafter: self.of(drafter) for drafter in grids}
        models = [model for one in loaded.values() for model in one.opened.models.values()]
        weights = {id(weight): weight.nbytes for model in models for weight in model.parameters()}
        decoders = [decoder for one in loaded.values() for decoder in (one.pair.small, one.pair.large)]
        native = all(decoder.capabilities.native_loop is not None for decoder in decoders)
        if native and sum(weights.values()) <= _HANDED_BYTES and not any(map(_runs_layers, itertools.chain(*grids.values()))):
            file.parent.mkdir(parents=True, exist_ok=True)
            # `replace` leaves out what drafters have derived.
            found = [(drafter, dataclasses.replace(one.pair)) for drafter, one in loaded.items()]
            self.handed = _written(dict(found), file), _written(dict(found[::-1]), file.with_stem(f"{file.stem}-reversed"))

    def close(self) -> None:
        """Let go of all models, and of the memory that they take on a GPU."""
        if not self._loaded:
            return
        self._loaded.clear()
        gc.collect()
        torch.cuda.empty_cache()  # nothing without a GPU


def load_drafter(
    params: Params, task: Task, paths: TaskPaths, grids: Grids, drafter: Drafter, beside: LoadedPair | None
) -> LoadedPair:
    """Load the pair of one drafter."""
    return load_for_sweep(params, task, paths, paths.model(*drafter), grids[drafter], beside)


def _written(pairs: Mapping[Drafter, Pair], file: Path) -> Handed:
    torch.save(pairs, file)
    return Handed(file, checksum(file))


def point_timer(pairs: LoadedPairs, task: Task, grids: Grids) -> PointTimer:
    """What times the points of all drafters in this process."""
    loaded = {drafter: pairs.of(drafter) for drafter in grids}
    device = next(iter(loaded.values())).opened.device
    return _timer_of({drafter: one.pair for drafter, one in loaded.items()}, device, task)


def _timer_of(pairs: Mapping[Drafter, Pair], device: str, task: Task) -> PointTimer:
    kind = GivenTextTimer if metric_of(task.metric).name == PERPLEXITY else PointTimer
    return kind(pairs, task.sweep, device)


def open_timer(
    params: Params, task: Task, paths: TaskPaths, grids: Grids, handed: tuple[Handed, Handed] | None, number: int
) -> PointTimer:
    """The same in a process that was started for it, from the files of `LoadedPairs.hand_over` where there are some.

    Of two models of one shape the one that was opened first is some percent faster, all the time that a process lives. So every
    second process, by its number, opens them in reversed order.
    """
    if handed is not None:
        set_up(params.machine)
        return _timer_of(handed_pairs(handed[number % 2]), "cpu", task)
    quieten_transformers()
    pairs = LoadedPairs(functools.partial(load_drafter, params, task, paths, grids))
    return point_timer(pairs, task, dict(list(grids.items())[:: -1 if number % 2 else 1]))


@functools.cache
def handed_pairs(handed: Handed) -> dict[Drafter, Pair]:
    """In another process: the pairs of all drafters that `LoadedPairs.hand_over` wrote.

    Raises:
        InputError: the file is another one now.
    """
    if checksum(handed.file) != handed.sha256:
        fix = "run the sweep again, alone in its folder"
        raise InputError(f"{handed.file} is not what this sweep wrote for its processes; {fix}")
    # Weights are mapped from the file until they are packed.
    found: dict[Drafter, Pair] = torch.load(handed.file, mmap=True, weights_only=False)
    return found


def handed_pair(handed: Handed, drafter: Drafter) -> Pair:
    """One of them."""
    return handed_pairs(handed)[drafter]


def draftings(grid: Iterable[SweepPoint]) -> list[Drafting]:
    """Whose acceptance is measured: the small model's first, then that of each drafter and each lenience in the grid."""
    found = [Drafting()]
    for point in grid:
        drafter = getattr(point.settings, "drafter", "small")
        found += [Drafting(drafter), Drafting(drafter, getattr(point.settings, "lenience", 1.0))]
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def failures_named(batch: int) -> Iterator[None]:
    """Name in one line what ends decoding beside all methods: broken logits, or no memory.

    Raises:
        InputError: in place of a `RuntimeError`.
    """
    try:
        yield
    except RuntimeError as error:
        fix = f"train the models again or, where memory ran out, set sweep.quality_batch below {batch}"
        raise InputError(f"the models cannot decode the sources of validation: {error}; {fix}") from None


def measure_pair(
    loaded: LoadedPair,
    sources: Rows,
    request: Request,
    task: Task,
    machine: MachineSettings,
    grid: Sequence[SweepPoint],
    large_texts: dict[SamplingSettings, LargeTexts],
) -> tuple[list[AcceptanceRate], PairSizes]:
    """Acceptance rates of all that the grid drafts with, and sizes of the two models.

    `large_texts` keeps the texts of the large model for the pairs of further drafters.
    """
    sweep, wanted = task.sweep, draftings(grid)
    rates: list[AcceptanceRate] = []
    for sampling in (SamplingSettings(), SamplingSettings(temperature=1.0)):
        own, samples = dataclasses.replace(request, sampling=sampling), sweep.bootstrap_samples
        log.info("%s: acceptance on texts of the large model, temperature %g", CHOSEN_ON, sampling.temperature)
        with failures_named(sweep.quality_batch):
            if sampling not in large_texts:
                large_texts[sampling] = write_texts(loaded.pair, sources, own, sweep.quality_batch)
            # The workers have nothing else to do.
            with on_threads(max(min(machine.workers, os.cpu_count() or 1), torch.get_num_threads())):
                found = measure_acceptance(wanted, loaded.pair, sources, own, large_texts[sampling], samples)
        rates += found.values()
    sizes = {name: sizes_of(model, int8=machine.int8(name)) for name, model in loaded.opened.models.items()}
    shared = loaded.pair.shares_encoder
    return rates, PairSizes(
        **sizes,
        source_tokens=statistics.fmean(map(len, sources)),
        shares_encoder=shared,
        shared_parameters=shared_parameters(loaded.opened.models["small"], loaded.opened.models["large"]) if shared else 0,
    )


_PLANNING = {
    *("grid", "plan", "near", "sample", "seed_methods", "margins", "temperatures"),
    *("batch_sizes", "batch_examples", "agreeing_layers"),
}
"""Settings that select points or come after them, and do not change how a point is measured; its row stays valid.

Margins select points by bounds that the rows hold; their confidence changes the bounds and is part of the fingerprint.
"""


def worker_pair(params: Params, task: Task, paths: TaskPaths, drafter: Path, grid: Sequence[SweepPoint]) -> Pair:
    """What `load_for_sweep` loads, for a process that shares the work of one that has checked it."""
    return load_for_sweep(params, task, paths, drafter, grid).pair


def work_fingerprint(
    params: Params, task: Task, loaded: LoadedPair, origin: Mapping[str, str], drafters: Sequence[Path] = ()
) -> str:
    """The fingerprint of everything that a row depends on, the hardware included, since times belong to one machine.

    Args:
        params: The whole file.
        task: The task's part of it.
        loaded: The pair.
        origin: Its lineage, with the hardware.
        drafters: Folders of all drafters that are timed in turn with this one's: a row is not measured with others.
    """
    hardware = {name: value for name, value in origin.items() if name.startswith("host_")}
    measured_as = {name: value for name, value in vars(task.sweep).items() if name not in _PLANNING}
    how = {
        "confidence": task.sweep.margins.confidence,
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine.alone(),
        "ran on": [loaded.pair.described, hardware],
    }
    files = [*loaded.inputs, *code_of("tasks.sweep"), *drafters]
    return fingerprint(measured_as | how, files, ["decoding"])
