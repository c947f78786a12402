"""Generated programs: what passes, what a program cannot do to anything outside its folder, and machines without a sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import InputError
from tasks.evaluation import metrics
from tasks.evaluation.metrics import passes, program_of, require_sandbox
from tasks.evaluation.quality import check_references, score, sentence_scores
from tests.sandbox import sandboxed

ADD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"


@sandboxed
def test_a_program_passes_with_all_of_its_tests() -> None:
    assert passes(ADD, TESTS)
    assert not passes(ADD.replace("+", "-"), TESTS)
    assert not passes(ADD, f"{TESTS}\nassert add(1, 1) == 3")
    assert passes("import json, math, re, os\nopen('own', 'w').write('text')\nos.remove('own')", "assert os.listdir('.') == []")


@sandboxed
@pytest.mark.parametrize(
    "program",
    ["import os\nos._exit(0)", "raise SystemExit(0)", "def add(a, b):", f"{ADD}\nimport numpy", "input()", "\0"],
    ids=["leaves", "exits", "no program", "needs a package", "asks", "NUL"],
)
def test_a_program_that_does_not_reach_its_tests_fails(program: str) -> None:
    assert not passes(program, "")


@sandboxed
def test_time_memory_and_files_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_CPU_SECONDS", 1)
    begin = time.monotonic()
    assert not passes("while True:\n    pass", "", wall_seconds=60)
    assert not passes("import time\ntime.sleep(60)", "", wall_seconds=0.3)
    assert time.monotonic() - begin < 30
    assert not passes("x = bytearray(1 << 31)", "")
    assert not passes("open('large', 'w').write('x' * (1 << 22))", "")


@sandboxed
@pytest.mark.parametrize(
    "attack",
    [
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)",
        "import os\nos.kill(os.getppid() or 0, 0) if os.getppid() > 1 else 1 / 0",
        *(
            f"import os\n{one}"
            for one in ("open(PATH, 'w')", "open(PATH, 'a').write('x')", "os.remove(PATH)", "os.chmod(PATH, 0)")
        ),
        *(f"import os\n{one}" for one in ("os.truncate(PATH, 0)", "os.utime(PATH, (1, 1))", "os.mkdir(PATH + '.d')")),
    ],
)
def test_nothing_outside_its_folder_is_in_reach(attack: str) -> None:
    kept = Path(__file__)
    before = kept.stat()
    assert not passes(f"PATH = {str(kept)!r}\n{attack}", "")
    assert (kept.stat().st_mode, kept.stat().st_mtime_ns, kept.stat().st_size) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_size,
    )


@sandboxed
def test_nothing_is_left_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert passes("import os\nos.mkdir('folder')\nopen('folder/file', 'w').close()", "")
    assert list(tmp_path.iterdir()) == []


@sandboxed
def test_pass_at_1_is_the_share_of_programs_that_pass() -> None:
    references = [(ADD, *TESTS.split("\n")), ("x = 2", "assert x == 2")]
    quality = score([f"```python\n{ADD}```", "x = 3"], references, "pass_at_1", samples=20, seed=0)
    assert (quality.value, quality.scores, quality.signature) == (50.0, {"pass_at_1": 50.0}, "")
    assert sentence_scores(["", "x = 2"], references, "pass_at_1") == [0.0, 100.0]


def test_a_program_is_the_first_fenced_block() -> None:
    assert program_of(ADD) == ADD
    assert program_of(f"Here it is:\n```python\n{ADD}```\nand\n```\nmore\n```") == ADD
    assert program_of(f"```\n{ADD}") == ADD  # cut off at the length limit


def test_an_example_without_a_test_is_refused() -> None:
    with pytest.raises(ValueError, match="example 1 has no test"):
        score(["x = 1", "x = 1"], [("x = 1", "assert x"), ("x = 1",)], "pass_at_1", 20, 0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    require_sandbox.cache_clear()
    yield
    require_sandbox.cache_clear()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("found", [None, "/bin/true", "/bin/false"], ids=["none", "runs nothing", "does not start"])
def test_a_machine_without_a_sandbox_is_refused_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: found)
    with pytest.raises(InputError, match="nothing here runs them apart from everything else; install bubblewrap"):
        check_references({}, "pass_at_1")
