"""Stage `calibrate`: publish the large model's outputs for the training inputs as a data set (BiLD, section 3.5.1).

`python -m tasks.calibrate --task translation`
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from tasks.alignment.calibration_set import EXAMPLES, FAULTS, Provenance, Shards, publish
from tasks.alignment.labelling import InputSet, Labeller, Shard, TopLogitsPredictor, input_set
from tasks.alignment.settings import CalibrateSettings
from tasks.config import Params, Task, load, task_parser
from tasks.console import log, progress
from tasks.corpora.example import Example, read_jsonl
from tasks.decoding.batches import batch_for
from tasks.decoding.decoder import Runtime
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError, stage, writing
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import OutputCheck, against_teacher, check_outputs, described, length_warning
from tasks.files import partial_path
from tasks.fingerprint import code_of, fingerprint
from tasks.locks import folder_lock, working_lock
from tasks.machine import MachineSettings, processes_of_a_device, set_up, worker_count
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_lengths, vocabulary_size
from tasks.models.settings import TextSettings
from tasks.models.spread import places_of
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.workers import Workers, shared


def sets_of(paths: TaskPaths, settings: CalibrateSettings) -> list[InputSet]:
    """Return the inputs to label: the held-out ones once each, then the training inputs (or a fraction), and the unlabelled."""
    held_out = input_set(paths.held_out_calibration.stem, [paths.split("validation")])
    drawn = (paths.split("train"), settings.fraction, settings.seed)
    name, more = paths.calibration_set.stem, [paths.unlabelled]
    return [held_out, input_set(name, more, drawn, samples=settings.samples, first=len(held_out))]


@dataclass(frozen=True)
class ShardLabelling:
    """Labels a shard, with some outputs for each input, and saves it: what a killed run has finished stays."""

    labeller: Labeller
    shards: Shards
    advance: Callable[[int], object] = lambda _: None
    """Called with the number of outputs of each finished batch."""

    def __call__(self, unit: tuple[Shard, int]) -> None:
        shard, samples = unit
        self.shards.write(shard.name, self.labeller.label(shard.examples, shard.first, samples, self.advance))


def label_all(
    here: ShardLabelling, sets: list[InputSet], size: int, processes: int, opens: Callable[[int], ShardLabelling]
) -> dict[str, list[str]]:
    """Label the shards that no earlier run has finished; return the names of the shards of each set.

    Args:
        here: Labels in this process.
        sets: The inputs.
        size: Inputs of a shard.
        processes: How many work, this one among them.
        opens: Opens the same in a further process, on so many threads; picklable.
    """
    outputs = {name: count * one.samples for one in sets for name, count in one.sizes(size).items()}
    missing = {name: count for name, count in outputs.items() if not here.shards.has(name)}
    units = ((shard, one.samples) for one in sets for shard in one.shards(size) if shard.name in missing)
    processes, total = min(processes, len(missing)), sum(outputs.values())
    initial = total - sum(missing.values())
    with progress(total=total, initial=initial, desc="calibrate", unit="example", mininterval=2.0) as bar:
        label = dataclasses.replace(here, advance=bar.update)
        if processes < 2:
            for unit in units:
                label(unit)
        else:
            threads = max(1, torch.get_num_threads() // processes)
            with contextlib.closing(Workers()) as workers:
                submit = workers.submit_to(processes, functools.partial(opens, threads))
                shared(list(units), label, submit, lambda unit: bar.update(missing[unit[0].name]), threads)
    return {one.name: list(one.sizes(size)) for one in sets}


def open_labelling(
    paths: TaskPaths, machine: MachineSettings, text: TextSettings, settings: CalibrateSettings, folder: Path, threads: int
) -> ShardLabelling:
    """Open the large model in a further process, on `threads` threads, to label shards of the work in `folder`."""
    labeller, _ = open_labeller(paths, machine, text, settings)
    torch.set_num_threads(threads)
    return ShardLabelling(labeller, Shards(folder))


def open_labeller(
    paths: TaskPaths, machine: MachineSettings, text: TextSettings, settings: CalibrateSettings
) -> tuple[Labeller, dict[str, str]]:
    """Open the large model of a task for labelling, in batches that fit; also return its provenance.

    Raises:
        InputError: the model is missing, or does not fit the machine or the settings.
    """
    device, dtype = set_up(machine)
    folder = paths.model("large")
    tokenizer, model = load_tokenizer(folder), load_model(folder, device, dtype, spread=True)
    check_lengths(model, "large", text)
    vocabulary = vocabulary_size(tokenizer, model)
    batch = batch_for(settings.batch_size, "calibrate.batch_size", [model], text, processes_of_a_device(machine))
    settings = dataclasses.replace(settings, batch_size=batch)
    decoder = open_decoder(model, "large", vocabulary, Runtime(machine.runtime, machine.dtype == "int8"))
    predictor = None
    if settings.top_logits:
        predictor = TopLogitsPredictor(model, tokenizer, text, vocabulary, settings.top_logits, settings.batch_size)
    known = {
        "folder": folder.as_posix(),
        "fingerprint": fingerprint({}, [folder], []),
        "type": model.config.model_type,
        "device": device.type,
        "runtime": getattr(decoder, "described", type(decoder).__name__),
        "spread_over": places_of(model),
    }
    return Labeller(decoder, tokenizer, text, settings, predictor), known


def report_counts(task: str, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Log the number of kept outputs; return a clause where some were dropped, a warning."""
    kept = ", ".join(f"{one['kept']} of {one['outputs']} outputs for {name}" for name, one in counts.items())
    log.info("%s: %s kept, %d tokens", task, kept, sum(one["tokens"] for one in counts.values()))
    dropped = [f"{_dropped(one)} for {name}" for name, one in counts.items() if any(one[fault] for fault in FAULTS)]
    return [f"calibrate dropped {' and '.join(dropped)}"] if dropped else []


