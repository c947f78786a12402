"""The settings that `params.yaml` can hold, by dotted name, from the schema: `tasks.translation.align.learning_rate`."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

from tasks.errors import InputError
from tasks.schema import Params

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""The words of a JSON schema for the bounds of a setting."""


@dataclass(frozen=True)
class SettingField:
    """A setting of `params.yaml` that has no named settings below it."""

    name: str
    schema: dict[str, Any]
    """Its type, bounds and description as a JSON schema."""


def setting_fields(params: Params) -> Iterator[SettingField]:
    """Yield the settings of a file: the lists of tasks, those of the machine, then those of each task, active tasks first."""
    hints = typing.get_type_hints(Params)
    for name in ("active", "inactive"):
        schema = TypeAdapter(hints[name]).json_schema()
        yield SettingField(name, {"description": Params.model_fields[name].description, **schema})
    yield from _below("machine", type(params.machine))
    for task in [*params.active, *params.inactive]:
        yield from _below(f"tasks.{task}", type(params.tasks[task]))


def check_name(name: str, fields: Mapping[str, SettingField]) -> None:
    """Check that there is such a setting, or a section of that name; a list or dictionary may have anything below it.

    Raises:
        InputError: there is none; names the most similar one.
    """
    if any(known == name or known.startswith(f"{name}.") or name.startswith(f"{known}.") for known in fields):
        return
    similar = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)
    raise InputError(
        f"params.yaml has no setting {name!r}; did you mean {similar[0]}? (python -m tasks.config --table lists all)"
    )


def form(fields: Iterator[SettingField]) -> dict[str, Any]:
    """Return a JSON schema of an object of objects with any of the settings; nothing is required, no other name is allowed."""
    top = _section()
    for field in fields:
        *sections, last = field.name.split(".")
        inner = top
        for section in sections:
            inner = inner["properties"].setdefault(section, _section(section))
        inner["properties"][last] = {"title": last, **field.schema}
    return top


def flat(values: Mapping[str, Any], fields: Mapping[str, SettingField], prefix: str = "") -> dict[str, Any]:
    """Return what a form holds by dotted names. Names may be dotted already."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        section = isinstance(value, Mapping) and any(known.startswith(f"{name}.") for known in fields)
        found |= flat(value, fields, f"{name}.") if section else {name: value}
    return found


def _section(title: str = "settings") -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": {}, "additionalProperties": False}


def _below(prefix: str, kind: type[Any]) -> Iterator[SettingField]:
    """Yield the settings of a class of settings or of a model of pydantic."""
    hints = typing.get_type_hints(kind)
    described: dict[str, tuple[str, dict[str, float], tuple[object, ...]]]
    if issubclass(kind, BaseModel):
        described = {name: (field.description or "", {}, ()) for name, field in kind.model_fields.items()}
    else:
        described = {
            field.name: (field.metadata["description"], field.metadata["bounds"], field.metadata["choices"])
            for field in dataclasses.fields(kind)
        }
    for name, (description, bounds, choices) in described.items():
        hint, title = hints[name], f"{prefix}.{name}"
        inner = next((one for one in (hint, *typing.get_args(hint)) if _has_settings(one)), None)
        if inner is not None and typing.get_origin(hint) not in (list, tuple, dict):
            yield from _below(title, inner)
        else:
            limits = {_BOUNDS[bound]: value for bound, value in bounds.items()} | ({"enum": list(choices)} if choices else {})
            yield SettingField(title, {"description": description, **_with_limits(TypeAdapter(hint).json_schema(), limits)})


def _with_limits(schema: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Add bounds and choices to a number or a word, or to the items of a list; leave out the inside of a list of sections."""
    if "$defs" in schema:
        return {"type": schema["type"]}
    if schema.get("type") == "array":
        return {**schema, "items": _with_limits(schema["items"], limits)}
    return {**schema, **({} if "anyOf" in schema else limits)}


def _has_settings(kind: object) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel))
