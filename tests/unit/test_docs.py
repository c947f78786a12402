"""The documentation names files, symbols and links that exist."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType

import pytest

from tasks.decoding.method import Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import decode
from tests.architectures import pair_of
from tests.documented_commands import PAGES, commands
from tests.mutants.__main__ import copy_tree
from tests.served import run_module
from tests.toys import toy_sources

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
FILE = re.compile(r"`((?:tasks|flows|tests|docs|data)/[\w./-]+\.\w+)`")
MAKE = re.compile(r"(?:`|^\$ )make ([a-z-]+)", re.MULTILINE)
STEP = re.compile(r"^\d+\. `([\w./]+)`: (.*?)\.", re.MULTILINE)
SYMBOL = re.compile(r"`(\w+)(?:\.(\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    dead = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    gone = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    assert not dead + gone, f"{page.name} names {dead + gone}, which do not exist"


def test_documented_commands_are_taken_by_their_parsers_and_wrong_ones_refused(tmp_path: Path) -> None:
    found = list(commands())
    assert len(found) > 40 and {one.module for one in found} >= {"tasks.generate", "tasks.init", "flows.pipeline"}
    page = tmp_path / "page.md"
    lines = ["```console", "$ python -m tasks.compare A   # B is lacking", "```", "`python -m tasks.compare A` is a mention."]
    wrong = ["python -m tasks.config --jsn", "draftline verify PAIR --engine nothing", "draftline nothing"]
    page.write_text("\n".join([*lines, *(f"`{one}`" for one in wrong)]), encoding="utf-8")
    command = [sys.executable, "-m", "tests.documented_commands", *map(str, [*PAGES, page])]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in refused if not line.startswith(str(page))] == []
    says = ["arguments are required: B", "unrecognized arguments: --jsn", "invalid choice: 'nothing'", "No module named"]
    assert [word for word, line in zip(says, refused, strict=True) if word not in line] == []


def test_documented_targets_of_make_exist() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for page in PAGES for name in MAKE.findall(page.read_text(encoding="utf-8"))}
    assert {"repro", "test", "doctor"} <= named <= known, named - known


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

    decode("bild", BildSettings(), pair, sources[:1], Request(9))  # imports what the builder imports
    sys.setprofile(note)
    try:
        decode("bild", BildSettings(), pair, sources[1:], Request(9))
    finally:
        sys.setprofile(None)
    walk = {file for file, _ in _chains()["A greedy BiLD text"]}
    inside = {file for file in called if file.startswith("tasks/decoding/runtimes/")} - walk
    aside = {"tasks/settings.py", "tasks/decoding/method.py", "tasks/decoding/distributions.py"}
    assert len(walk) <= 9
    assert walk == called - inside - aside


@pytest.mark.slow
def test_the_toy_method_of_the_guide_works_as_written(tmp_path: Path) -> None:
    """Three files are touched: the method, its test and its law."""
    guide = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a decoding method")[2].partition("\n## ")[0]
    )
    blocks = [textwrap.dedent(block) for block in re.findall(r"^   ```python\n(.*?)^   ```", guide, re.MULTILINE | re.DOTALL)]
    method, test, law = blocks
    copy_tree(ROOT, tmp_path)
    (tmp_path / "tasks/decoding/methods/floor.py").write_text(method, encoding="utf-8")
    (tmp_path / "tests/unit/decoding/test_floor.py").write_text(test, encoding="utf-8")
    cases = (tmp_path / "tests/cases.py").read_text(encoding="utf-8")
    imported = "from tasks.decoding.methods.speculative"
    cases = cases.replace(imported, f"from tasks.decoding.methods.floor import FloorSettings\n{imported}", 1)
    (tmp_path / "tests/cases.py").write_text(cases.replace("CASES = {\n", f"CASES = {{\n{law}", 1), encoding="utf-8")
    files = ("tests/unit/decoding/test_floor.py", "tests/unit/decoding/test_enumeration.py")
    words = ("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "floor", *files)
    run = run_module(tmp_path, os.environ | {"PYTHONPATH": str(tmp_path)}, *words)
    assert run.returncode == 0, run.stdout[-3000:]
