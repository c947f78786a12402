"""Opens the pair that decodes: that of a task, a folder that the report stage wrote, or two models of the user's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tasks.config import load
from tasks.decoding.inference import DEFAULT, OWN_TEXT, DecodingPair, load_pair
from tasks.decoding.opening import open_models
from tasks.decoding.pair_folder import PairManifest
from tasks.decoding.settings import CALIBRATED
from tasks.decoding.settings.configured import ConfiguredMethod
from tasks.errors import InputError
from tasks.generate.choosing import MethodChoice, choose, drafter_folder, own_point
from tasks.loaded_pair import load_pair as load_task_pair
from tasks.machine import MachineSettings
from tasks.paths import TaskPaths


@dataclass(frozen=True)
class OwnPair:
    """Two models of the user's own."""

    large: Path
    """A folder or a name on the hub, with its tokenizer."""
    small: Path
    chat_template: bool = False
    """Whether each text becomes a user's message."""


def open_own(models: OwnPair, asked: MethodChoice, max_tokens: int | None) -> DecodingPair:
    """Open a pair of the user's own; without a method it decodes by `speculative`, whose output is the large model's.

    Raises:
        InputError: a model is missing, the two do not fit each other, or the method needs what only a task has.
    """
    _refuse_task_choices(asked, "--large names a pair of your own")
    point = _asked_point(asked) or DEFAULT
    if getattr(point.settings, "drafter", None) in CALIBRATED:
        raise InputError(f"drafter is {point.settings.drafter}, which reads a task's calibration set; name a --task")
    text = dataclasses.replace(
        OWN_TEXT, max_target_tokens=max_tokens or OWN_TEXT.max_target_tokens, chat_template=models.chat_template
    )
    chosen = "as given" if asked.method else "the default for a pair of your own"
    return DecodingPair(open_models(models.small, models.large, MachineSettings(), text), PairManifest(point, text, "", chosen))


def open_folder(folder: Path, asked: MethodChoice, max_tokens: int | None) -> DecodingPair:
    """Open a folder that the report stage wrote, at its operating point or at the method that is asked for.

    Raises:
        InputError: there is no such folder, it is damaged, or the method is wrong.
    """
    _refuse_task_choices(asked, f"--pair is {folder}")
    pair = load_pair(folder)
    manifest, point = pair.manifest, _asked_point(asked)
    if point is not None:
        manifest = dataclasses.replace(manifest, point=point, chosen="as given")
    if max_tokens is not None:
        manifest = dataclasses.replace(manifest, text=dataclasses.replace(manifest.text, max_target_tokens=max_tokens))
    return dataclasses.replace(pair, manifest=manifest)


def _refuse_task_choices(asked: MethodChoice, instead: str) -> None:
    for name, value in (("drafter", asked.drafter), ("tune", asked.tune)):
        if value is not None:
            raise InputError(f"--{name} is of a task, but {instead}; leave out one of them")


def _asked_point(asked: MethodChoice) -> ConfiguredMethod | None:
    if asked.method is not None:
        return own_point(asked.method, asked.settings)
    if asked.settings:
        raise InputError(f"--set {asked.settings[0]} needs --method; name the method that has this setting")
    return None


def open_task(file: Path, name: str | None, asked: MethodChoice, max_tokens: int | None) -> DecodingPair:
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
    manifest = PairManifest(chosen.point, text, name, f"{chosen.drafter} drafter, {chosen.why}")
    return DecodingPair(load_task_pair(params, task, paths, folder, [chosen.point]), manifest)
