"""A training stage from its settings and files to a saved, recorded model: what finetune, align and control have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks import tracking
from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import OutputCheck, against_teacher, check_outputs, described, length_warning
from tasks.files import atomic_write, checksum, is_sealed, partial_path, remove, warn_of_damage
from tasks.fingerprint import discard_others, fingerprint
from tasks.lineage import datasets, lineage
from tasks.locks import folder_lock, share_lock, working_lock
from tasks.machine import MachineSettings, require_memory, set_up
from tasks.models.card import Card, TextFile, non_default, render_card
from tasks.models.checkpoints import Dtype, initial_model, save_model
from tasks.models.pair import check_lengths, check_vocabulary
from tasks.models.settings import ModelSettings, TextSettings, TrainingRecord, read_training_record
from tasks.models.spread import places_of
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training import distributed
from tasks.training.checkpoints import writing_to_resume
from tasks.training.data import BatchSource, JsonlDataset, TokenDataset
from tasks.training.loop import Evaluator, HeldOutQuality, LogMetrics, TrainingResult, as_csv, train
from tasks.training.memory import fitting, text_cost
from tasks.training.objective import Loss, Objective, check_model, in_bfloat16
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_CARD, _LOG = "README.md", "training.csv"
"""The card in a model's folder."""


@dataclass(frozen=True)
class TrainingJob:
    """One model to train."""

    name: str
    """large, small, or an arm: aligned or unaligned."""
    stage: str
    paths: TaskPaths
    model: ModelSettings
    """The model that training starts from."""
    training: TrainingSettings
    text: TextSettings
    machine: MachineSettings
    train_file: Path
    held_out_file: Path
    metric: str
    """Quality metric, used if weights are chosen by quality."""
    method: str = "It was trained on the first reference of each text, by cross-entropy."
    """One sentence for the model card."""
    teachers: tuple[Path, ...] = ()
    """Folders of the models that it is trained with."""
    files: tuple[Path, ...] = ()
    """Other files that training reads; a change of their content starts training over."""
    checked: int = 0
    """Validation examples whose greedy outputs are compared with trivial baselines after training; 0: none."""
    code: tuple[str, ...] = ("training", "models")
    """Packages whose code can change the result."""
    batched_like: Path | None = None
    """A file of the same inputs with other targets, whose lengths order the batches: both trainings then see equal batches."""
    seed: int | None = None
    """The seed of a drafter, which names its folder; None for models that are trained once."""

    @property
    def label(self) -> str:
        """Stage and model in words."""
        return f"{self.stage} {self.name}" + ("" if self.seed is None else f" seed {self.seed}")

    @property
    def folder(self) -> Path:
        """Where the model is saved."""
        return self.paths.model(self.name, self.seed)

    @property
    def log_file(self) -> Path:
        """Where the training log is saved."""
        return self.paths.training_log(self.name, self.seed)

    @property
    def reference_file(self) -> Path:
        """Examples that quality is measured on: human references, even where the held-out text is the large model's own."""
        return self.paths.split("validation")


@dataclass(frozen=True)
class TrainingContext:
    """A training job with its files read: model, tokenizer and data."""

    job: TrainingJob
    model: PreTrainedModel
    """A model of `transformers`, on `device`."""
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    held_out: TokenDataset
    device: torch.device
    resume: Path
    """Folder for checkpoints, of exactly this work (settings, data, code)."""


@dataclass(frozen=True)
class TrainingSpec:
    """Batches, loss and measurements of a training run."""

    source: BatchSource
    loss: Loss | None = None
    """None: cross-entropy of the text, and the losses of the heads that the settings add."""
    measure: Evaluator | None = None
    """Measurements beside the validation loss."""


def train_stage(job: TrainingJob, make_spec: Callable[[TrainingContext], TrainingSpec]) -> None:
    """Train the model of a job, resuming an interrupted run of the same work, and save it.

    Args:
        job: What to train.
        make_spec: Called with the opened files; returns batches, loss and measurements.

    Raises:
        InputError: data are missing, a checkpoint does not fit, the model does not support the settings, or training diverges.
    """
    # A drafter that an interrupted run has finished by the same work is not trained again.
    opened = open_context(job)
    whole = job.seed is not None and not opened.resume.exists() and is_sealed(job.folder)
    known = read_training_record(job.folder) if whole else None
    if known is not None and known.work == opened.resume.name:
        if distributed.is_main():
            if job.log_file.is_file() and checksum(job.log_file) != checksum(job.folder / _LOG):
                warn_of_damage(job.log_file, f"it differs from {job.folder / _LOG}")
            _show_log(job)
            log.info("%s: %s is already trained", job.paths.task, job.label)
        return
    spec = make_spec(opened)
    with folder_lock(opened.resume.parent) if distributed.is_main() else contextlib.nullcontext():
        if distributed.is_main():
            discard_others(opened.resume)
            job.paths.forget_metrics()
        _train_and_save(opened, spec)


