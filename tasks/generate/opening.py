"""Opens the pair that decodes: that of a task, or one of the user's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tasks.config import load
from tasks.decoding.settings import CALIBRATED
from tasks.errors import InputError
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.generate.choosing import MethodChoice, choose, drafter_folder, own_point
from tasks.loaded_pair import LoadedPair, load_pair, open_models
from tasks.machine import MachineSettings
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths

_OWN_SOURCE, _OWN_TARGET = 512, 128
"""Longest source and output of a pair of the user's own, in tokens."""


@dataclass(frozen=True)
class OpenedPair:
    """A pair that is ready to decode, and the method."""

    loaded: LoadedPair
    text: TextSettings
    point: SweepPoint
    why: str
    """Where the method comes from, for the user."""


@dataclass(frozen=True)
class OwnPair:
    """Two models of the user's own."""

    large: Path
    """A folder or a name on the hub, with its tokenizer."""
    small: Path
    chat_template: bool = False
    """Whether each text becomes a user's message."""


def open_own(models: OwnPair, asked: MethodChoice, max_tokens: int | None) -> OpenedPair:
    """Open a pair of the user's own; without a method it decodes by `speculative`, whose output is the large model's.

    Raises:
        InputError: a model is missing, the two do not fit each other, or the method needs what only a task has.
    """
    for name, value in (("drafter", asked.drafter), ("tune", asked.tune)):
        if value is not None:
            raise InputError(f"--{name} is of a task, but --large names a pair of your own; leave out one of them")
    point = own_point(asked.method or "speculative", asked.settings)
    if getattr(point.settings, "drafter", None) in CALIBRATED:
        raise InputError(f"drafter is {point.settings.drafter}, which reads a task's calibration set; name a --task")
    text = TextSettings(
        max_source_tokens=_OWN_SOURCE, max_target_tokens=max_tokens or _OWN_TARGET, chat_template=models.chat_template
    )
    loaded = open_models(models.small, models.large, MachineSettings(), text)
    return OpenedPair(loaded, text, point, "as given" if asked.method else "the default for a pair of your own")


def open_task(file: Path, name: str | None, asked: MethodChoice, max_tokens: int | None) -> OpenedPair:
    """Open the pair of a task with the point that is asked for.

    Args:
        file: The parameter file.
        name: The task; None takes the only active one.
        asked: The method.
        max_tokens: Most tokens to generate; None takes the task's number.

    Raises:
        InputError: there is no such task, its models are not trained yet, or there is no such point.
    """
    params = load(file)
    if name is None and len(params.active) > 1:
        raise InputError(f"{file} has several active tasks; name one with --task: {', '.join(params.active)}")
    name = name or next(iter(params.active))
    task, paths = params.task(name), TaskPaths(name)
    chosen = choose(name, asked)
    folder = drafter_folder(paths, chosen.drafter, task.seeds[0])
    text = task.text if max_tokens is None else dataclasses.replace(task.text, max_target_tokens=max_tokens)
    return OpenedPair(
        load_pair(params, task, paths, folder, [chosen.point]), text, chosen.point, f"{chosen.drafter} drafter, {chosen.why}"
    )
