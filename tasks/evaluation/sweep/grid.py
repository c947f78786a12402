"""The points of a sweep: every combination of a grid's values, checked, each once."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.baselines import VANILLA as VANILLA_METHOD
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import METHODS, ConfiguredMethod
from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.settings import GridSettings
from tasks.settings import first_error

if TYPE_CHECKING:
    from tasks.config import Task


SweepPoint = ConfiguredMethod
"""A method at one setting, as a point of a sweep."""


class Drafter(NamedTuple):
    """Whose sweep it is."""

    arm: str
    """One of `paths.ARMS`."""
    seed: int

    def __str__(self) -> str:
        """Return it as labels have it."""
        return f"{self.arm} {self.seed}"


VANILLA = SweepPoint(VANILLA_METHOD, VanillaSettings())
BASELINES = (VANILLA, SweepPoint("vanilla_small", VanillaSettings()))


def is_vanillas_output(point: SweepPoint) -> bool:
    """Whether a point gives the output of the vanilla large model; a beam search gives that of another search."""
    return METHODS[point.method].lossless and "beam" not in point.method


def expand(grid: Sequence[GridSettings]) -> list[SweepPoint]:
    """The points of a grid in order, without duplicates: two entries, such as a preset and a finer range, may overlap.

    Raises:
        InputError: see `expand_entry`.
    """
    return list(dict.fromkeys(point for entry in grid for point in expand_entry(entry)))


def expand_entry(entry: GridSettings) -> Iterator[SweepPoint]:
    """The points of one entry, in the order of the preset's values and then of those beside it.

    Raises:
        InputError: an unknown method, preset or setting, or a value out of bounds.
    """
    values, kind = preset_values(entry), METHODS[entry.method].settings
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for combination in itertools.product(*values.values()):
        try:
            settings = adapter.validate_json(json.dumps(dict(zip(values, combination, strict=True))), strict=True)
        except ValidationError as error:
            raise InputError(first_error(error, [field.name for field in dataclasses.fields(kind)])) from None
        yield SweepPoint(entry.method, settings)


# Presets: the ranges that the papers sweep, by name, as in `{method: bild, preset: translation}` in `sweep.grid`. They stand
# with the settings of each method, in `tasks/decoding/methods/`.


def preset_values(entry: GridSettings) -> dict[str, Sequence[Any]]:
    """The values of an entry's preset, updated with the entry's own `values`.

    Raises:
        InputError: the method or its preset is unknown, or a setting has an empty list of values.
    """
    if entry.method not in METHODS:
        raise InputError(f"unknown method {entry.method!r}; known are {', '.join(METHODS)}")
    known = METHODS[entry.method].presets
    if entry.preset and entry.preset not in known:
        have = f"it has {', '.join(known)}" if known else "it has none: give values"
        raise InputError(f"{entry.method} has no preset {entry.preset!r}; {have}")
    values = {**(known[entry.preset].values if entry.preset else {}), **entry.values}
    for name, given in values.items():
        if not given:
            raise InputError(f"{name} has no values, so the entry has no points; give at least one value or remove the setting")
    return values


def presets_table() -> str:
    """All presets as a Markdown table."""
    lines = ["| method | preset | points | values | source |", "|---|---|---|---|---|"]
    for method, spec in METHODS.items():
        for name, preset in spec.presets.items():
            values = "; ".join(f"`{key}` {', '.join(map(_text, given))}" for key, given in preset.values.items())
            points = math.prod(len(given) for given in preset.values.values())
            lines.append(f"| `{method}` | `{name}` | {points} | {values} | {preset.source} |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# What a task of the metric perplexity can ask for: methods and settings that decode a given text (`given_text`).

SCORING_METHODS = ("bild", "token_cascade")
"""The methods of the registry that score a given text; the two baselines do as well."""


def perplexity_problems(task: Task) -> Iterator[str]:
    """Problems of a task with the metric perplexity, each with section and fix; none with another metric."""
    if metric_of(task.metric).name != PERPLEXITY:
        return
    sweep = task.sweep
    if sweep.sampling != SamplingSettings(temperature=1.0):
        yield (
            "sweep: with the metric perplexity sampling must be {temperature: 1.0} without top_k and top_p, since a "
            "perplexity is of the distribution that tokens are drawn from; set it"
        )
    if sweep.temperatures:
        yield "sweep: temperatures is set, but a perplexity is of temperature 1 alone; remove it"
    trainings = {"finetune.large": task.finetune.large, "finetune.small": task.finetune.small, "align": task.align}
    for name, training in trainings.items():
        if training.choose_by == "quality":
            yield f"{name}: choose_by is quality, which is of outputs; set it to validation_loss, the logarithm of a perplexity"
    if task.align.draft_vocabulary:
        yield (
            f"align: draft_vocabulary is {task.align.draft_vocabulary}, so that all other tokens have no probability and a "
            "text with one of them an infinite perplexity; set it to 0"
        )
    if task.models.small.own_tokenizer:
        yield "models.small: own_tokenizer is true, and a perplexity mixes predictions of the same tokens; leave it out"
    for index, entry in enumerate(sweep.grid):
        for point in expand_entry(entry):
            if problem := _point_problem(point):
                yield f"sweep.grid.{index}: {problem}"


def _point_problem(point: SweepPoint) -> str:
    if point.method not in SCORING_METHODS:
        return (
            f"{point.method} scores no given text: a lossless method has the large model's perplexity by definition, and in "
            f"others a drawn token decides what is kept; with this metric a grid takes {' and '.join(SCORING_METHODS)}"
        )
    settings = point.settings
    if isinstance(settings, BildSettings) and settings.rollback_threshold < math.inf:
        return (
            f"bild has a rollback_threshold of {settings.rollback_threshold:g}, but no token of a given text is replaced; set "
            "it to .inf"
        )
    if isinstance(settings, BildSettings) and settings.drafter != "small":
        return (
            f"bild has the drafter {settings.drafter}, whose drafts a given text replaces; with the metric perplexity use small"
        )
    return ""