def open_context(job: TrainingJob) -> TrainingContext:
    """Read the files of a job; raise `InputError` as `train_stage` does."""
    # 1. The model, refused at once where it cannot be trained so.
    device, _ = set_up(job.machine)
    tokenizer = load_tokenizer(job.paths.tokenizer)
    large = job.paths.model("large") if job.model.from_large is not None else None
    # What is trained has float32 weights; what is taken as it is keeps the checkpoint's number format.
    dtype: Dtype
    dtype, place = (torch.float32, None) if job.training.steps else ("auto", device)
    model = initial_model(job.model, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, large, dtype, place)
    random_start = job.model.pretrained is None and large is None
    check_model(model, job.name, job.training, device, random_start=random_start)
    check_vocabulary(tokenizer, job.paths.tokenizer, job.model)
    check_lengths(model, job.name, job.text)
    job = dataclasses.replace(job, training=_sized(job, model, device))
    # 2. The texts, tokenised as this kind of model reads them.
    decoder_only = not model.config.is_encoder_decoder
    files = (job.train_file, job.held_out_file)
    examples, held_out = (JsonlDataset(file, tokenizer, job.text, decoder_only=decoder_only) for file in files)
    if job.batched_like is not None:
        other = JsonlDataset(job.batched_like, tokenizer, job.text, decoder_only=decoder_only)
        # Inputs without references teach the aligned drafter alone, so that the batches cannot be equal.
        examples.batched_like = other if len(other) == len(examples) else None
    if device.type == "cpu":
        _require_step_memory(job.training, examples, model.config.vocab_size)
    if distributed.is_main():
        for file, texts in zip(files, (examples, held_out), strict=True):
            if texts.cut:
                cut = f"{texts.cut} of {len(texts)} sources of {file.name}"
                log.info("%s: %s are cut to fit the chat prompt", job.paths.task, cut)
    # 3. The folder of this work's checkpoints.
    resume = job.paths.resume(f"{job.stage}-{job.name}") / _work(job, device)
    placed = model if places_of(model) else model.to(device)
    return TrainingContext(job, placed, tokenizer, examples, held_out, device, resume)


def _sized(job: TrainingJob, model: PreTrainedModel, device: torch.device) -> TrainingSettings:
    """Return the settings of a training, with what fits the device where `accumulation` is 0: a record of what was chosen.

    Raises:
        InputError: not even one text fits, or several machines train, each of which would choose for itself.
    """
    training, text = job.training, job.text
    if training.accumulation or not training.steps:
        return dataclasses.replace(training, accumulation=max(1, training.accumulation))
    if distributed.world_size() != int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        raise InputError(f"{job.label}: accumulation is 0, and several machines may fit different ones; set it to at least 1")
    texts = math.ceil(training.batch_size / distributed.world_size())
    cost = text_cost(model.config, text.max_source_tokens, text.max_target_tokens)
    room = distributed.room_of_step(device, job.teachers)
    found, peak = fitting(cost, training, texts, room, half=in_bfloat16(training, device))
    said = f"{peak / 1e9:.1f} GB of the {room / 1e9:.1f} GB that a step can have"
    if found is None:
        fix = "take optimizer adamw with zero_stage 3, offload parameters and accumulation 1, or a smaller model"
        raise InputError(f"{job.label} needs {said} for one text at a time; {fix}")
    if distributed.is_main():
        again = " whose activations are recomputed" if found.activation_checkpointing else ""
        log.info("%s: %s: %d micro-batches a step%s, %s", job.paths.task, job.label, found.accumulation, again, said)
    return found


def _require_step_memory(training: TrainingSettings, examples: TokenDataset, vocabulary: int) -> None:
    """Refuse a step whose logits alone, float32, no process can hold; whatever else it needs comes on top.

    Raises:
        InputError: they are larger than the memory.
    """
    targets = list(map(len, examples.targets))
    texts = min(len(targets), training.batch_size)
    # Some micro-batch has at least its share of the texts, padded to at least their mean length.
    positions = texts * sum(targets) / len(targets) / (training.accumulation * distributed.world_size())
    what = f"the logits of a step with batch_size {training.batch_size}"
    require_memory(4 * positions * vocabulary, what, "make batch_size smaller or accumulation larger")


