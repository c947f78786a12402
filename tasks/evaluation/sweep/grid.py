"""The points of a sweep: every combination of a grid's values, checked, each once."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tasks.decoding.methods.baselines import VANILLA as VANILLA_METHOD
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import METHODS, ConfiguredMethod
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.settings import first_error

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


def runs_no_small_model(point: SweepPoint) -> bool:
    """Whether a point is the same for all drafters of a large model, since no small model runs in it."""
    return METHODS[point.method].large_only or getattr(point.settings, "drafter", "small") != "small"


def is_vanillas_output(point: SweepPoint) -> bool:
    """Whether a point gives the output of the vanilla large model; a beam search gives that of another search."""
    return METHODS[point.method].lossless and "beam" not in point.method


_adapter_of = functools.cache(TypeAdapter[Any])


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
    adapter = _adapter_of(kind)
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
