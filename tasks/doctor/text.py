"""Makes one line of what a check reports."""

from __future__ import annotations

_LONGEST = 240
"""Characters of an exception's message."""


def one_line(error: BaseException) -> str:
    """Return an exception's type and the beginning of its message."""
    return shortened(f"{type(error).__name__}: {error}")


def shortened(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


def listed(names: list[str], most: int = 6) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} more" if others > 0 else "")
