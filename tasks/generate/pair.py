"""Which pair decodes, and by which method: a task's, a folder's that the report stage wrote, or two models of one's own."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tasks.config import load
from tasks.decoding.inference import DEFAULT, OWN_TEXT, VANILLA, DecodingPair, load_pair
from tasks.decoding.method import CALIBRATED
from tasks.decoding.pair_folder import PairManifest, calibration_targets
from tasks.decoding.registry import ConfiguredMethod, configure_method
from tasks.errors import InputError
from tasks.files import unsealed
from tasks.models.pair import check_sizes
from tasks.paths import TaskPaths

ALIGNED = "aligned"


@dataclass(frozen=True)
class MethodChoice:
    """What the user asks for; nothing: the recommended point."""

    method: str | None = None
    settings: Sequence[str] = field(default_factory=list)
    """`name=value` each."""
    arm: str | None = None
    """`aligned` or `unaligned`."""
    tune: str | None = None
    """A bound on the points of a sweep: `ms=…` or `quality=…`."""


@dataclass(frozen=True)
class Chosen:
    """A method at one setting, with the drafter of one of the two arms of a task."""

    point: ConfiguredMethod
    arm: str
    why: str
    """One line that says where it comes from."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the sweep measured of the point, by split; empty for a method that the user names."""


def pair_of(arguments: argparse.Namespace) -> DecodingPair:
    """Open what the arguments ask for.

    Raises:
        InputError: they contradict each other, a model is missing or does not fit, or there is no such method or point.
    """
    asked = MethodChoice(arguments.method, arguments.set, arguments.arm, arguments.tune)
    own = arguments.large is not None or arguments.small is not None
    _check_together(arguments, own=own)
    if own:
        return _open_own(arguments, asked)
    if arguments.pair is not None:
        return _open_folder(arguments.pair, asked, arguments.max_tokens)
    return _open_task(arguments.params, arguments.task, asked, arguments.max_tokens)


def _check_together(arguments: argparse.Namespace, *, own: bool) -> None:
    """Refuse arguments of which one says otherwise than another."""
    if arguments.tune is not None and arguments.method is not None:
        raise InputError(f"--tune {arguments.tune} chooses the method, but --method is {arguments.method}; leave one out")
    if own and None in (arguments.large, arguments.small):
        missing = "--large" if arguments.large is None else "--small"
        raise InputError(f"{missing} is missing; a pair of your own needs --large and --small")
    if arguments.chat_template and not own:
        raise InputError("--chat-template is for a pair of your own; a task has text.chat_template in params.yaml")
    if own or arguments.pair is not None:
        instead = "--large names a pair of your own" if own else f"--pair is {arguments.pair}"
        for name in ("pair", "task") if own else ("task",):
            if getattr(arguments, name) is not None:
                raise InputError(f"--{name} is {getattr(arguments, name)}, but {instead}; leave out one of them")
        for name in ("arm", "tune"):
            if getattr(arguments, name) is not None:
                raise InputError(f"--{name} is of a task, but {instead}; leave out one of them")


def _open_own(arguments: argparse.Namespace, asked: MethodChoice) -> DecodingPair:
    """Open two models; without a method they decode by `speculative`, whose output is the large model's."""
    point = _named_method(asked) or DEFAULT
    if getattr(point.settings, "drafter", None) in CALIBRATED:
        raise InputError(f"drafter is {point.settings.drafter}, which reads a task's calibration set; name a --task")
    limit = arguments.max_tokens or OWN_TEXT.max_target_tokens
    text = dataclasses.replace(OWN_TEXT, max_target_tokens=limit, chat_template=arguments.chat_template)
    why = "as given" if asked.method else "the default for a pair of your own"
    pair = load_pair(large=arguments.large, drafter=arguments.small, text=text)
    if getattr(point.settings, "drafter", "") == "small":
        check_sizes(pair.models["small"], pair.models["large"], f"--small {arguments.small}", f"--large {arguments.large}")
    return dataclasses.replace(pair, manifest=PairManifest(point, text, "", why))


def _open_folder(folder: Path, asked: MethodChoice, max_tokens: int | None) -> DecodingPair:
    """Open a folder at its operating point or at the method that is asked for."""
    pair, point = load_pair(folder), _named_method(asked)
    manifest = pair.manifest
    if point is not None:
        manifest = dataclasses.replace(manifest, point=point, chosen="as given", measured={})
    if max_tokens is not None:
        manifest = dataclasses.replace(manifest, text=dataclasses.replace(manifest.text, max_target_tokens=max_tokens))
    return dataclasses.replace(pair, manifest=manifest)


def _open_task(file: Path, name: str | None, asked: MethodChoice, max_tokens: int | None) -> DecodingPair:
    """Open the pair of a task; no `name` takes the only active one, no `max_tokens` the task's number."""
    params = load(file)
    if name is None and len(params.active) > 1:
        raise InputError(f"{file} has several active tasks; name one with --task: {', '.join(params.active)}")
    name = name or next(iter(params.active))
    task, paths = params.task(name), TaskPaths(name)
    chosen = choose(name, asked)
    small, large = drafter_folder(paths, chosen.arm, task.seeds[0]), paths.model("large")
    pair = load_pair(large=large, drafter=small, text=task.text, **params.machine.of_models())
    calibration = calibration_targets([chosen.point], paths.calibration_set, large, task.text.max_target_tokens)
    pair = dataclasses.replace(pair, decoders=dataclasses.replace(pair.decoders, calibration=calibration))
    text = task.text if max_tokens is None else dataclasses.replace(task.text, max_target_tokens=max_tokens)
    manifest = PairManifest(chosen.point, text, name, f"{chosen.arm} drafter, {chosen.why}", dict(chosen.measured))
    return dataclasses.replace(pair, manifest=manifest)