def _dropped(counts: Mapping[str, int]) -> str:
    """Return the number and share of a set's unfit outputs, with the number of each kind."""
    unfit = sum(counts[fault] for fault in FAULTS)
    kinds = ", ".join(f"{counts[fault]} {fault.replace('_', '-')}" for fault in FAULTS if counts[fault])
    return f"{unfit} of {counts['outputs']} outputs ({unfit / counts['outputs']:.2%}: {kinds})"


def check_held_out(paths: TaskPaths, shards: Shards, names: list[str], metric: str) -> OutputCheck | None:
    """Compare the kept outputs for the held-out inputs with trivial baselines.

    None where none of them has a reference, or where the metric is not of outputs.
    """
    if metric_of(metric).name == PERPLEXITY:
        return None
    references = {example.source: example.references for example in read_jsonl(paths.split("validation"))}
    kept = [example for name in names for example in read_jsonl(shards.file(name, EXAMPLES)) if references[example.source]]
    if not kept:
        return None
    examples = [Example(example.source, references[example.source]) for example in kept]
    return check_outputs([example.references[0] for example in kept], examples, metric)


def report_check(task: str, check: OutputCheck, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Log how the outputs compare with trivial baselines; return warnings of a large model that nothing can be learned from."""
    distinct = ", ".join(f"{one['distinct']} distinct outputs of {one['kept']} for {name}" for name, one in counts.items())
    log.info("%s: %s; %s", task, distinct, described(check))
    return [*against_teacher(check), *length_warning(check)]


def main() -> None:
    """Label the training inputs and the held-out validation inputs, and publish both."""
    arguments = task_parser(__doc__).parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    with folder_lock(paths.resume("calibrate")):
        calibrate(params, task, paths)


def calibrate(params: Params, task: Task, paths: TaskPaths) -> None:
    """Label the inputs of a task with its large model, resuming an interrupted run, and publish what was kept."""
    settings, files = task.calibrate, [paths.split("validation"), paths.split("train"), paths.unlabelled]
    with working_lock(set_up(params.machine)[0].type):
        paths.forget_metrics()
        labeller, model = open_labeller(paths, params.machine, task.text, settings)
        settings = labeller.settings
        sets = sets_of(paths, settings)
        work = {"settings": settings, "text": task.text, "model": model, "dtype": params.machine.dtype}
        name = fingerprint(work, [*files, paths.model("large"), *code_of("tasks.calibrate")], [])
        folder = paths.resume("calibrate") / name
        shards, opens = Shards(folder), functools.partial(open_labelling, paths, params.machine, task.text, settings, folder)
        # A model that is spread over the cards takes all of them.
        processes = 1 if model["spread_over"] else worker_count(params.machine)
        named = label_all(ShardLabelling(labeller, shards), sets, settings.shard, processes, opens)
    counts = {name: shards.total_counts(parts) for name, parts in named.items()}
    warnings = report_counts(paths.task, counts)
    for name, one in counts.items():
        if not one["kept"]:
            raise InputError(f"no output of {paths.model('large')} for {name} is fit to learn from; train it for more steps")
    check = check_held_out(paths, shards, named[paths.held_out_calibration.stem], task.metric)
    if check is not None:
        warnings += report_check(paths.task, check, counts)
    for clause in warnings:
        log.warning("%s: %s", paths.task, clause)
    provenance = Provenance(
        task=paths.task,
        model=model,
        settings=settings,
        text=task.text,
        inputs={file.as_posix(): fingerprint({}, [file], []) for file in files},
        versions={name: version(name) for name in ("torch", "transformers", "tokenizers")},
        check=check,
        warnings=warnings,
    )
    with writing("the calibration set", partial_path(paths.calibration), lambda: "only publishes it"):
        publish(paths.calibration, shards, named, provenance)
    shards.remove()


if __name__ == "__main__":
    with stage():
        main()
