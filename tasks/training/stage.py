"""The common part of the training stages: from settings and files to a saved, recorded model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tasks import tracking
from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.results.pair import OutputCheck, against_teacher, described, length_warning
from tasks.files import atomic_write, partial_path, remove
from tasks.fingerprint import discard_others
from tasks.lineage import datasets, lineage
from tasks.locks import folder_lock, share_lock, working_lock
from tasks.models.card import Card, TextFile, non_default, render_card
from tasks.models.checkpoints import read_training_record, save_model
from tasks.models.settings import TrainingRecord
from tasks.training import distributed
from tasks.training.checkpoints import writing_to_resume
from tasks.training.context import TrainingContext, TrainingJob, open_context, reference_file
from tasks.training.log import LogMetrics, as_csv
from tasks.training.loop import EvaluationData, TrainingResult, train
from tasks.training.losses import Loss
from tasks.training.objective import Objective
from tasks.training.quality import HeldOutQuality
from tasks.training.share import room_of, training_share
from tasks.training.sources import BatchSource

_CARD = "README.md"
"""The card in a model's folder."""


@dataclass(frozen=True)
class TrainingSpec:
    """Batches, loss and evaluation data of a training run."""

    source: BatchSource
    evaluation: EvaluationData
    loss: Loss | None = None
    """None: cross-entropy of the text, and the losses of the heads that the settings add."""


def train_stage(job: TrainingJob, make_spec: Callable[[TrainingContext], TrainingSpec]) -> None:
    """Train the model of a job, resuming an interrupted run of the same work, and save it.

    Args:
        job: What to train.
        make_spec: Called with the opened files; returns batches, loss and evaluation data.

    Raises:
        InputError: data are missing, a checkpoint does not fit, the model does not support the settings, or training diverges.
    """
    opened = open_context(job)
    known = read_training_record(job.folder) if job.seed is not None else None
    if known is not None and known.work == opened.resume.name and job.paths.training_log(job.name, job.seed).is_file():
        if distributed.is_main():
            log.info("%s: %s is already trained", job.paths.task, job.label)
        return
    spec = make_spec(opened)
    with folder_lock(opened.resume.parent) if distributed.is_main() else contextlib.nullcontext():
        if distributed.is_main():
            discard_others(opened.resume)
        _train_and_save(opened, spec)


def _train_and_save(opened: TrainingContext, spec: TrainingSpec) -> None:
    """Train, record and save."""
    job, evaluation = opened.job, _evaluation_data(opened, spec.evaluation)
    objective = Objective(opened.model, job.training, spec.loss)
    parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    with _sharing(opened), working_lock(opened.device.type), _recording(opened, parameters) as record:
        send: LogMetrics = _nowhere if record is None else record.log_metrics
        outcome = train(
            objective, spec.source, evaluation, job.training, opened.device, resume=opened.resume, log=send, label=job.label
        )
        send(_final_metrics(outcome), outcome.steps)
        if record is None:
            return
        folder, log_file = job.folder, job.paths.training_log(job.name, job.seed)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with writing_to_resume(f"the log of the {job.name} model", partial_path(log_file), opened.resume):
            atomic_write(log_file, as_csv(outcome.log))
        check = _check(opened)
        with writing_to_resume(f"the {job.name} model", partial_path(folder), opened.resume):
            _save(opened, outcome, check)
        record.log_artifact(job.folder / _CARD)
    remove(opened.resume)
    log.info("%s", _summary_line(job, parameters, outcome))
    if check is not None:
        _log_check(job, check)


def _nowhere(metrics: Mapping[str, float], step: int) -> None:
    """Take metrics of a process whose run is not recorded."""


def _sharing(opened: TrainingContext) -> contextlib.AbstractContextManager[None]:
    """Wait until the device has room for this training; the ranks of one training share the machine as their settings say."""
    if distributed.world_size() > 1:
        return contextlib.nullcontext()
    return share_lock(opened.device.type, training_share(opened), room_of(opened.device))


