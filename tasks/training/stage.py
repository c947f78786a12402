"""What the stages that train share: from files and settings to a saved, recorded model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from tasks import tracking
from tasks.errors import InputError
from tasks.fingerprint import fingerprint
from tasks.machine import MachineSettings, set_up, working_lock
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.pair import check_kinds, check_lengths, check_pair, vocabulary_of
from tasks.models.settings import ModelSettings, TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training.acceptance import HeldOutAcceptance, Measure
from tasks.training.data import TokenisedSet
from tasks.training.loop import train
from tasks.training.settings import TrainingSettings

_CODE = ["training", "models"]


def check_trainable(model: Any, name: str) -> None:
    """Raises `InputError` where transformers would train a model on something else than its labels."""
    if model.config.model_type == "fsmt":
        raise InputError(
            f"the {name} model is of type fsmt, which transformers trains on its source; it can be decoded with, not trained: "
            "name another"
        )


def train_stage(
    *,
    name: str,
    stage: str,
    paths: TaskPaths,
    model: ModelSettings,
    training: TrainingSettings,
    text: TextSettings,
    machine: MachineSettings,
    train_file: Path,
    held_out_file: Path,
    large: Path | None = None,
) -> None:
    """Trains the model `name` of a task, resuming what an interrupted run of the same work left, and saves it.

    Args:
        large: The model that wrote the files' targets, where one did: the drafter's acceptance by it is measured as well.

    Raises:
        InputError: missing data, a checkpoint that does not fit, settings that the model is not built for, or a diverging
            loss.
    """
    if training.trunk == "frozen" and model.pretrained is None:
        raise InputError(
            f"trunk of {stage} is frozen, but the {name} model starts from random weights; "
            "set its pretrained to a folder or a hub model, or trunk to trained"
        )
    device, _ = set_up(machine)
    tokenizer = load_tokenizer(paths.tokenizer)
    start = initial_model(model, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    check_trainable(start, name)
    check_lengths(start, name, text)
    examples, held_out = (
        TokenisedSet(file, tokenizer, text, one_row=not start.config.is_encoder_decoder) for file in (train_file, held_out_file)
    )
    work = fingerprint(
        {"model": model, "training": training, "text": text, "device": device.type},
        [train_file, held_out_file, paths.tokenizer],
        _CODE,
    )
    parameters = sum(parameter.numel() for parameter in start.parameters())
    with (
        working_lock(device.type),
        tracking.Recorder(
            paths.task,
            f"{stage} {name}",
            tags={"kind": "training", "stage": stage, "model": name, **tracking.lineage(inputs=[train_file, paths.tokenizer])},
            params={**dataclasses.asdict(training), **dataclasses.asdict(model), "parameters": parameters},
            live=True,
        ) as record,
    ):
        outcome = train(
            start,
            examples,
            held_out,
            training,
            device,
            resume=paths.resume(f"{stage}-{name}") / work,
            log=record.log_metrics,
            label=f"{stage} {name}",
            measure=None if large is None else _acceptance_by(large, start, held_out, tokenizer, device),
        )
        record.log_metrics({"seconds": outcome.seconds})
    save_model(start.cpu(), tokenizer, paths.model(name))
    held_out_numbers = {"validation_loss": outcome.validation_loss, **outcome.measured}
    print(
        f"{paths.task}/{name}: {parameters / 1e6:.2f} M parameters, {training.steps} steps in {outcome.seconds:.0f} s, "
        + ", ".join(f"{number.replace('_', ' ')} {value:.3f}" for number, value in held_out_numbers.items())
    )


def _acceptance_by(large: Path, drafter: Any, held_out: TokenisedSet, tokenizer: Any, device: torch.device) -> Measure:
    """Raises `InputError` where the two models make no pair."""
    model = load_model(large, device)
    check_pair(tokenizer, load_tokenizer(large), "the drafter", str(large))
    check_kinds(drafter, model)
    return HeldOutAcceptance(model, held_out, vocabulary_of(tokenizer, drafter, model), device)