def drafter_folder(paths: TaskPaths, arm: str, seed: int) -> Path:
    """Return the folder of an arm's drafter of the first seed; raise `InputError` where it was not trained."""
    folder = paths.model(arm, seed)
    if not folder.is_dir():
        stage = "align" if arm == ALIGNED else "control"
        raise InputError(f"{folder} is missing; train it with dvc repro {stage}@{paths.task} (make repro trains all)")
    return folder


def choose(task: str, asked: MethodChoice) -> Chosen:
    """Return the point of a task to decode with.

    Raises:
        InputError: there is no result to choose from, no timed point meets the bound, or a method or setting is wrong.
    """
    named = _named_method(asked)
    if named is not None:
        return Chosen(named, asked.arm or ALIGNED, "as given")
    path = TaskPaths(task).results / "summary.json"
    if not path.is_file():
        fix = f"make it with dvc repro report@{task} (make repro runs all tasks), or name a --method"
        raise InputError(f"{path} is missing, so that no point is recommended yet; {fix}")
    try:
        summary = json.loads(unsealed(path.read_text(encoding="utf-8")))
        if asked.tune is not None:
            return _tuned(summary, asked.tune, asked.arm)
        best = summary["verdict"].get("point")
        if best is None:
            why = "; ".join(summary["verdict"].get("against") or ["no setting is shown to pay"])
            return Chosen(VANILLA, asked.arm or ALIGNED, f"vanilla, since {why}")
        point = summary["points"][best]
        measured = {"test": point.get("test"), summary["split"]: point}
        chosen = Chosen(_point_of(point), point["arm"], f"recommended by results/{task}", measured)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__} {error}"
        raise InputError(f"{path} is damaged ({reason}); make it anew with python -m tasks.report --task {task}") from None
    if asked.arm not in (None, chosen.arm):
        raise InputError(f"the recommended point is of the {chosen.arm} arm; leave out --arm, or name a --method or --tune")
    return chosen


def _named_method(asked: MethodChoice) -> ConfiguredMethod | None:
    """Return the method that `--method` names at the settings of `--set`; others have their defaults."""
    if asked.method is not None:
        return own_point(asked.method, asked.settings)
    if asked.settings:
        raise InputError(f"--set {asked.settings[0]} needs --method; name the method that has this setting")
    return None


def own_point(method: str, settings: Sequence[str]) -> ConfiguredMethod:
    """Return a method of the registry at the settings `name=value`.

    Raises:
        InputError: there is no such method or setting, or a value is not one of it.
    """
    values: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--set is {text!r}; write name=value, such as draft_length=5")
        if name in values:
            raise InputError(f"--set names {name} twice; leave out one of them")
        values[name] = _value(value)
    try:
        return configure_method(method, values)
    except InputError as error:
        raise InputError(f"--{error}" if str(error).startswith("method is") else f"--method {error}") from None


def _value(text: str) -> object:
    """Read a value as params.yaml does; YAML would take `inf` for a word, which a number's setting reads as infinity."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _point_of(point: Mapping[str, Any]) -> ConfiguredMethod:
    return configure_method(point["method"], point["settings"])


def _tuned(summary: Mapping[str, Any], bound: str, arm: str | None) -> Chosen:
    """Return the best timed point of the split that choices are made on, within a bound.

    Args:
        summary: `summary.json`.
        bound: `ms=…` gives the highest quality at no more milliseconds a text, `quality=…` the fastest with so many points.
        arm: Which drafter; none takes both.
    """
    name, _, number = bound.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if name not in ("ms", "quality") or math.isnan(limit):
        raise InputError(f"--tune is {bound!r}; write ms=… (milliseconds a text, at most) or quality=… (points, at least)")
    timed = [point for point in summary["points"] if point["timed"] and arm in (None, point["arm"])]

    good, fast = (lambda one: (one["quality"], -one["latency_ms"])), (lambda one: (-one["latency_ms"], one["quality"]))
    if name == "ms":
        fitting, best_first, nearest_first = [one for one in timed if one["latency_ms"] <= limit], good, fast
    else:
        fitting, best_first, nearest_first = [one for one in timed if one["quality"] >= limit], fast, good
    if not fitting:
        found = f"the nearest has {_measured(max(timed, key=nearest_first))}" if timed else "none was timed"
        raise InputError(f"no timed point meets --tune {bound}: {found} on {summary['split']}; loosen the bound")
    best = max(fitting, key=best_first)
    why = f"tuned to {bound}: {_measured(best)} on {summary['split']}"
    return Chosen(_point_of(best), best["arm"], why, {"test": best.get("test"), summary["split"]: best})


def _measured(point: Mapping[str, Any]) -> str:
    return f"{point['latency_ms']:.3g} ms a text and {point['quality']:.2f} points"
