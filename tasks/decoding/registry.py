"""The registry of decoding methods: all that `tasks/decoding/methods/` defines, and the functions that build and run one.

Importing it loads no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.decoding import methods
from tasks.decoding.method import REGISTERED, MethodSpec, Pair, Request
from tasks.errors import InputError
from tasks.settings import read_settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Rows
    from tasks.decoding.generation import Generation

# Importing a file runs its decorators, which fill `REGISTERED`.
for _module in pkgutil.iter_modules(methods.__path__, f"{methods.__name__}."):
    importlib.import_module(_module.name)

# By file, whichever was imported first.
METHODS: Mapping[str, MethodSpec] = dict(sorted(REGISTERED.items(), key=lambda item: item[1].build.__module__))
ORACLES = tuple(name for name, spec in METHODS.items() if spec.oracle)
"""Methods that run both models at every step: they show what a rule could do, and are never worth deploying."""
GREEDY_ONLY = tuple(name for name, spec in METHODS.items() if spec.greedy_only)
"""Methods that draw no tokens, and take temperature 0 alone."""
T5_ONLY = tuple(name for name, spec in METHODS.items() if spec.t5_only)
"""Methods that need the layers of a T5 or mT5."""
_FORMER_SWITCHES = frozenset((("bild", "large_first"), ("bild", "keep_agreed")))
"""Switches that methods had once; recorded points hold them, off."""


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method of the registry at one setting."""

    method: str
    settings: Any
    """An instance of the method's settings."""

    @functools.cached_property
    def plain_settings(self) -> dict[str, bool | int | float | str | None]:
        """The settings as JSON holds them: infinity, which it lacks, as text."""
        values = dataclasses.asdict(self.settings)
        return {name: str(value) if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.plain_settings.items())])


def configure_method(name: str, settings: Mapping[str, object]) -> ConfiguredMethod:
    """Return a method of the registry at the given settings; the others have their defaults.

    A switch that the method no longer has may be among them where it is off.

    Raises:
        InputError: there is no such method or setting, or a value is not one of it.
    """
    if name not in METHODS:
        raise InputError(f"method is {name}; it must be one of {', '.join(METHODS)}")
    values = {one: value for one, value in settings.items() if value is not False or (name, one) not in _FORMER_SWITCHES}
    try:
        return ConfiguredMethod(name, read_settings(METHODS[name].settings, values))
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def decode(
    name: str, settings: object, pair: Pair, sources: Rows, request: Request, examples: Sequence[int] | None = None
) -> list[Generation]:
    """Run a method of the registry on sources, side by side.

    Args:
        name: A key of `METHODS`.
        settings: An instance of that method's settings.
        pair: The two models.
        sources: Token ids of each source.
        request: Length limit, sampling and seed.
        examples: A number for each source that keys its random draws; by default its position.
    """
    numbers = range(len(sources)) if examples is None else examples
    return METHODS[name].make(settings, pair, request).run(sources, numbers, request.max_new_tokens)


def decode_all(name: str, settings: object, pair: Pair, sources: Rows, request: Request, batch_size: int) -> list[Generation]:
    """Decode a whole set in batches of similar length, and return it in the given order; the arguments are `decode`'s."""
    # Longest sources first: batches of similar length, and too little memory shows at once.
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    done: dict[int, Generation] = {}
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        generations = decode(name, settings, pair, [sources[index] for index in batch], request, batch)
        done.update(zip(batch, generations, strict=True))
    return [done[index] for index in range(len(sources))]
