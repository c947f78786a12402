"""The points of a sweep: every combination of a grid's values, checked, each once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tasks.decoding.settings import METHOD_SETTINGS, VanillaSettings
from tasks.decoding.settings.configured import ConfiguredMethod
from tasks.errors import InputError
from tasks.evaluation.frontier import VANILLA as VANILLA_METHOD
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.presets import preset_values
from tasks.setting_errors import first_error


@dataclass(frozen=True)
class SweepPoint(ConfiguredMethod):
    """A method at one setting, as a point of a sweep."""

    @property
    def row_settings(self) -> Settings:
        """The settings as rows hold them."""
        return self.plain_settings


VANILLA = SweepPoint(VANILLA_METHOD, VanillaSettings())
BASELINES = (VANILLA, SweepPoint("vanilla_small", VanillaSettings()))


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
    values, kind = preset_values(entry), METHOD_SETTINGS[entry.method]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for combination in itertools.product(*values.values()):
        try:
            settings = adapter.validate_python(dict(zip(values, combination, strict=True)))
        except ValidationError as error:
            raise InputError(first_error(error, [field.name for field in dataclasses.fields(kind)])) from None
        yield SweepPoint(entry.method, settings)
