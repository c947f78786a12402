"""A method of the registry at one setting, checked, without loading torch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.decoding.settings import METHOD_SETTINGS
from tasks.errors import InputError
from tasks.settings import read_settings


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method of the registry at one setting."""

    method: str
    settings: Any
    """The method's settings dataclass, see `METHOD_SETTINGS`."""

    @functools.cached_property
    def plain_settings(self) -> dict[str, bool | int | float | str | None]:
        """The settings as JSON holds them: infinity, which it lacks, as text."""
        values = dataclasses.asdict(self.settings)
        return {name: str(value) if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.plain_settings.items())])


def configure_method(method: str, settings: Mapping[str, object]) -> ConfiguredMethod:
    """Return a method of the registry at the given settings; the others have their defaults.

    Raises:
        InputError: there is no such method or setting, or a value is not one of it.
    """
    if method not in METHOD_SETTINGS:
        raise InputError(f"method is {method}; it must be one of {', '.join(METHOD_SETTINGS)}")
    try:
        return ConfiguredMethod(method, read_settings(METHOD_SETTINGS[method], settings))
    except ValueError as error:
        raise InputError(f"{method}: {error}") from None
