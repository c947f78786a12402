"""What fuzzed tests share: odd texts, damaged bytes and trees, and the promise: a right answer, or one line and status 2."""

import contextlib
import copy
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

from tasks.errors import one_line_errors

T = TypeVar("T")
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Random examples of each property; 0: a few, the same in every run."""


def fuzzed(few: int) -> hypothesis.settings:
    """The settings of a property that `make test` tries on so many examples."""
    return hypothesis.settings(
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        max_examples=EXAMPLES or few,
        suppress_health_check=[*HealthCheck],
    )


LONG = "long " * (1 << 18)
"""A line of more than a megabyte."""
ODD = (
    *("\ufeffa mark", "two\r\nlines", "two\rlines", "two\u2028lines", "two\x85lines", "", " \t\u3000"),
    *("half \ud83d", "\udc00\ud800", "שלום עולם", "\u202eright to left", "👩\u200d👩\u200d👧 🏳️\u200d🌈"),
    *("\x1b[31mred\x1b[0m\x07", "nul\0", "{source}", '"', "1e999", "null", "../..", "*", "n" * 300),
)
texts = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=()), max_size=20))
"""Any short string of Python, unpaired surrogates too."""
scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 2, 63, 2**31, 2**63, 10**30]), st.floats(), st.integers(), texts
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(texts, scalars, max_size=2))
"""What may stand in JSON and YAML in place of any value."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that were cut, flipped, repeated or replaced in a few places."""
    for _ in range(draw(st.integers(1, 3))):
        # Headers come first, and are short: half of the places are there.
        place = draw(st.one_of(st.integers(0, min(400, len(content))), st.integers(0, len(content))))
        length = draw(st.integers(0, 8))
        new = draw(st.one_of(st.binary(max_size=8), st.just(content[:place][-32:]), st.just(b"\xff" * 8)))
        content = content[:place] + new + content[place + draw(st.sampled_from([len(new), length, len(content)])) :]
    return content


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a tree with each of its keys or indices."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one value replaced, removed, or put under another name."""
    tree = copy.deepcopy(tree)
    holder, key = draw(st.sampled_from(list(_places(tree))))
    how = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
    old = holder.pop(key) if how != "replace" else None
    if how == "replace":
        holder[key] = draw(values)
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(texts)] = old
    return tree


def outcome(act: Callable[[], T]) -> T | None:
    """Return what `act` returns; None where it ended as a command does: one printable line, status 2."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), one_line_errors():
            return act()
    except SystemExit as end:
        assert end.code == 2
    *_, line = lines = said.getvalue().removesuffix("\n").split("\n")
    assert line.startswith("error: ") and line.isprintable() and len(line) < 2100, repr(line[:300])
    assert all(one.startswith("warning: ") for one in lines[:-1]), lines
    return None