def _work(job: TrainingJob, device: torch.device) -> str:
    """Return the fingerprint of the work: checkpoints of any other work are not resumed."""
    # What another value of can change the weights: settings, files, code, device and processes.
    settings: dict[str, object] = {"model": job.model, "training": job.training, "text": job.text}
    files = [job.train_file, job.held_out_file, job.paths.tokenizer, *job.teachers, *job.files]
    if job.batched_like is not None:
        files.append(job.batched_like)
    if job.model.pretrained is not None and Path(job.model.pretrained).exists():
        files.append(Path(job.model.pretrained))
    code = list(job.code)
    if job.training.deepspeed:
        files.append(Path(job.training.deepspeed))
    if job.training.choose_by == "quality":
        settings["metric"] = job.metric
        files.append(job.reference_file)
        code.append("evaluation/scoring")
    return fingerprint({**settings, "device": device.type, "processes": distributed.world_size()}, files, code)


def _train_and_save(opened: TrainingContext, spec: TrainingSpec) -> None:
    """Train, record and save."""
    job = opened.job
    parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    with room_to_train(opened), _recording(opened, parameters) as record:
        # 1. Train; only rank 0 records and saves.
        outcome = train_opened(opened, spec, None if record is None else record.log_metrics)
        if record is None:
            return
        # 2. The curves show every evaluation, the last metrics the weights that are kept.
        kept = {f"kept_{name}": value for name, value in outcome.measured.items()}
        taken = {"seconds": outcome.seconds, "steps": outcome.steps, "target_tokens": outcome.target_tokens}
        record.log_metrics({**taken, "kept_step": outcome.kept, **kept}, outcome.steps)
        # 3. Save the model with its card and its log.
        check = _check(opened)
        with writing_to_resume(f"the {job.name} model", partial_path(job.folder), opened.resume):
            _save(opened, outcome, check)
        with writing_to_resume(f"the log of the {job.name} model", partial_path(job.log_file), opened.resume):
            _show_log(job)
        # 4. Show the card beside the run; the weights stay with DVC.
        record.log_artifact(job.folder / _CARD)
        # 5. The checkpoints go once the record is whole: as long as they are there, the model counts as unfinished.
        record.end()
        if opened.resume.exists():
            remove(opened.resume.rename(opened.resume.with_suffix(".done")))
    _report(job, parameters, outcome, check)


@contextlib.contextmanager
def room_to_train(opened: TrainingContext) -> Iterator[None]:
    """Hold a share of the device, once it has room; the ranks of one training share the machine as their settings say."""
    job = opened.job
    half = in_bfloat16(job.training, opened.device)
    share = distributed.training_share(opened.model, job.training, job.text, job.teachers, half=half)
    alone, kind = distributed.world_size() == 1, opened.device.type
    sharing = share_lock(kind, share, distributed.room_of(opened.device)) if alone else contextlib.nullcontext()
    with sharing, working_lock(kind):
        yield


def train_opened(opened: TrainingContext, spec: TrainingSpec, log: LogMetrics | None) -> TrainingResult:
    """Train the model of an opened job in place, from its last checkpoint on; see `train`."""
    return train(
        Objective(opened.model, opened.job.training, spec.loss),
        spec.source,
        opened.held_out,
        opened.job.training,
        opened.device,
        measure=_measurements(opened, spec.measure),
        resume=opened.resume,
        log=log or (lambda _metrics, _step: None),
        label=opened.job.label,
    )


def _measurements(opened: TrainingContext, measure: Evaluator | None) -> Evaluator | None:
    """Add the quality of greedy outputs if weights are chosen by it; otherwise it is left out, since it takes time."""
    if opened.job.training.choose_by != "quality":
        return measure
    quality = _held_out_quality(opened)
    return quality if measure is None else lambda model: {**measure(model), **quality(model)}


def _held_out_quality(opened: TrainingContext, most: int | None = None) -> HeldOutQuality:
    job = opened.job
    return HeldOutQuality(read_jsonl(job.reference_file)[:most], opened.tokenizer, job.text, job.metric)


@contextlib.contextmanager
def _recording(opened: TrainingContext, parameters: int) -> Iterator[tracking.Recorder | None]:
    """Record the run in MLflow, from rank 0 alone; None for the others."""
    if not distributed.is_main():
        yield None
        return
    job = opened.job
    origin = lineage(inputs=[job.train_file, job.paths.tokenizer])
    # Model and training both have a seed.
    model = {**dataclasses.asdict(job.model), "model_seed": job.model.seed}
    with tracking.Recorder(
        job.paths.task,
        job.label,
        tags={"kind": "training", "stage": job.stage, "model": job.name, "work": opened.resume.name, **origin},
        params={**model, **dataclasses.asdict(job.training), "parameters": parameters},
        live=True,
    ) as record:
        read = {"training": job.train_file, "validation": job.held_out_file, "tokenizer": job.paths.tokenizer}
        for context, file in read.items():
            record.log_inputs(datasets([file], context))
        yield record


