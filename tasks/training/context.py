"""Describes a training job and opens the files that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.console import log
from tasks.errors import InputError
from tasks.fingerprint import fingerprint
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import initial_model
from tasks.models.pair import check_lengths
from tasks.models.settings import ModelSettings, TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training import distributed
from tasks.training.data import JsonlDataset, TokenDataset
from tasks.training.model_checks import check_precision, check_trainable, check_vocabulary
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainingJob:
    """One model to train."""

    name: str
    """large, small, or one of `paths.ARMS`."""
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
    def large(self) -> Path:
        """The folder of the task's large model."""
        return self.paths.model("large")

    @property
    def tokenizer(self) -> str | Path:
        """Where the model's tokenizer is: the task's, unless the model keeps its own."""
        own = self.model.pretrained if self.model.own_tokenizer else None
        return self.paths.tokenizer if own is None else own

    @property
    def folder(self) -> Path:
        """Where the model is saved."""
        return self.paths.model(self.name, self.seed)


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


def open_context(job: TrainingJob) -> TrainingContext:
    """Read the files of a job; raise `InputError` as `train_stage` does."""
    if job.training.trunk == "frozen" and job.model.pretrained is None and job.model.from_large is None:
        raise InputError(
            f"trunk of {job.stage} is frozen, but the {job.name} model starts from random weights; "
            "set its pretrained to a folder or a hub model, or trunk to trained"
        )
    device, _ = set_up(job.machine)
    tokenizer = load_tokenizer(job.tokenizer)
    large = job.large if job.model.from_large is not None else None
    model = initial_model(job.model, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, large)
    check_trainable(model, job.name)
    check_precision(model, job.name, job.training, device)
    check_vocabulary(tokenizer, str(job.tokenizer), job.model)
    check_lengths(model, job.name, job.text)
    examples, held_out = (
        JsonlDataset(file, tokenizer, job.text, decoder_only=not model.config.is_encoder_decoder)
        for file in (job.train_file, job.held_out_file)
    )
    if job.batched_like is not None:
        other = JsonlDataset(job.batched_like, tokenizer, job.text, decoder_only=not model.config.is_encoder_decoder)
        # Inputs without references teach the aligned drafter alone, so that the batches cannot be equal.
        examples.batched_like = other if len(other) == len(examples) else None
    if distributed.is_main():
        for file, texts in ((job.train_file, examples), (job.held_out_file, held_out)):
            if texts.cut:
                cut = f"{texts.cut} of {len(texts)} sources of {file.name}"
                log.info("%s: %s are cut to fit the chat prompt", job.paths.task, cut)
    resume = job.paths.resume(f"{job.stage}-{job.name}") / _work(job, device)
    return TrainingContext(job, model.to(device), tokenizer, examples, held_out, device, resume)


def _work(job: TrainingJob, device: torch.device) -> str:
    """Return the fingerprint of the work: checkpoints of any other work are not resumed."""
    settings = {"model": job.model, "training": job.training, "text": job.text}
    files = [job.train_file, job.held_out_file, job.paths.tokenizer, *job.teachers, *job.files]
    if job.batched_like is not None:
        files.append(job.batched_like)
    if job.model.pretrained is not None and Path(job.model.pretrained).exists():
        files.append(Path(job.model.pretrained))
    code = list(job.code)
    if job.training.reads_metric:
        settings["metric"] = job.metric
        files.append(reference_file(job))
        code += ["evaluation/quality", "evaluation/metrics", "evaluation/words"]
    return fingerprint({**settings, "device": device.type, "processes": distributed.world_size()}, files, code)


def reference_file(job: TrainingJob) -> Path:
    """Examples that quality is measured on: human references, even where the held-out text is the large model's own."""
    return job.paths.split("validation")
