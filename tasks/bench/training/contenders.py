"""The two contenders, `tasks.training` and `transformers.Seq2SeqTrainer`; each counts the text that it has trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from tasks.bench.training.pausable import Begin
from tasks.bench.training.recipes import LoadedRecipe
from tasks.training.data import IGNORED, Batch, TokenDataset
from tasks.training.loop import EvaluationData, train
from tasks.training.objective import Objective
from tasks.training.optimizers import rate_factor
from tasks.training.settings import TrainingSettings
from tasks.training.sources import DatasetSource

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

_HELD_OUT = 8


@dataclass
class Learned:
    """The text that a contender has trained on so far, and its losses."""

    tokens: int = 0
    """Tokens of sources and targets, without padding."""
    losses: list[float] = field(default_factory=list)
    """Mean loss per target token, in nats, about every 20 steps."""


class Contender(Protocol):
    """A training loop for a recipe."""

    learned: Learned

    def loop(self, begin: Begin) -> object:
        """Train without end."""
        ...


class DraftlineContender:
    """This project's training loop."""

    def __init__(self, opened: LoadedRecipe, folder: Path) -> None:
        """Take a recipe and an empty folder, to which nothing is written."""
        self._opened, self._folder, self.learned = opened, folder, Learned()

    def loop(self, begin: Begin) -> object:
        opened = self._opened
        few = TokenDataset(opened.examples.sources[:_HELD_OUT], opened.examples.targets[:_HELD_OUT], opened.examples.pad)
        return train(
            Objective(opened.model, opened.settings),
            _Counted(DatasetSource(opened.examples, opened.settings), begin, self.learned),
            EvaluationData(few),
            opened.settings,
            opened.device,
            resume=self._folder,
            log=self._log,
            label="ours",
        )

    def _log(self, metrics: dict[str, float], _step: int) -> None:
        if "loss" in metrics:
            self.learned.losses.append(metrics["loss"])


class _Counted:
    """A source that reports the beginning of each step and counts tokens."""

    def __init__(self, source: DatasetSource, begin: Begin, learned: Learned) -> None:
        self._source, self._begin, self._learned = source, begin, learned

    def microbatches(self, step: int) -> list[Batch]:
        self._begin()
        parts = self._source.microbatches(step)
        self._learned.tokens += sum(int(part.mask.sum() + (part.labels != IGNORED).sum()) for part in parts)
        return parts


LENGTHS: dict[str, Callable[[int, int], int]] = {
    "source": lambda source, _target: source,
    "target": lambda _source, target: target,
    "sum": lambda source, target: source + target,
    "longer": max,
}
"""Lengths that Trainer can group examples by, computed from the lengths of source and target."""


class TrainerContender:
    """`Seq2SeqTrainer` at its fastest: grouped by length, without cache, logging, checkpoints or evaluation."""

    def __init__(self, opened: LoadedRecipe, folder: Path, dataset: Dataset) -> None:
        """Take a recipe, a folder, to which nothing is written, and the examples (see `dataset_of`)."""
        self._opened, self._folder, self._dataset, self.learned = opened, folder, dataset, Learned()

    def loop(self, begin: Begin) -> object:
        from transformers import TrainerCallback

        class Beginning(TrainerCallback):  # type: ignore[misc]  # mypy sees no types of transformers
            def on_step_begin(self, *_: object, **__: object) -> None:
                begin()

        opened = self._opened
        opened.model.config.use_cache = False
        trainer = self._trainer(opened, [Beginning()])
        kind = trainer.accelerator.distributed_type
        if kind != "NO":
            raise RuntimeError(f"Trainer treats this process as one of several ({kind}), which is slower")
        return trainer.train()

    def _trainer(self, opened: LoadedRecipe, callbacks: list[TrainerCallback]) -> Seq2SeqTrainer:
        from transformers import DataCollatorForSeq2Seq

        settings = opened.settings
        optimizer = trainer_optimizer(opened.model, settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(settings, step))
        return _trainer_of()(
            self.learned,
            model=opened.model,
            args=arguments(settings, opened.device, self._folder),
            train_dataset=self._dataset,
            data_collator=DataCollatorForSeq2Seq(opened.tokenizer, model=opened.model),
            optimizers=(optimizer, schedule),
            callbacks=callbacks,
        )


def trainer_optimizer(model: PreTrainedModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimiser that Trainer would use: the Adafactor of `transformers`, or fused AdamW."""
    if settings.optimizer == "adamw":
        rate, decay = settings.learning_rate, settings.weight_decay
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    from transformers.optimization import Adafactor

    known: torch.optim.Optimizer = Adafactor(
        model.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        scale_parameter=settings.relative_rate,
        relative_step=False,
    )
    return known


def arguments(settings: TrainingSettings, device: torch.device, folder: Path) -> Seq2SeqTrainingArguments:
    """Return Trainer's arguments, with everything but training switched off."""
    from transformers import Seq2SeqTrainingArguments

    return Seq2SeqTrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        max_grad_norm=settings.gradient_clipping,
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type != "cpu",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )


def dataset_of(examples: TokenDataset, length: str) -> Dataset:
    """Return the examples for Trainer, with the column of lengths that it groups by: one of `LENGTHS`."""
    import datasets

    measure = LENGTHS[length]
    pairs = list(zip(examples.sources, examples.targets, strict=True))
    return datasets.Dataset.from_dict(
        {
            "input_ids": examples.sources,
            "attention_mask": [[1] * len(source) for source in examples.sources],
            "labels": examples.targets,
            "length": [measure(len(source), len(target)) for source, target in pairs],
        }
    )


def _trainer_of() -> type[Seq2SeqTrainer]:
    """Return a Trainer that counts tokens; the class is defined inside because importing transformers takes seconds."""
    from transformers import Seq2SeqTrainer

    class Counting(Seq2SeqTrainer):  # type: ignore[misc]  # mypy sees no types of transformers
        def __init__(self, learned: Learned, **options: object) -> None:
            super().__init__(**options)
            self._learned, self._recent = learned, list[tuple[torch.Tensor, int]]()

        def compute_loss(
            self, model: PreTrainedModel, inputs: dict[str, torch.Tensor], *given: object, **options: object
        ) -> torch.Tensor:
            targets = int((inputs["labels"] != IGNORED).sum())
            self._learned.tokens += targets + int(inputs["attention_mask"].sum())
            loss: torch.Tensor = super().compute_loss(model, inputs, *given, **options)
            self._recent.append((loss.detach(), targets))
            if len(self._recent) == 20:
                total = sum(float(one) * count for one, count in self._recent)
                self._learned.losses.append(total / sum(count for _, count in self._recent))
                self._recent.clear()
            return loss

    return Counting
