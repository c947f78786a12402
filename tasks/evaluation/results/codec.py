"""Records as JSON and back: one format version, strict reading, errors that name the field.

Every record is a frozen dataclass whose attributes have the names of the JSON keys. Reading checks types, fills nullable fields
that are absent with None and ignores keys that it does not know.
"""

from __future__ import annotations

import functools
import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from tasks.errors import InputError
from tasks.files import sealed, unsealed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION = 1
"""Of all files of results. A file without a version is older, and is read as version 1."""

Json = dict[str, JsonValue]
Setting = bool | int | float | str | None
Settings = dict[str, Setting]
"""A method's settings as a row holds them; infinity is the text `inf`."""

_Record = TypeVar("_Record")
_adapter = functools.cache(TypeAdapter)
"""Of a record; building one takes milliseconds."""


@dataclass(frozen=True)
class Source:
    """Where a record is read from, for errors."""

    name: str
    """The file, and the line where it has several records."""
    fix: str
    """What the user does about a damaged file, as an imperative clause."""

    def error(self, problem: str) -> InputError:
        """The one line that the user reads."""
        return InputError(f"{self.name}: {problem}; {self.fix}")


def parse(text: str, source: Source) -> Json:
    """A JSON object of this version.

    Raises:
        InputError: the text is not as it was written, is not JSON, holds no object, or is of another version.
    """
    try:
        text = unsealed(text)
    except ValueError as error:
        raise source.error(str(error)) from None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise source.error(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise source.error("not a JSON object")
    version = value.get("version", VERSION)
    if version != VERSION:
        raise source.error(f"version {version!r}, but this code reads version {VERSION}")
    return value


def decode(kind: type[_Record], value: object, source: Source) -> _Record:
    """The record that a JSON value holds.

    Raises:
        InputError: a field is missing or has another type.
    """
    try:
        record: _Record = _adapter(cast("Any", kind)).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"] if not (isinstance(part, str) and part[:1].isupper()))
        found = "is missing" if first["type"] == "missing" else f"is {reprlib.repr(first['input'])}: {first['msg']}"
        raise source.error(f"field {path!r} {found}") from None
    return record


def read(kind: type[_Record], path: Path, source: Source) -> _Record:
    """The one record that a file holds.

    Raises:
        InputError: the file is damaged or of another version.
    """
    return decode(kind, parse(path.read_text(encoding="utf-8", errors="replace"), source), source)


def text_of(record: DataclassInstance, digits: int | None = None) -> str:
    """The text of such a file; floats rounded to so many significant digits, or exact."""
    values = {"version": VERSION, **encode(record, digits=digits)}
    return sealed(json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def encode(record: DataclassInstance, *, digits: int | None = None, omit_null: bool = False) -> dict[str, Any]:
    """A record as strict JSON values.

    Args:
        record: A dataclass; nested records are encoded as well.
        digits: Round floats to so many significant digits; None keeps them exact.
        omit_null: Leave out fields of this record that are None.

    Returns:
        Plain values: infinity as text, NaN as null, dictionary keys as text.
    """
    value = _adapter(type(record)).dump_python(record, by_alias=True)
    return {key: _plain(item, digits) for key, item in value.items() if item is not None or not omit_null}


def joined(kind: type[_Record], *parts: DataclassInstance, **rest: object) -> _Record:
    """A record made from fields of other records, and from further fields.

    Args:
        kind: The record to make.
        parts: Records that hold some of its fields; their other fields are left out.
        rest: Further fields, which take precedence.
    """
    wanted = {field.name for field in fields(cast("type[DataclassInstance]", kind))}
    values = {field.name: getattr(part, field.name) for part in parts for field in fields(part) if field.name in wanted}
    return kind(**{**values, **rest})


def _plain(value: Any, digits: int | None) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, digits) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return str(float(value))
        return float(f"{value:.{digits}g}") if digits else float(value)
    return value
