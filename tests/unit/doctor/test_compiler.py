"""What the doctor says of the compiler of the native runtime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.doctor import compiling, toolchain
from tasks.doctor.finding import MISSING, OK, WARNING, run
from tasks.doctor.probing import Answer, probe
from tests.machine_facts import check, facts


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draftline"


def test_the_compiler_of_the_native_runtime_builds_a_program(cache: Path) -> None:
    given = facts()
    found = toolchain.compiler(given)
    assert given.compiled.folder == cache
    assert found.state == OK, found.found
    assert "-march=native" in found.found or "-mcpu=native" in found.found
    assert "float32 numbers a vector; torch uses AVX2" in toolchain.instruction_sets(given).found
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("machine", "state"), [({}, WARNING), ({"runtime": "native"}, MISSING), ({"dtype": "int8"}, MISSING)], ids=str
)
def test_without_a_compiler_decoding_is_slower_or_what_params_ask_for_is_missing(
    machine: dict[str, Any], state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = facts(machine)
    result = run(check("compiler"), given)
    assert result.state == state
    assert "g++" in result.fix
    assert "slower" in result.needed_for
    assert toolchain.instruction_sets(given).found == "torch uses AVX2; the native runtime was not built"


def write_compiler(path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_a_compiler_that_fails_or_builds_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_compiler(tmp_path / "fails", "echo 'In file x' >&2; echo 'error: no header' >&2; exit 1", monkeypatch)
    found = toolchain.compiler(facts())
    assert found.state == WARNING
    assert found.found.endswith("fails fails: error: no header")
    odd = 'case "$*" in *--version*) exit;; esac; for last; do :; done; echo "no library" > "$last"'
    write_compiler(tmp_path / "odd", odd, monkeypatch)
    assert "builds what cannot be loaded: OSError" in toolchain.compiler(facts()).found
    (tmp_path / "odd").write_bytes(b"\0\0")
    found = toolchain.compiler(facts({"runtime": "native"}))
    assert (found.state, "fails: [Errno" in found.found) == (MISSING, True)


def test_a_compiler_without_openmp_or_without_this_processor(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = shutil.which("c++")
    write_compiler(tmp_path / "serial", f'case "$*" in *-fopenmp*) exit 1;; esac; exec {real} "$@"', monkeypatch)
    assert "without OpenMP" in toolchain.compiler(facts()).found
    write_compiler(tmp_path / "plain", f'case "$*" in *=native*) exit 1;; esac; exec {real} "$@"', monkeypatch)
    assert "no processor in particular" in toolchain.compiler(facts()).found


def test_a_cache_from_which_nothing_can_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one on a disk that is mounted noexec."""
    real = probe

    def refusing(name: str, path: str) -> Answer:
        return Answer([], "OSError: failed to map segment") if Path(path).is_relative_to(cache) else real(name, path)

    monkeypatch.setattr(compiling, "probe", refusing)
    found = toolchain.compiler(facts())
    assert found.state == WARNING
    assert f"compiles anew, as nothing can be loaded from {cache}: OSError: failed to map" in found.found
