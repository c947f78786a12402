"""The compiled kernel is cached; a failing compiler or cache never stops a run that works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.decoding.runtimes import compiled

REAL = compiled.library()
assert REAL is not None, "these tests need a C++ compiler"
LIBRARY, PANEL = Path(REAL._name), REAL.draftline_panel()

COPY = """#!/bin/sh
# A stub compiler: copies the library that the real one made, and logs the call.
case "$*" in *--version*) echo "a compiler"; exit;; esac
echo "$*" >> "{log}"
for last; do :; done
{first}
cp "{library}" "$last"
"""


class StandIn:
    """A stub compiler and an empty cache."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.log = folder / "log"
        self.path = folder / "compiler"
        self.patch = monkeypatch
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        monkeypatch.setenv("CXX", str(self.path))
        self.write()

    def write(self, first: str = "", library: Path = LIBRARY) -> None:
        """Write the script; `first` is a command that it runs before it copies `library`."""
        self.path.write_text(COPY.format(log=self.log, first=first, library=library))
        self.path.chmod(0o755)

    def open(self) -> Path | None:
        """The path of the library that a new process would load."""
        functions = compiled.library.__wrapped__()
        return None if functions is None else Path(functions._name)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


def test_it_is_compiled_once_into_the_user_s_cache(compiler: StandIn) -> None:
    first = compiler.open()
    assert first is not None
    assert first.parent == compiler.cache / "draftline"
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert compiler.open() == first
    assert len(compiler.calls) == 1
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".sha256", ".so"]


def test_the_home_s_cache_is_used_where_no_other_is_named(compiler: StandIn) -> None:
    compiler.patch.delenv("XDG_CACHE_HOME")
    compiler.patch.setenv("HOME", str(compiler.folder / "home"))
    path = compiler.open()
    assert path is not None
    assert path.parent == compiler.folder / "home" / ".cache" / "draftline"


def test_another_compiler_and_other_flags_compile_anew(compiler: StandIn) -> None:
    first = compiler.open()
    compiler.path.write_text(compiler.path.read_text().replace("a compiler", "a newer compiler"))
    second = compiler.open()
    compiler.patch.setattr(compiled, "FLAGS", [*compiled.FLAGS, "-g"])
    assert len({first, second, compiler.open()}) == 3
    assert len(compiler.calls) == 3


@pytest.mark.parametrize("left", [0, 100, 5000, -1])
def test_a_library_that_was_cut_is_compiled_again(compiler: StandIn, left: int) -> None:
    path = compiler.open()
    assert path is not None
    whole = path.read_bytes()
    path.unlink()  # this process has it open
    path.write_bytes(whole[:left])
    assert compiler.open() == path
    assert path.read_bytes() == whole
    assert len(compiler.calls) == 2


def test_a_library_that_was_changed_is_compiled_again(compiler: StandIn) -> None:
    path = compiler.open()
    assert path is not None
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:9000] + b"\0" * 64 + whole[9064:])
    assert compiler.open() == path
    path.with_suffix(".sha256").unlink()
    assert compiler.open() == path
    assert path.read_bytes() == whole
    assert len(compiler.calls) == 3


@pytest.mark.parametrize("named", ["/nonexistent", "no-such-compiler -O2"])
def test_a_compiler_that_is_not_there(compiler: StandIn, named: str) -> None:
    compiler.patch.setenv("CXX", named)
    assert compiler.open() is None


def test_no_compiler_at_all(compiler: StandIn) -> None:
    compiler.patch.delenv("CXX")
    compiler.patch.setenv("PATH", str(compiler.folder))
    assert compiler.open() is None


def test_a_compiler_is_found_by_name_and_may_have_options(compiler: StandIn) -> None:
    compiler.patch.setenv("CXX", f"/bin/sh {compiler.path} --some-option")
    assert compiler.open() is not None
    assert compiler.calls[0].startswith("--some-option -O3")
    compiler.patch.delenv("CXX")
    compiler.patch.setenv("PATH", f"{compiler.folder / 'bin'}:{os.environ['PATH']}")
    (compiler.folder / "bin").mkdir()
    shutil.copy(compiler.path, compiler.folder / "bin" / "c++")
    assert compiler.open() is not None
    assert len(compiler.calls) == 2


def test_flags_that_a_compiler_does_not_know_are_left_out(compiler: StandIn) -> None:
    compiler.write('case "$*" in *=native*) exit 1;; esac')
    assert compiler.open() is not None
    assert len(compiler.calls) == len(compiled._TUNED)
    assert "=native" not in compiler.calls[-1]


def test_a_compiler_that_fails(compiler: StandIn) -> None:
    compiler.write("exit 1")
    assert compiler.open() is None


def test_a_compiler_that_gives_something_else(compiler: StandIn) -> None:
    compiler.write(library=compiler.path)
    assert compiler.open() is None


def test_a_cache_that_cannot_be_made(compiler: StandIn) -> None:
    """A temporary folder of this process is used instead."""
    compiler.cache.write_text("a file stands here")
    path = compiler.open()
    assert path is not None
    assert path.parent.name.startswith("draftline-")
    shutil.rmtree(path.parent)


def test_a_cache_that_others_may_write_to_is_not_trusted(compiler: StandIn) -> None:
    mine = compiler.open()
    assert mine is not None
    mine.parent.chmod(0o777)
    path = compiler.open()
    assert path is not None
    assert path.parent != mine.parent
    shutil.rmtree(path.parent)


def test_a_user_without_a_home(compiler: StandIn) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    compiler.patch.delenv("XDG_CACHE_HOME")
    compiler.patch.setattr(Path, "home", staticmethod(homeless))
    path = compiler.open()
    assert path is not None
    shutil.rmtree(path.parent)


def test_a_folder_of_one_process_goes_with_it(compiler: StandIn) -> None:
    compiler.cache.write_text("a file stands here")
    where = "from tasks.decoding.runtimes import compiled; print(compiled.library()._name)"
    run = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True)
    path = Path(run.stdout.strip())
    assert path.parent.name.startswith("draftline-")
    assert not path.parent.exists()


def test_processes_may_compile_at_the_same_time(compiler: StandIn) -> None:
    compiler.write("sleep 0.3")
    where = "from tasks.decoding.runtimes import compiled; print(compiled.library().draftline_panel())"
    started = [subprocess.Popen([sys.executable, "-c", where], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {one.communicate()[0].strip() for one in started} == {str(PANEL)}
    assert all(one.returncode == 0 for one in started)
    calls = len(compiler.calls)
    assert compiler.open() is not None
    assert len(compiler.calls) == calls
    assert sorted(path.suffix for path in (compiler.cache / "draftline").iterdir()) == [".sha256", ".so"]
