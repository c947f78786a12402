"""Training in one call, for tests."""

import itertools
from pathlib import Path
from typing import Any

import torch

from tasks.corpora.example import Example, write_jsonl
from tasks.machine import MachineSettings
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.data import BatchSource, DatasetSource, TokenDataset
from tasks.training.loop import Evaluator, LogMetrics, TrainingResult, train
from tasks.training.objective import Loss, Objective
from tasks.training.settings import TrainingSettings
from tasks.training.stage import TrainingContext, TrainingJob, TrainingSpec

CPU = torch.device("cpu")


def same_weights(one: Any, other: Any) -> bool:
    """Whether two modules have the same weights, to the bit, by the same names."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


class NoTokenizer:
    """Stands for a tokenizer of a model that is saved, and leaves no files."""

    def save_pretrained(self, folder: Path) -> None: ...


class InterruptedRun(Exception):
    """Raised by a test to interrupt a run."""


def interrupt_at(step: int | None) -> LogMetrics:
    """Return a log that interrupts the run at the first evaluation from this step on; never if None."""

    def log(metrics: dict[str, float], at: int) -> None:
        if step is not None and at >= step and "validation_loss" in metrics:
            raise InterruptedRun

    return log


def train_on(
    model: Any,
    examples: TokenDataset,
    settings: TrainingSettings,
    folder: Path,
    log: LogMetrics | None = None,
    *,
    measure: Evaluator | None = None,
    source: BatchSource | None = None,
    loss: Loss | None = None,
) -> TrainingResult:
    """Train `model` in place on a CPU, with its training examples as held-out data."""
    return train(
        Objective(model, settings, loss),
        source or DatasetSource(examples, settings),
        examples,
        settings,
        CPU,
        measure=measure,
        resume=folder,
        log=log or interrupt_at(None),
        label="test",
    )


def toy_job(paths: TaskPaths, model: ModelSettings, training: TrainingSettings) -> TrainingJob:
    """A fine-tuning of a small model in the working folder, with its corpus and its tokenizer of 64 pieces."""
    words = ["red", "blue", "green", "black", "white", "brown"]
    examples = [Example(" ".join(two), (" ".join(two[::-1]), "or so")) for two in itertools.permutations(words, 2)]
    paths.corpus.mkdir(parents=True)
    for split in ("train", "validation"):
        write_jsonl(examples, paths.split(split))
    text = [*(example.source for example in examples), *(f"nor is {number}" for number in range(0, 9000, 37))]
    train_tokenizer(text, TokenizerSettings(vocabulary=64)).save_pretrained(paths.tokenizer)
    return job_of(paths, model, training, text=TextSettings(max_source_tokens=16, max_target_tokens=13))


def job_of(paths: TaskPaths, model: ModelSettings, training: TrainingSettings, **changes: Any) -> TrainingJob:
    """A fine-tuning of the small model on a CPU, by BLEU, or another job with these changes."""
    files = {"train_file": paths.split("train"), "held_out_file": paths.split("validation")}
    usual = {"name": "small", "stage": "finetune", "text": TextSettings(), "machine": MachineSettings(device="cpu"), **files}
    return TrainingJob(paths=paths, model=model, training=training, **{"metric": "bleu", **usual, **changes})


def toy_spec(opened: TrainingContext) -> TrainingSpec:
    """The batches of a job, by cross-entropy."""
    return TrainingSpec(DatasetSource(opened.examples, opened.job.training))
