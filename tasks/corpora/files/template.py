"""Templates of the text that models read: `translate German to English: {source}`."""

from __future__ import annotations

import string

SOURCE = "source"
"""Stands for the source text in a template, whatever its column is called."""

Template = list[tuple[str, str | None]]
"""Pieces in order: a literal text and the name that follows it, which the last piece may lack."""


def parse_template(template: str) -> Template:
    """The pieces of a template; an empty one is the source itself.

    Raises:
        ValueError: a brace is not closed, a name is missing or carries a format, or there is no name at all.
    """
    try:
        parsed = list(string.Formatter().parse(template or f"{{{SOURCE}}}"))
    except ValueError as error:
        raise ValueError(f"template is {template!r}: {error}; write {{{{ and }}}} for braces of the text") from None
    for _, name, form, conversion in parsed:
        if name is not None and (not name.strip() or form or conversion):
            raise ValueError(f"template is {template!r}; braces hold the name of a column alone, such as {{{SOURCE}}}")
    if all(name is None for _, name, _, _ in parsed):
        raise ValueError(f"template is {template!r}, the same text for every example; it must name {{{SOURCE}}} or columns")
    return [(literal, name) for literal, name, _, _ in parsed]
