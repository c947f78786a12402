"""The points that a grid stands for, checked, each once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tasks.decoding.settings import METHOD_SETTINGS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.presets import preset_values


def expand_entry(entry: GridSettings) -> Iterator[Any]:
    """The settings of every point of one entry, in the order of its values: the preset's first, then those given beside it.

    Raises:
        InputError: an unknown method, preset or setting, or a value out of bounds.
    """
    values = preset_values(entry)
    adapter: TypeAdapter[Any] = TypeAdapter(METHOD_SETTINGS[entry.method])
    for combination in itertools.product(*values.values()):
        try:
            yield adapter.validate_python(dict(zip(values, combination, strict=True)))
        except ValidationError as error:
            raise InputError(first_error(error)) from None


def expand(grid: Sequence[GridSettings]) -> list[tuple[str, Any]]:
    """Method and settings of every point of a whole grid, in order.

    What two entries have in common, such as a preset and a finer range inside it, is there once.

    Raises:
        InputError: as `points`.
    """
    return list(dict.fromkeys((entry.method, settings) for entry in grid for settings in expand_entry(entry)))


def first_error(error: ValidationError) -> str:
    """The first mistake as `place: what is wrong; what would be right`."""
    first = error.errors()[0]
    index = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown setting {index}; remove it or correct its name"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] in ("value_error", "missing") else f" (found {first['input']!r})"
    return f"{index}: {message}{found}" if index else f"{message}{found}"
