"""How a decoding learns, from another thread, that nobody waits for its texts any more."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence


class AbandonedError(Exception):
    """Nobody waits any more for any of the texts that were being decoded."""


class Abandonment:
    """A flag for one text. Compiled code reads it too, which no `threading.Event` allows."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    @property
    def address(self) -> int:
        """Where the int32 lies that is not zero once the text is abandoned."""
        return ctypes.addressof(self._flag)

    def set(self) -> None:
        """Abandon the text."""
        self._flag.value = 1

    def is_set(self) -> bool:
        """Return whether the text is abandoned."""
        return bool(self._flag.value)


def require_awaited(texts: Sequence[Abandonment]) -> None:
    """Raise `AbandonedError` where there are flags and all of them are set."""
    if texts and all(text.is_set() for text in texts):
        raise AbandonedError
