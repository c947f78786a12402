"""Declares settings as fields of frozen dataclasses, with a description, a unit and bounds.

Settings are defined next to the code that uses them and need only the standard library, so that decoding runs where pydantic is
missing. `tasks.config` collects them into the schema of `params.yaml`, where pydantic checks types and names and reports the
position of a mistake. Bounds are checked here, whoever constructs the settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_args, get_type_hints

from tasks.errors import InputError

if TYPE_CHECKING:
    import argparse

    from _typeshed import DataclassInstance
    from pydantic import ValidationError

T = TypeVar("T")
SEEDS = 2**64 - 1
"""The largest seed."""
_MOST = 10**9
"""Of a whole number without an upper bound of its own: a larger one is a slip, and nothing has memory or time for it."""


def setting(
    description: str,
    *,
    default: object = dataclasses.MISSING,
    default_factory: Callable[[], object] | None = None,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[object, ...] = (),
    infinite: bool = False,
) -> Any:
    """Declare a dataclass field with a description and bounds; without a default it is required.

    A number is finite unless the field is `infinite`; NaN is never accepted.
    """
    metadata = {
        "description": description,
        "unit": unit,
        "bounds": {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if value is not None},
        "choices": choices,
        "infinite": infinite,
    }
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str, str]] = {
    "ge": (operator.ge, "at least", "≥"),
    "gt": (operator.gt, "more than", ">"),
    "le": (operator.le, "at most", "≤"),
    "lt": (operator.lt, "less than", "<"),
}
"""What a value within a bound is to it: the comparison, its words and its sign. NaN is within none."""


def bounds_text(bounds: Mapping[str, float]) -> str:
    """Return the bounds of a setting as `≥ 0, < 1`."""
    return ", ".join(f"{_BOUNDS[name][2]} {bound}" for name, bound in bounds.items())


def _check_field(field: dataclasses.Field[object], value: Any) -> None:
    """Raise `ValueError` if `value` or one of its items is out of the field's bounds or choices."""
    for item in value if isinstance(value, list | tuple) else (value,):
        choices = field.metadata.get("choices", ())
        if choices and item not in choices:
            raise ValueError(f"{field.name} is {item!r:.60}; it must be one of {', '.join(map(str, choices))}")
        bounds = field.metadata.get("bounds", {})
        if isinstance(item, int) and not bounds.keys() & {"le", "lt"}:
            bounds = {**bounds, "le": _MOST}
        for name, bound in bounds.items():
            holds, words, _ = _BOUNDS[name]
            if item is not None and not holds(item, bound):
                raise ValueError(f"{field.name} is {item}; it must be {words} {bound}")
        infinite = field.metadata.get("infinite", False)
        if isinstance(item, float) and (math.isnan(item) or (math.isinf(item) and not infinite)):
            raise ValueError(f"{field.name} is {item}; it must be a {'number' if infinite else 'finite number'}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def settings(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that checks its bounds and rejects unknown names.

    A class may define `validate(self)` to check fields against each other; it raises `ValueError` as well.
    """

    def post_init(self: DataclassInstance) -> None:
        for field in dataclasses.fields(self):
            _check_field(field, getattr(self, field.name))
        validate = getattr(self, "validate", None)
        if validate is not None:
            validate()

    cls.__post_init__ = post_init  # type: ignore[attr-defined]
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def read_settings(kind: type[T], values: Mapping[str, object]) -> T:
    """Make a settings class from the plain values that JSON and keyword arguments hold, without pydantic.

    A whole number is accepted where the field is a float, and the texts `inf` and `-inf`, which JSON lacks as numbers.

    Raises:
        ValueError: a name is unknown or missing, a value has another type, or it is out of its bounds. The message names the
            field and what would be right.
    """
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            known = f"the settings are {', '.join(hints)}" if hints else "there are no settings"
            raise ValueError(f"unknown setting {name}; {known}")
    try:
        return kind(**{name: _plain_value(name, value, hints[name]) for name, value in values.items()})
    except TypeError as error:
        raise ValueError(str(error).partition(".__init__() ")[2] or str(error)) from None


def _plain_value(name: str, value: object, hint: object) -> object:
    kinds = get_args(hint) or (hint,)
    if float in kinds and (value in ("inf", "-inf") or (isinstance(value, int) and not isinstance(value, bool))):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(getattr(kind, "__name__", str(kind)).replace("NoneType", "none") for kind in kinds)
        raise ValueError(f"{name} is {value!r:.60}; it must be of type {names}")
    return value


def add_options(parser: argparse.ArgumentParser, kind: type[DataclassInstance]) -> None:
    """Add an option for each field of a settings class, such as `--max-batch` for `max_batch`."""
    for one in dataclasses.fields(kind):
        choices, text = one.metadata["choices"] or None, f"{one.metadata['description']} (default: {one.default})"
        option = "--" + one.name.replace("_", "-")
        parser.add_argument(option, type=type(one.default), default=one.default, choices=choices, help=text)


def read_options(kind: type[T], arguments: argparse.Namespace) -> T:
    """Make a settings class from the options that `add_options` has added.

    Raises:
        InputError: an option is out of bounds.
    """
    try:
        return kind(**{name: getattr(arguments, name) for name in get_type_hints(kind)})
    except ValueError as error:
        name, _, reason = str(error).partition(" ")
        raise InputError(f"--{name.replace('_', '-')} {reason}") from None


def first_error(error: ValidationError, names: Iterable[str] = ()) -> str:
    """The first error as `field: problem; fix`.

    Args:
        error: What the check of settings raised.
        names: The settings that exist where one is unknown.
    """
    first = error.errors()[0]
    # Of a setting that may be a text or a list, the location names the kind too.
    path = ".".join(f"{part!s:.60}" for part in first["loc"] if part != "str")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = difflib.get_close_matches(str(first["loc"][-1]), names, n=1)
        return f"unknown setting {path}; {f'did you mean {near[0]}?' if near else 'remove it or correct its name'}"
    message = _REASONS.get(first["type"], first["msg"].removeprefix("Value error, "))
    _, should_be, wanted = message.partition("Input should be ")
    if should_be:
        kind, found = wanted.split()[-1], first["input"]
        message = f"it must be {_KINDS.get(kind, wanted)}, not " + ("nothing" if found is None else f"{found!r:.60}")
        if kind == "number" and isinstance(found, str) and (power := _POWER.fullmatch(found)):
            message += f"; write {power[1]}{power[2] or '.0'}e{power[3] or '+'}{power[4]}"
    return f"{path}: {message}" if path else message


_REASONS = {"missing": "it is missing; add it", "too_short": "it is empty; give at least one"}
_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text", "array": "a list"}
_KINDS["object"] = "names with values"
"""What a value should be, by pydantic's word for it."""
_POWER = re.compile(r"([-+]?\d+)(\.\d*)?[eE]([-+]?)(\d+)")
"""A number that YAML takes for a text, as it lacks a point or the sign of its exponent."""