def _evaluation_data(opened: TrainingContext, evaluation: EvaluationData) -> EvaluationData:
    """Add the quality of greedy outputs if weights are chosen by it; otherwise it is left out, since it takes time."""
    job, measure = opened.job, evaluation.measure
    if job.training.choose_by != "quality":
        return evaluation
    quality = HeldOutQuality(read_jsonl(reference_file(job)), opened.tokenizer, job.text, job.metric)
    if measure is None:
        return dataclasses.replace(evaluation, measure=quality)
    return dataclasses.replace(evaluation, measure=lambda model: {**measure(model), **quality(model)})


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


def _final_metrics(outcome: TrainingResult) -> dict[str, float]:
    """Return the final metrics: the curves show every evaluation, these the weights that are kept."""
    kept = {f"kept_{name}": value for name, value in outcome.measured.items()}
    taken = {"seconds": outcome.seconds, "steps": outcome.steps, "target_tokens": outcome.target_tokens}
    return {**taken, "kept_step": outcome.kept, **kept}


def _check(opened: TrainingContext) -> OutputCheck | None:
    """Return how the trained model's outputs compare with trivial baselines, where the job asks for it.

    A model that is to score given texts is not asked for outputs; its validation loss is the logarithm of its perplexity.
    """
    job = opened.job
    if not job.checked or metric_of(job.metric).name == PERPLEXITY:
        return None
    examples = read_jsonl(reference_file(job))[: job.checked]
    return HeldOutQuality(examples, opened.tokenizer, job.text, job.metric).check(opened.model)


def _log_check(job: TrainingJob, check: OutputCheck) -> None:
    """Log the check, and a warning for everything that speaks against the model."""
    log.info("%s/%s: %s", job.paths.task, job.name, described(check))
    for clause in [*against_teacher(check, f"the {job.name} model"), *length_warning(check, f"the {job.name} model")]:
        log.warning("%s: %s", job.paths.task, clause)


def _save(opened: TrainingContext, outcome: TrainingResult, check: OutputCheck | None) -> None:
    """Write the model with its card; `generate` then stops at the length that the model was trained on."""
    job, model = opened.job, opened.model.cpu().float()
    model.generation_config.max_new_tokens = job.text.max_target_tokens
    model.generation_config.max_length = None
    card = Card(
        task=job.paths.task,
        name=job.name,
        stage=job.stage,
        base=job.model.pretrained if job.model.from_large is None else str(job.large),
        method=job.method if outcome.steps else "It was taken as it is, without training.",
        settings=_card_settings(job),
        text=job.text,
        texts=(
            *([TextFile("training", job.train_file, len(opened.examples))] if outcome.steps else ()),
            TextFile("held-out", job.held_out_file, len(opened.held_out)),
        ),
        teachers=job.teachers,
        measured=outcome.measured,
        steps=outcome.steps,
        kept=outcome.kept,
        seed=job.seed,
        outputs=() if check is None else (described(check), *against_teacher(check, "the model")),
    )
    examples = len(opened.examples) if outcome.steps else 0
    record = TrainingRecord(opened.resume.name, outcome.steps, examples, outcome.target_tokens)
    save_model(model, opened.tokenizer, job.folder, card=render_card(card, model, opened.tokenizer), record=record)


def _card_settings(job: TrainingJob) -> dict[str, dict[str, object]]:
    """Settings for the model card. A pre-trained model lists only its checkpoint, not the shape settings."""
    shown = {"training": non_default(job.training), "text": non_default(job.text)}
    return shown if job.model.pretrained is not None else {"model": non_default(job.model), **shown}


def _summary_line(job: TrainingJob, parameters: int, outcome: TrainingResult) -> str:
    """Return the run in one line."""
    kept = "" if outcome.kept == outcome.steps else f", step {outcome.kept} kept"
    measured = ", ".join(f"{number.replace('_', ' ')} {value:.3f}" for number, value in outcome.measured.items())
    took = f"{outcome.steps} steps in {outcome.seconds:.0f} s{kept}" if outcome.steps else "taken as it is"
    name = job.name if job.seed is None else f"{job.name}/{job.seed}"
    return f"{job.paths.task}/{name}: {parameters / 1e6:.2f} M parameters, {took}, {measured}"