def _check(opened: TrainingContext) -> OutputCheck | None:
    """Return how the trained model's outputs compare with trivial baselines, where the job asks for it.

    A model that is to score given texts is not asked for outputs; its validation loss is the logarithm of its perplexity.
    """
    job = opened.job
    if not job.checked or metric_of(job.metric).name == PERPLEXITY:
        return None
    quality = _held_out_quality(opened, job.checked)
    return check_outputs(quality.outputs(opened.model), quality.examples, job.metric)


def _save(opened: TrainingContext, outcome: TrainingResult, check: OutputCheck | None) -> None:
    """Write the model with its card; `generate` then stops at the length that the model was trained on."""
    job, model = opened.job, opened.model if places_of(opened.model) else opened.model.cpu()
    if outcome.steps:
        model.float()  # training in float16 leaves float16 weights
    model.generation_config.max_new_tokens = job.text.max_target_tokens
    model.generation_config.max_length = None
    examples = len(opened.examples) if outcome.steps else 0
    training_text = [TextFile("training", job.train_file, examples)] if outcome.steps else []
    settings = {"training": non_default(job.training), "text": non_default(job.text)}
    if job.model.pretrained is None:  # otherwise the shape is the checkpoint's
        settings = {"model": non_default(job.model), **settings}
    card = Card(
        task=job.paths.task,
        name=job.name,
        stage=job.stage,
        base=job.model.pretrained if job.model.from_large is None else str(job.paths.model("large")),
        method=job.method if outcome.steps else "It was taken as it is, without training.",
        settings=settings,
        text=job.text,
        texts=(*training_text, TextFile("held-out", job.held_out_file, len(opened.held_out))),
        teachers=job.teachers,
        measured=outcome.measured,
        steps=outcome.steps,
        kept=outcome.kept,
        seed=job.seed,
        outputs=() if check is None else (described(check), *against_teacher(check, "the model")),
    )
    record = TrainingRecord(opened.resume.name, outcome.steps, examples, outcome.target_tokens, _warnings(job, outcome, check))
    texts = {_CARD: render_card(card, model, opened.tokenizer), _LOG: as_csv(outcome.log)}
    save_model(model, opened.tokenizer, job.folder, record=record, texts=texts)


def _show_log(job: TrainingJob) -> None:
    """Write the log where DVC plots it: a copy of the one in the model's folder, which has a checksum."""
    job.log_file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(job.log_file, (job.folder / _LOG).read_bytes())


def _report(job: TrainingJob, parameters: int, outcome: TrainingResult, check: OutputCheck | None) -> None:
    """Log the run in one line, and a warning for everything that speaks against the model."""
    kept = "" if outcome.kept == outcome.steps else f", step {outcome.kept} kept"
    measured = ", ".join(f"{number.replace('_', ' ')} {value:.3f}" for number, value in outcome.measured.items())
    # The seconds are those of this process, without the steps before an interruption.
    resumed = f", resumed at step {outcome.resumed_from}," if outcome.resumed_from else ""
    took = f"{outcome.steps} steps{resumed} in {outcome.seconds:.0f} s{kept}" if outcome.steps else "taken as it is"
    name = job.name if job.seed is None else f"{job.name}/{job.seed}"
    log.info("%s/%s: %.2f M parameters, %s, %s", job.paths.task, name, parameters / 1e6, took, measured)
    if check is not None:
        log.info("%s/%s: %s", job.paths.task, job.name, described(check))
    unfit = job.name == "large" and check is not None and against_teacher(check)
    for clause in _warnings(job, outcome, check):
        log.warning("%s: %s%s", job.paths.task, clause, "; the report will recommend nothing over it" if unfit else "")


_RISE = 0.01
"""Nats of validation loss."""


def _warnings(job: TrainingJob, outcome: TrainingResult, check: OutputCheck | None) -> list[str]:
    """What speaks against a model: its outputs, and a validation loss that was lower before."""
    model = f"the {job.name} model" if job.seed is None else f"the {job.name} model of seed {job.seed}"
    found = [] if check is None else [*against_teacher(check, model), *length_warning(check, model)]
    losses = {step: row["validation_loss"] for step, row in outcome.log.items() if "validation_loss" in row}
    best = min(losses, key=losses.__getitem__, default=0)
    if job.training.choose_by == "last" and outcome.kept in losses and losses[outcome.kept] > losses[best] + _RISE:
        rise = f"the validation loss of {model} rose from {losses[best]:.3f} at step {best} to {losses[outcome.kept]:.3f}"
        found.append(f"{rise}; try fewer steps, or keep the best weights by choose_by: validation_loss")
    return found
