"""Generated programs: what passes, and what a program cannot do to anything outside its folder."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from pathlib import Path

import pytest

from tasks.evaluation.quality import score, sentence_scores
from tasks.evaluation.scoring import programs
from tasks.evaluation.scoring.programs import pass_table, passes, program_of, unrestricted

ADD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"


def _kernel_restricts() -> bool:
    """Whether the kernel has Landlock, and the processor is the one whose system calls are known."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)) > 0


restricted = pytest.mark.skipif(not _kernel_restricts(), reason="this kernel restricts less")


def test_a_program_passes_with_all_of_its_tests() -> None:
    assert passes(ADD, TESTS)
    assert not passes(ADD.replace("+", "-"), TESTS)
    assert not passes(ADD, f"{TESTS}\nassert add(1, 1) == 3")


@pytest.mark.parametrize(
    "program",
    ["import os\nos._exit(0)", "raise SystemExit(0)", "def add(a, b):", f"{ADD}\nimport numpy", "input()", "\0"],
    ids=["leaves", "exits", "no program", "needs a package", "asks", "NUL"],
)
def test_a_program_that_does_not_reach_its_tests_fails(program: str) -> None:
    assert not passes(program, "")


def test_a_program_has_the_standard_library_and_a_folder_of_its_own() -> None:
    assert passes("import json, math, re, os\nopen('own', 'w').write('text')\nos.remove('own')", "assert os.listdir('.') == []")
    assert passes("import os", "assert set(os.environ) <= {'PYTHONHASHSEED', 'LC_CTYPE'}, os.environ")


def test_an_endless_loop_and_a_long_wait_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs._LIMITS, "RLIMIT_CPU", 1)
    begin = time.monotonic()
    assert not passes("while True:\n    pass", "", wall_seconds=60)
    assert time.monotonic() - begin < 30, "the limit of processor time ends it"
    assert not passes("import time\ntime.sleep(60)", "", wall_seconds=0.3)
    assert time.monotonic() - begin < 30


def test_memory_and_files_are_limited() -> None:
    assert not passes("x = bytearray(1 << 31)", "")
    assert not passes("open('large', 'w').write('x' * (1 << 22))", "")


@restricted
@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.execv('/bin/true', ['true'])",
        "import threading\nthreading.Thread(target=print).start()",
        "import socket\nsocket.socket()",
        "import os\nos.kill(os.getppid(), 0)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
    ],
)
def test_other_processes_and_the_network_are_out_of_reach(program: str) -> None:
    assert not passes(program, "")


@restricted
@pytest.mark.parametrize(
    "attack",
    [
        *("open(PATH, 'w')", "open(PATH, 'a').write('x')", "os.remove(PATH)", "os.rename(PATH, 'mine')", "os.chmod(PATH, 0)"),
        *("os.truncate(PATH, 0)", "os.symlink(PATH, PATH + '2')", "os.utime(PATH, (1, 1))", "os.mkdir(PATH + '.d')"),
    ],
)
def test_files_elsewhere_stay_as_they_are(attack: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("text")
    before = kept.stat()
    assert passes(f"PATH = {str(kept)!r}", "assert open(PATH).read() == 'text'"), "reading is allowed"
    assert not passes(f"import os\nPATH = {str(kept)!r}\n{attack}", "")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and kept.read_text() == "text"
    assert (kept.stat().st_mode, kept.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_program_is_the_first_fenced_block() -> None:
    assert program_of(ADD) == ADD
    assert program_of(f"Here it is:\n```python\n{ADD}```\nand\n```\nmore\n```") == ADD
    assert program_of(f"```\n{ADD}") == ADD  # cut off at the length limit


def test_pass_at_1_is_the_share_of_programs_that_pass() -> None:
    references = [(ADD, *TESTS.split("\n")), ("x = 2", "assert x == 2")]
    quality = score([f"```python\n{ADD}```", "x = 3"], references, "pass_at_1", samples=20, seed=0)
    assert (quality.value, quality.scores, quality.signature) == (50.0, {"pass_at_1": 50.0}, "")
    assert sentence_scores(["", "x = 2"], references, "pass_at_1") == [0.0, 100.0]


def test_an_example_without_a_test_is_refused() -> None:
    with pytest.raises(ValueError, match="example 1 has no test"):
        pass_table(["x = 1", "x = 1"], [("x = 1", "assert x"), ("x = 1",)])


@restricted
def test_nothing_that_is_tried_succeeds() -> None:
    assert unrestricted() == []


def test_what_is_not_restricted_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    works = {"assert x == 1": True, "assert x == 2": False}
    monkeypatch.setattr(programs, "passes", lambda program, tests: works.get(tests, "socket" in program))
    programs._require_runner.cache_clear()
    programs._require_runner()
    assert "warning: generated programs can open network sockets here" in capsys.readouterr().err
    monkeypatch.setattr(programs, "passes", lambda program, tests: True)
    programs._require_runner.cache_clear()
    with pytest.raises(RuntimeError, match="does not run generated programs"):
        programs._require_runner()
    programs._require_runner.cache_clear()


def test_nothing_is_left_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert passes("import os\nos.mkdir('folder')\nopen('folder/file', 'w').close()", "")
    assert list(tmp_path.iterdir()) == []
