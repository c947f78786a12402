"""Says in one line what is wrong with a setting: where it stands in the file, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

Location = Sequence[int | str]
"""The keys and indices on the way to a setting."""


def first_error(error: ValidationError, names: Iterable[str] = ()) -> str:
    """The first error as `field: problem; fix`.

    Args:
        error: What the check of settings raised.
        names: The settings that exist where one is unknown.
    """
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = difflib.get_close_matches(str(first["loc"][-1]), names, n=1)
        return f"unknown setting {path}; {f'did you mean {near[0]}?' if near else 'remove it or correct its name'}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] in ("value_error", "missing") else f" (found {first['input']!r})"
    return f"{path}: {message}{found}" if path else f"{message}{found}"


def first_error_in(text: str, error: ValidationError, schema: type[BaseModel]) -> tuple[int, str]:
    """The line of a YAML text where the first error is, counted from 1, and the error as `first_error` says it."""
    location = error.errors()[0]["loc"]
    return line_of(text, location), first_error(error, _names_at(schema, location[:-1]))


def line_of(text: str, location: Location) -> int:
    """The line of a YAML text, counted from 1, where a setting stands, or else the innermost one around it that is there."""
    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for part in location:
        found = next((pair for pair in reversed(_children(node)) if pair[0] == part), None)
        if found is None:
            break
        _, line, node = found
    return line


def _children(node: yaml.Node | None) -> list[tuple[int | str, int, yaml.Node]]:
    """Key or index, line and value of what a node holds."""
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, value.start_mark.line + 1, value) for index, value in enumerate(node.value)]
    return []


def _names_at(schema: type[BaseModel], location: Location) -> list[str]:
    """The settings of the section at a location; empty where there are none."""
    whole: dict[str, Any] = schema.model_json_schema()

    def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
        variants = [part, *part.get("anyOf", ())]
        reference = next((variant["$ref"] for variant in variants if "$ref" in variant), None)
        return part if reference is None else whole["$defs"][reference.rpartition("/")[2]]

    section: Mapping[str, Any] = whole
    for key in location:
        inner = section.get("items") if isinstance(key, int) else section.get("properties", {}).get(key)
        section = resolved(inner or section.get("additionalProperties") or {})
    return list(section.get("properties", ()))
