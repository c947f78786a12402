"""Settings that differ from `params.yaml`: read from options or a grid file, checked, written into its text, named."""

from __future__ import annotations

import copy
import io
import itertools
import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.experiments.setting_names import check_name, flat, setting_fields
from tasks import config
from tasks.errors import InputError

Changes = dict[str, Any]
"""Values by the dotted names of settings, such as `tasks.translation.align.beta`."""
_LONGEST_NAME = 80


def read_option(text: str) -> tuple[str, Any]:
    """Return name and value of an option `NAME=VALUE`; the value is YAML, and `1e-3` is a number as well.

    Raises:
        InputError: it has another form.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"--set {text}: give NAME=VALUE, such as tasks.translation.align.beta=0.3")
    try:
        return name.strip(), _number(yaml.safe_load(value))
    except yaml.YAMLError:
        raise InputError(f"--set {text}: {value} is not YAML; quote it, as in --set '{name}=\"…\"'") from None


def read_grid(path: Path) -> list[Changes]:
    """Return the experiments of a grid file.

    The file maps names of settings to lists of values, of which every combination is an experiment, or lists the experiments,
    each a map of names to values.

    Raises:
        InputError: the file is missing or has another form.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no grid file {path}; give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    if isinstance(raw, list) and raw and all(isinstance(one, dict) and one for one in raw):
        return [{str(name): _number(value) for name, value in one.items()} for one in raw]
    if isinstance(raw, dict) and raw:
        axes = [(str(name), values if isinstance(values, list) else [values]) for name, values in raw.items()]
        empty = next((name for name, values in axes if not values), None)
        if empty is not None:
            raise InputError(f"{path}: {empty} has no values; give at least one, as in {empty}: [1, 2]")
        combinations = itertools.product(*([(name, _number(value)) for value in values] for name, values in axes))
        return [dict(combination) for combination in combinations]
    raise InputError(f"{path}: give lists of values by setting, as in tasks.x.align.beta: [0.1, 0.3], or a list of maps")


class ParameterFile:
    """The text of `params.yaml`, checked once, from which the texts of many experiments are made."""

    def __init__(self, text: str) -> None:
        """Check the text.

        Raises:
            InputError: it is wrong; names the setting and the fix.
        """
        self.fields = {field.name: field for field in setting_fields(config.check(text, str(config.DEFAULT)))}
        self._yaml = YAML()
        self._yaml.width = 4096
        self._yaml.preserve_quotes = True
        self._yaml.indent(mapping=2, sequence=4, offset=2)
        try:
            self._content = self._yaml.load(text)
        except YAMLError as error:
            raise InputError(f"{config.DEFAULT} cannot be changed: {' '.join(str(error).split())}; correct it") from None

    def changed(self, changes: Changes) -> str:
        """Return the text with changes, checked by the schema; comments stay.

        Raises:
            InputError: there is no such setting, or the file with the changes is wrong; names the setting and the fix.
        """
        content = copy.deepcopy(self._content)
        for name, value in sorted(changes.items()):  # the same text whatever the order: equal experiments are recognised
            check_name(name, self.fields)
            _put(content, name, value)
        text = io.StringIO()
        self._yaml.dump(content, text)
        config.check(text.getvalue(), f"{config.DEFAULT} with {as_text(changes)}", lines=False)
        return text.getvalue()


def read_form(text: str, values: Mapping[str, Any]) -> Changes:
    """Return the changes that a form holds, whose sections are those of the parameter file with this text."""
    return flat(values, ParameterFile(text).fields)


def as_text(changes: Changes) -> str:
    """Return changes as options are written: `a.b=1 c=x`."""
    return " ".join(f"{name}={_value_text(value)}" for name, value in changes.items())


def name_of(changes: Changes) -> str:
    """Return a short name for an experiment: the last words of its settings with their values, such as `beta=0.3`.

    A name has only characters that git allows in the name of a ref.
    """
    words = _shortest_endings(list(changes))
    parts = [f"{word}={_short(value)}" for word, value in zip(words, changes.values(), strict=True)]
    return _allowed(",".join(parts)[:_LONGEST_NAME]) or "experiment"


def _number(value: Any) -> Any:
    """Return a text such as `1e-3`, which YAML 1.1 does not take for a number, as one; also inside a list."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", value):
        return float(value)
    return value


def _put(content: Any, name: str, value: Any) -> None:
    """Set a value; sections that the file leaves out are made.

    Raises:
        InputError: the name leads through a value that has nothing below it.
    """
    *sections, last = name.split(".")
    for number, section in enumerate(sections):
        if isinstance(content, MutableMapping) and content.get(section) is None:
            content[section] = {}
        content = content[_key(content, section, ".".join(sections[:number]), name)]
    content[_key(content, last, ".".join(sections), name, new=True)] = value


def _key(content: Any, word: str, place: str, name: str, *, new: bool = False) -> str | int:
    """Return what `word` is in a map or a list."""
    if isinstance(content, Mapping) and (new or word in content):
        return word
    if isinstance(content, Sequence) and not isinstance(content, str):
        if word.isdecimal() and int(word) < len(content):
            return int(word)
        raise InputError(f"{name}: {place} is a list of {len(content)}; name an item by its number, from 0")
    raise InputError(f"{name}: {place} is {content!r} in {config.DEFAULT} and has nothing below it; set {place} itself")


def _shortest_endings(names: list[str]) -> list[str]:
    """Return of each dotted name its last words, as few as tell it from the others."""
    endings = []
    for name in names:
        words = name.split(".")
        ending = (".".join(words[-length:]) for length in range(1, len(words) + 1))
        endings.append(next((one for one in ending if sum(f".{other}".endswith(f".{one}") for other in names) == 1), name))
    return endings


def _short(value: Any) -> str:
    return "+".join(map(_value_text, value)) if isinstance(value, list) else _value_text(value)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _allowed(text: str) -> str:
    """Replace what git does not allow in the name of a ref, and what a shell would read as something else, by dashes."""
    plain = re.sub(r"\.lock$|\.{2,}", "-", re.sub(r"[^\w.,=+-]+", "-", text))
    return re.sub(r"-{2,}", "-", plain).strip(".-,")
