"""The documentation names files, symbols and links that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

from tasks.decoding.registry import Request, decode
from tasks.decoding.settings import BildSettings
from tests.architectures import pair_of
from tests.toys import toy_sources

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
FILE = re.compile(r"`((?:tasks|flows|tests|docs|data)/[\w./-]+\.\w+)`")
STEP = re.compile(r"^\d+\. `([\w./]+)`: (.*?)\.", re.MULTILINE)
SYMBOL = re.compile(r"`(\w+)(?:\.(\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    dead = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    gone = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    assert not dead + gone, f"{page.name} names {dead + gone}, which do not exist"


def _chains() -> dict[str, list[tuple[str, str]]]:
    """The numbered steps of each walk in docs/architecture.md: (file, what the step says before its first full stop)."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {section.splitlines()[0]: STEP.findall(section) for section in sections if STEP.search(section)}


def test_each_step_of_a_walk_names_symbols_of_its_file() -> None:
    chains = _chains()
    assert len(chains) == 4
    for title, steps in chains.items():
        for file, said in steps:
            source = (ROOT / file).read_text(encoding="utf-8")
            names = [name for found in SYMBOL.findall(said) for name in found if name]
            assert names, f"{title}: the step of {file} names no symbol"
            lacking = [name for name in names if not re.search(rf"\b{name}\b", source)]
            assert not lacking, f"{title}: {file} does not hold {lacking}"


def test_a_greedy_bild_text_runs_through_the_files_of_its_walk() -> None:
    """Trace one text; the inside of the runtime is left out."""
    pair, sources = pair_of("t5"), toy_sources(2)
    assert pair.large.capabilities.native_loop is not None
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "tasks"):
            called.add(str(path.relative_to(ROOT)))

    sys.setprofile(note)
    try:
        decode("bild", BildSettings(), pair, sources[:1], Request(9))
    finally:
        sys.setprofile(None)
    walk = {file for file, _ in _chains()["A greedy BiLD text"]}
    inside = {file for file in called if file.startswith(("tasks/decoding/runtimes/", "tasks/decoding/settings/"))} - walk
    aside = {"tasks/settings.py", "tasks/decoding/randomness.py"}
    assert len(walk) <= 11
    assert walk == called - inside - aside
