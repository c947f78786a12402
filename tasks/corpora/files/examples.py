"""Makes an example of a record by the names of its fields and the template."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tasks.corpora.example import Example
from tasks.corpora.files.records import Record
from tasks.corpora.files.settings import FileSettings, listed
from tasks.corpora.files.template import SOURCE, Template, parse_template
from tasks.errors import InputError

_MISSING = object()
_LONGEST_NAME = 40
"""Characters of a column's name in an error: where a table has no header, a name is a sentence."""


class ExampleMaker:
    """Makes examples of records."""

    def __init__(self, settings: FileSettings, *, labelled: bool = True) -> None:
        """Take the names of fields and the template; of unlabelled records only the source is read."""
        self._settings = settings
        self._labelled = labelled
        self._pieces = parse_template(settings.template)
        self._fields = [self._field(name) for _, name in self._pieces if name is not None]

    @property
    def wanted(self) -> set[str]:
        """The fields that are used."""
        return {*self._fields, *(self._settings.reference_names if self._labelled else ())}

    def check(self, known: Collection[str] | Mapping[str, object], location: str, noun: str = "field") -> None:
        """Check that a record, or the header of a table, has the fields that examples are made of.

        Raises:
            InputError: names the field that is missing and those that there are.
        """
        names = self._settings.reference_names
        unlabelled = self._labelled and not any(_has(known, name) for name in names)
        for name in self._fields:
            if not _has(known, name):
                what = "source_field" if name == self._settings.source_field else "the names in template"
                also = f", and reference_fields, as there is no {listed(names)} either" if unlabelled else ""
                raise InputError(f"{location}: no {noun} {name}; set {what} to one of {_shown(known)}{also}")
        if unlabelled:
            raise InputError(f"{location}: no {noun} {listed(names)}; set reference_fields to some of {_shown(known)}")

    def example(self, record: Record) -> Example:
        """The example of one record, white space around its texts removed and equal references merged.

        Raises:
            InputError: a field is missing, empty or no text; names the place.
        """
        values, location = record.values, record.location
        self.check(values, location)
        texts = {name: self._source_text(values, name, location) for name in dict.fromkeys(self._fields)}
        source = "".join(literal + ("" if name is None else texts[self._field(name)]) for literal, name in self._pieces).strip()
        if not source:
            raise InputError(f"{location}: all fields of the template are empty; fill one, or remove the line")
        if not self._labelled:
            return Example(source, ())
        present = [name for name in self._settings.reference_names if _has(values, name)]
        if self._settings.has_usual_references:
            present = present[:1]
        references = [text for name in present for text in _texts(_get(values, name), name, location, several=True)]
        return Example(source, tuple(dict.fromkeys(references)))

    def _source_text(self, values: Mapping[str, object], name: str, location: str) -> str:
        """A field of the source; one that only the template names may be empty, as some inputs of instructions are."""
        value = _get(values, name)
        if name != self._settings.source_field and isinstance(value, str) and not value.strip():
            return ""
        (text,) = _texts(value, name, location, several=False)
        return text

    def _field(self, name: str) -> str:
        return self._settings.source_field if name == SOURCE else name


def filled(template: Template, source: str) -> str:
    """The text of a template that names the source alone."""
    return "".join(literal + ("" if name is None else source) for literal, name in template).strip()


def _shown(names: Iterable[str]) -> str:
    return listed(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…" for name in names)


def _get(known: Mapping[str, object], name: str) -> object:
    """The value of a field, or of `b` inside of `a` for the name `a.b`; `_MISSING` where there is none."""
    if name in known:
        return known[name]
    outer, _, inner = name.partition(".")
    inside = known.get(outer)
    return _get(inside, inner) if inner and isinstance(inside, Mapping) else _MISSING


def _has(known: Collection[str] | Mapping[str, object], name: str) -> bool:
    """Whether there is such a field; of the columns of a table only the outer ones are known."""
    if isinstance(known, Mapping):
        return _get(known, name) is not _MISSING
    return name in known or name.partition(".")[0] in known


def _texts(value: object, field: str, location: str, several: bool) -> list[str]:
    """Return the non-empty strings in a field: one string or, if `several` is true, also a list of strings."""
    given = value if several and isinstance(value, list) else [value]
    wanted = "a string or a list of strings" if several else "a string"
    texts = []
    for text in given:
        if not isinstance(text, str):
            raise InputError(f"{location}: {field} contains {type(text).__name__}; it must be {wanted}")
        if not text.strip():
            raise InputError(f"{location}: {field} is empty; fill it, or remove the line")
        if "\0" in text:
            raise InputError(f"{location}: {field} holds a NUL character, which is no text; remove it")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{location}: {field} contains half of a surrogate pair; write the whole character") from None
        texts.append(text.strip())
    if not texts:
        raise InputError(f"{location}: {field} is an empty list; give at least one text, or remove the line")
    return texts
