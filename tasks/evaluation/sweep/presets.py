"""Presets: the ranges that the papers sweep, by name, as in `{method: bild, preset: translation}` in `sweep.grid`.

They stand beside the settings of each method, in `tasks/decoding/methods/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings


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
    return "\n".join(["| method | preset | points | values | source |", "|---|---|---|---|---|", *_lines()])


def _lines() -> Iterator[str]:
    for method, spec in METHODS.items():
        for name, preset in spec.presets.items():
            values = "; ".join(f"`{key}` {', '.join(map(_text, given))}" for key, given in preset.values.items())
            points = math.prod(len(given) for given in preset.values.values())
            yield f"| `{method}` | `{name}` | {points} | {values} | {preset.source} |"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
