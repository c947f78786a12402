"""Recipes of the training benchmark: a task's model, text and settings, without an end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.config import load
from tasks.errors import InputError
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training.data import JsonlDataset, TokenDataset
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_FOREVER = 10**9
_ADAMW_RATE = 1e-3
"""AdamW's learning rate; Adafactor's is relative to the weights and does not suit it."""


@dataclass(frozen=True)
class Recipe:
    """One comparison: a model of a task, and an optimiser."""

    task: str
    params: str
    """Parameter file."""
    model: str
    """large or small."""
    optimizer: str
    threads: int = 0
    """0: as many as torch finds."""

    @property
    def name(self) -> str:
        return f"{self.model} {self.optimizer}"


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with its files read."""

    model: PreTrainedModel
    """A new model of `transformers`."""
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    settings: TrainingSettings
    device: torch.device


def load_recipe(recipe: Recipe) -> LoadedRecipe:
    """Read the text and create the model, equal for equal recipes.

    Raises:
        InputError: the text is missing, or the contenders cannot train on it in the same way.
    """
    task, paths = load(Path(recipe.params)).task(recipe.task), TaskPaths(recipe.task)
    device, _ = set_up(MachineSettings(threads=recipe.threads))
    tokenizer = load_tokenizer(paths.tokenizer)
    start: ModelSettings = getattr(task.models, recipe.model)
    model = initial_model(start, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    if not model.config.is_encoder_decoder:
        raise InputError(f"the {recipe.model} model of {recipe.task} is decoder-only; Seq2SeqTrainer trains no such model")
    examples = JsonlDataset(paths.split("train"), tokenizer, task.text)
    return LoadedRecipe(
        model.to(device), tokenizer, examples, endless(getattr(task.finetune, recipe.model), recipe.optimizer), device
    )


def endless(settings: TrainingSettings, optimizer: str) -> TrainingSettings:
    """Settings in float32 with this optimiser that neither end, evaluate nor save."""
    own = settings.optimizer == optimizer
    return dataclasses.replace(
        settings,
        optimizer=optimizer,
        learning_rate=settings.learning_rate if own else _ADAMW_RATE,
        relative_rate=settings.relative_rate and optimizer == "adafactor",
        decay="constant",
        precision="float32",
        zero_stage=0,
        offload="none",
        batch_tokens=0,
        accumulation=1,
        steps=_FOREVER,
        evaluate_every=_FOREVER,
        checkpoint_every=_FOREVER,
        choose_by="last",
        patience=0,
    )
