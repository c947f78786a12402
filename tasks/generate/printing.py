"""Writes a text as it grows, with what the small model proposed set apart, and what its decoding took."""

from __future__ import annotations

import sys
from typing import TextIO

from tasks.decoding.generation import CORRECTED, SMALL, Generation
from tasks.decoding.pieces import Detokenise, pieces_by_proposer
from tasks.decoding.turn import RowState

_COLOURS = {SMALL: "\033[32m", CORRECTED: "\033[31m"}
_END = "\033[0m"
_MARKS = {SMALL: ("[", "]"), CORRECTED: ("{", "}")}
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How tokenizers write the first bytes of a character whose others have not come yet."""


def legend(*, coloured: bool) -> str:
    """Return what colours or marks mean."""
    if coloured:
        drafted, corrected = f"{_COLOURS[SMALL]}drafted{_END}", f"{_COLOURS[CORRECTED]}corrected{_END}"
        return f"{drafted} and kept, {corrected} by the large model, others the large model's own"
    return "[drafted] and kept, {corrected} by the large model, others the large model's own"


class TextWriter:
    """Writes one text piece by piece."""

    def __init__(self, text: Detokenise, out: TextIO | None = None, *, coloured: bool) -> None:
        """Take what makes a text of tokens, where to write, and whether to set pieces apart by colour or by marks."""
        self._text, self._out, self._coloured = text, out or sys.stdout, coloured
        self._shown = 0
        """Characters that are written."""
        self._open = ""
        """Proposer of the last character written, whose mark is not closed yet."""

    def watch(self, row: RowState) -> None:
        """Write what a turn has added; `loop.LoopParts.watch` takes this."""
        self._write(row.tokens[row.prompt :], row.proposers)

    def finish(self, generation: Generation) -> None:
        """Write what is left of a text, and end its line."""
        self._write(generation.tokens, generation.proposers, whole=True)
        self._change_to("")
        self._out.write("\n")
        self._out.flush()

    def _write(self, tokens: list[int], proposers: str, *, whole: bool = False) -> None:
        pieces = pieces_by_proposer(tokens, proposers, self._text)
        written = "".join(piece for piece, _ in pieces)
        if not whole and written.endswith(_UNFINISHED):
            return
        begin = 0
        for piece, proposer in pieces:
            new = piece[max(0, self._shown - begin) :]
            begin += len(piece)
            if new:
                self._change_to(proposer)
                self._out.write(new)
        self._shown = max(self._shown, len(written))
        self._out.flush()

    def _change_to(self, proposer: str) -> None:
        if proposer == self._open:
            return
        if self._coloured:
            self._out.write((_END if self._open in _COLOURS else "") + _COLOURS.get(proposer, ""))
        else:
            self._out.write(_MARKS.get(self._open, ("", ""))[1] + _MARKS.get(proposer, ("", ""))[0])
        self._open = proposer


def statistics_line(generation: Generation, times: tuple[float, float] | None, *, same: bool | None) -> str:
    """Return what the decoding of a text took, in words.

    Args:
        generation: What the method decoded.
        times: Milliseconds of the method and of vanilla; None where they were not measured.
        same: Whether the text is vanilla's own, token for token; None where vanilla did not decode.
    """
    counts = generation.counts
    parts = [f"{counts.tokens} tokens", f"{counts.large_calls} runs of the large model"]
    if counts.drafted:
        parts.append(f"{counts.accepted} of {counts.drafted} drafted tokens kept ({counts.accepted / counts.drafted:.0%})")
    line = ", ".join(parts)
    if times is not None:
        method, vanilla = times
        line = f"{method:.1f} ms, vanilla {vanilla:.1f} ms: {vanilla / method:.2f}× as fast; {line}"
    if same is not None:
        line += "; the same text as vanilla's" if same else "; not vanilla's text"
    return line
