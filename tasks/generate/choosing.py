"""Which pair decodes, and by which method: the recommended point, one that meets a bound, or one of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.results.points import PointHeader, TimedPoint
from tasks.evaluation.results.summary import Summary, read_summary
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint, expand_entry
from tasks.paths import TaskPaths

ALIGNED = "aligned"


@dataclass(frozen=True)
class MethodChoice:
    """What the user asks for; nothing: the recommended point."""

    method: str | None = None
    settings: Sequence[str] = field(default_factory=list)
    """`name=value` each."""
    drafter: str | None = None
    """An arm: `aligned` or `unaligned`."""
    tune: str | None = None
    """A bound on the points of a sweep: `ms=…` or `quality=…`."""


@dataclass(frozen=True)
class Chosen:
    """A method at one setting, with one of the two drafters of a task."""

    point: SweepPoint
    drafter: str
    why: str
    """One line that says where it comes from."""


def choose(task: str, asked: MethodChoice) -> Chosen:
    """Return the point to decode with.

    Raises:
        InputError: there is no result to choose from, no timed point meets the bound, or a method or setting is wrong.
    """
    if asked.method is not None:
        return Chosen(own_point(asked.method, asked.settings), asked.drafter or ALIGNED, "as given")
    if asked.settings:
        raise InputError(f"--set {asked.settings[0]} needs --method; name the method that has this setting")
    summary = _summary(task)
    if asked.tune is not None:
        return _tuned(summary, asked.tune, asked.drafter)
    best = summary.recommendation.point
    if best is None:
        return Chosen(VANILLA, asked.drafter or ALIGNED, "recommended: vanilla, since no setting is shown to pay")
    point = summary.points[best]
    if asked.drafter not in (None, point.drafter):
        raise InputError(
            f"the recommended point is one of the {point.drafter} drafter; leave out --drafter, or name a --method or --tune"
        )
    return Chosen(_as_point(point), point.drafter, f"recommended by results/{task}")


def own_point(method: str, settings: Sequence[str]) -> SweepPoint:
    """Return a method of the registry at the settings `name=value`; others have their defaults.

    Raises:
        InputError: there is no such method or setting, or a value is not one of it.
    """
    if method not in METHODS:
        raise InputError(f"--method is {method}; it must be one of {', '.join(METHODS)}")
    values: dict[str, list[object]] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--set is {text!r}; write name=value, such as draft_length=5")
        values[name] = [_value(value)]
    try:
        [point] = expand_entry(GridSettings(method=method, values=values))
    except InputError as error:
        raise InputError(f"--method {method}: {error}") from None
    return point


def _value(text: str) -> object:
    """Read a value as params.yaml does; YAML would take `inf` for a word, which a number's setting reads as infinity."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _summary(task: str) -> Summary:
    path = TaskPaths(task).results / "summary.json"
    if not path.is_file():
        raise InputError(
            f"{path} is missing, so that no point is recommended yet; make it with dvc repro report@{task} (make repro runs "
            "all tasks), or name a --method"
        )
    return read_summary(path, str(path), f"make it anew with python -m tasks.report --task {task}")


def _tuned(summary: Summary, bound: str, drafter: str | None) -> Chosen:
    """Return the best timed point on validation within the bound."""
    name, _, number = bound.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = float("nan")
    if name not in ("ms", "quality") or limit != limit:
        raise InputError(f"--tune is {bound!r}; write ms=… (milliseconds a text, at most) or quality=… (points, at least)")
    timed = summary.timed_points(drafter)
    unit = metric_name(summary.metric)
    if name == "ms":
        fitting = [point for point in timed if point.latency_ms <= limit]
        best = max(fitting, key=lambda point: (point.quality, -point.latency_ms), default=None)
        nearest = min(timed, key=lambda point: point.latency_ms, default=None)
    else:
        fitting = [point for point in timed if point.quality >= limit]
        best = min(fitting, key=lambda point: (point.latency_ms, -point.quality), default=None)
        nearest = max(timed, key=lambda point: point.quality, default=None)
    if best is None:
        found = "none was timed" if nearest is None else f"the nearest has {_measured(nearest, unit)}"
        raise InputError(f"no timed point meets --tune {bound}: {found} on {summary.split}; loosen the bound")
    return Chosen(_as_point(best), best.drafter, f"tuned to {bound}: {_measured(best, unit)} on {summary.split}")


def _measured(point: TimedPoint, unit: str) -> str:
    return f"{point.latency_ms:.3g} ms a text and {point.quality:.2f} {unit}"


def _as_point(point: PointHeader) -> SweepPoint:
    [found] = expand_entry(GridSettings(method=point.method, values={name: [value] for name, value in point.settings.items()}))
    return found


def drafter_folder(paths: TaskPaths, drafter: str, seed: int) -> Path:
    """Return the folder of an arm's drafter of the first seed; raise `InputError` where it was not trained."""
    folder = paths.model(drafter, seed)
    if not folder.is_dir():
        stage = "align" if drafter == ALIGNED else "control"
        raise InputError(f"{folder} is missing; train it with dvc repro {stage}@{paths.task} (make repro trains all)")
    return folder
