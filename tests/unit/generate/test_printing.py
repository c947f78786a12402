"""Texts as they grow, with what the small model proposed set apart."""

from __future__ import annotations

import io

import pytest

from tasks.decoding.generation import Counts, Generation
from tasks.decoding.turn import RowState
from tasks.generate.__main__ import TextWriter, legend, statistics_line

WORDS = [" a", " man", " rides", "", " \N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"]
END = 3


def text(tokens: tuple[int, ...]) -> str:
    """Words without the first space; 4 and 5 together are one character."""
    return (
        "".join(WORDS[token] for token in tokens)
        .removeprefix(" ")
        .replace(" \N{REPLACEMENT CHARACTER}" * 2, " ü")
        .replace("\N{REPLACEMENT CHARACTER}" * 2, "ü")
    )


def grown(tokens: list[int], proposers: str, *, coloured: bool = False) -> list[str]:
    """What stands there after each token, and at the end."""
    out = io.StringIO()
    writer, shown = TextWriter(text, out, coloured=coloured), []
    for count in range(1, len(tokens) + 1):
        writer.watch(RowState(0, [9, *tokens[:count]], 1, proposers[:count]))
        shown.append(out.getvalue())
    writer.finish(Generation(tokens, proposers, Counts()))
    return [*shown, out.getvalue()]


def test_pieces_are_marked_as_they_come() -> None:
    assert grown([0, 1, 2, END], "ssls") == ["[a", "[a man", "[a man] rides", "[a man] rides", "[a man] rides\n"]
    assert grown([0, 1, END], "lcs")[-1] == "a{ man}\n"


def test_colours_end_with_their_piece() -> None:
    assert grown([0, 1, 2], "slc", coloured=True)[-1] == "\033[32ma\033[0m man\033[31m rides\033[0m\n"


def test_half_a_character_waits_for_its_other_half() -> None:
    assert grown([0, 4, 5, 1], "ssss") == ["[a", "[a", "[a ü", "[a ü man", "[a ü man]\n"]
    assert grown([0, 4], "ss")[-1] == "[a \N{REPLACEMENT CHARACTER}]\n"


def test_a_text_that_nobody_watched_is_written_whole() -> None:
    out = io.StringIO()
    TextWriter(text, out, coloured=False).finish(Generation([0, 1, END], "sll", Counts()))
    assert out.getvalue() == "[a] man\n"


@pytest.mark.parametrize(
    ("counts", "times", "same", "line"),
    [
        (Counts(tokens=5, large_calls=5), None, None, "5 tokens, 5 runs of the large model"),
        (
            Counts(tokens=8, large_calls=2, drafted=8, accepted=6),
            (2.0, 5.0),
            True,
            "2.0 ms, vanilla 5.0 ms: 2.50× as fast; 8 tokens, 2 runs of the large model, 6 of 8 drafted tokens kept (75%); the "
            "same text as vanilla's",
        ),
        (Counts(tokens=1, large_calls=1), (2.0, 1.0), False, None),
    ],
)
def test_the_line_of_statistics(counts: Counts, times: tuple[float, float] | None, same: bool | None, line: str | None) -> None:
    found = statistics_line(Generation([], "", counts), times, same=same)
    assert found == line if line else found.endswith("0.50× as fast; 1 tokens, 1 runs of the large model; not vanilla's text")


def test_the_legend_shows_what_it_explains() -> None:
    assert legend(coloured=False).startswith("[drafted] and kept, {corrected}")
    assert "\033[32mdrafted\033[0m" in legend(coloured=True)
