"""The compiled kernel is cached, a failing compiler or cache stops no run, and its machine code keeps vectors in registers."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.native import NativeDecoder
from tests.toys import kept_weights, toy_t5

REAL = compiled.library()
assert REAL is not None, "these tests need a C++ compiler"
LIBRARY, PANEL = Path(REAL._name), REAL.draftline_panel()

COPY = """#!/bin/sh
# A stub compiler: copies the library that the real one made, and logs the call.
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
    assert first.parent == compiler.cache / "draftline"
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert compiler.open() == first
    assert len(compiler.calls) == 1
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".sha256", ".so"]
    compiler.patch.delenv("XDG_CACHE_HOME")
    compiler.patch.setenv("HOME", str(compiler.folder / "home"))
    assert compiler.open().parent == compiler.folder / "home" / ".cache" / "draftline"


def test_another_compiler_and_other_flags_compile_anew(compiler: StandIn) -> None:
    first = compiler.open()
    compiler.path.write_text(compiler.path.read_text().replace("A stub", "A newer stub"))
    second = compiler.open()
    compiler.patch.setattr(compiled, "FLAGS", [*compiled.FLAGS, "-g"])
    assert len({first, second, compiler.open()}) == 3
    assert len(compiler.calls) == 3


def test_a_damaged_library_is_named_and_compiled_again(compiler: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    path = compiler.open()
    whole = path.read_bytes()
    damaged = [whole[:0], whole[:5000], whole[:-1], whole[:9000] + b"\0" * 64 + whole[9064:]]
    for content in damaged:
        path.unlink()  # this process has it open
        path.write_bytes(content)
        caplog.clear()
        assert compiler.open() == path
        assert path.read_bytes() == whole
        assert f"{path} is damaged (its checksum differs); it is made again" in caplog.text
    path.with_suffix(".sha256").unlink()
    assert compiler.open() == path
    path.with_suffix(".sha256").write_bytes(b"\xff" * 64)
    assert compiler.open() == path
    assert len(compiler.calls) == 3 + len(damaged)


def test_without_a_compiler_that_works_there_is_none(compiler: StandIn) -> None:
    for named in ("/nonexistent", "no-such-compiler -O2"):
        compiler.patch.setenv("CXX", named)
        assert compiler.open() is None
    compiler.patch.setenv("CXX", str(compiler.path))
    compiler.write("exit 1")
    assert compiler.open() is None
    compiler.write(library=compiler.path)  # gives something else than a library
    assert compiler.open() is None
    compiler.patch.delenv("CXX")
    compiler.patch.setenv("PATH", str(compiler.folder))
    assert compiler.open() is None


def test_without_space_there_is_no_other_runtime_in_its_place(compiler: StandIn) -> None:
    compiler.write("echo 'fatal error: error writing to kernel.s: No space left on device' >&2; exit 1")
    with pytest.raises(OSError, match="No space left on device") as caught:
        compiler.open()
    assert str(caught.value.filename).endswith(".so")


def test_a_compiler_is_found_by_name_and_may_have_options(compiler: StandIn) -> None:
    compiler.patch.setenv("CXX", f"/bin/sh {compiler.path} --some-option")
    assert compiler.open()
    assert compiler.calls[0].startswith("--some-option -O3")
    compiler.patch.delenv("CXX")
    compiler.patch.setenv("PATH", f"{compiler.folder / 'bin'}:{os.environ['PATH']}")
    (compiler.folder / "bin").mkdir()
    shutil.copy(compiler.path, compiler.folder / "bin" / "c++")
    assert compiler.open()
    assert len(compiler.calls) == 2


def test_flags_that_a_compiler_does_not_know_are_left_out(compiler: StandIn) -> None:
    compiler.write('case "$*" in *=native*) exit 1;; esac')
    assert compiler.open()
    assert len(compiler.calls) == len(compiled._TUNED)
    assert "=native" not in compiler.calls[-1]


def test_a_cache_that_cannot_be_made_or_trusted_gives_way_to_a_temporary_folder(compiler: StandIn) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    mine = compiler.open()
    mine.parent.chmod(0o777)
    others = [compiler.open()]
    shutil.rmtree(compiler.cache)
    compiler.cache.write_text("a file stands here")
    others.append(compiler.open())
    compiler.patch.delenv("XDG_CACHE_HOME")
    compiler.patch.setattr(Path, "home", staticmethod(homeless))
    others.append(compiler.open())
    for path in others:
        assert path.parent.name.startswith("draftline-")
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
    started = [subprocess.Popen([sys.executable, "-c", where], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {one.communicate()[0].strip() for one in started} == {str(PANEL)}
    assert all(one.returncode == 0 for one in started)
    calls = len(compiler.calls)
    assert compiler.open()
    assert len(compiler.calls) == calls
    assert sorted(path.suffix for path in (compiler.cache / "draftline").iterdir()) == [".sha256", ".so"]


def test_a_share_is_bytes_over_time_over_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    bandwidth = compiled.read_bandwidth(1 << 15)
    assert bandwidth is not None and bandwidth > 0
    monkeypatch.setattr(compiled, "read_bandwidth", lambda size: 2e9 if size == 1_000_000 else None)
    assert compiled.bandwidth_share(1_000_000, 0.001) == pytest.approx(0.5)
    assert compiled.bandwidth_share(0, 0.001) is None


def test_the_runtime_knows_its_weights_and_that_a_step_reads_the_decoder_and_its_head() -> None:
    model = toy_t5(0, 1, 2)
    decoder = open_decoder(model, "large")
    assert isinstance(decoder, NativeDecoder)
    can = decoder.capabilities
    read_once = ("EncDecAttention.k.weight", "EncDecAttention.v.weight")
    matrices = [
        weight
        for name, weight in model.decoder.named_parameters()
        if name.startswith("block") and weight.dim() == 2 and "relative" not in name and not name.endswith(read_once)
    ]
    exact = 4 * (sum(weight.numel() for weight in matrices) + model.shared.weight.numel())
    # Outputs are padded to whole panels.
    assert exact <= can.step_bytes < 8 * exact
    whole = sum(weight.nbytes for weight in model.parameters())
    assert whole - model.shared.weight.nbytes < sum(kept_weights(decoder).values()) < 8 * whole


_MULTIPLY = """
#include "products.h"
void multiply(const Linear& linear, const float* x, float* y, int64_t tokens, bool add) {
    product<kFloat32>(linear, x, linear.inputs, y, linear.outputs, tokens, add, 1);
    product<kBfloat16>(linear, x, linear.inputs, y, linear.outputs, tokens, add, 1);
    product<kInt8>(linear, x, linear.inputs, y, linear.outputs, tokens, add, 1);
}
"""
_VECTOR = re.compile(r"%[yz]mm\d")
_MULTIPLICATION = re.compile(r"\tv(fmadd|dpbf16ps|pdpbusd|pmaddubsw)")
_LOOP = re.compile(r"^(\.L\w+):(?:(?!^\.L\w+:).)*?\tj\w+\t\1$", re.MULTILINE | re.DOTALL)
"""A label, and all up to a jump back to it, without another label: an innermost loop."""
_OTHERS = ("g++-12", "g++-13", "g++-14", "g++-15", "clang++", *(f"clang++-{version}" for version in range(14, 22)))
TOKENS = 6
"""Numbers of tokens for which a product is compiled, each with a loop in each of three formats."""


def vectors_on_stack(assembly: str) -> list[str]:
    """The instructions that move a vector to or from the stack inside the loops that multiply.

    %rbp points to the stack only in functions that set it so.
    """
    found, loops = list[str](), 0
    for function in re.split(r"^(?=\t\.type\t\S+?,\s*@function)", assembly, flags=re.MULTILINE):
        stack = r"\(%r[sb]p[,)]" if "%rsp, %rbp" in function else r"\(%rsp[,)]"
        for loop in _LOOP.finditer(function):
            lines = loop[0].splitlines()
            if any(_MULTIPLICATION.search(line) for line in lines):
                loops += 1
                found += [line for line in lines if _VECTOR.search(line) and re.search(stack, line)]
    assert loops >= 3 * TOKENS
    return found


def compilers() -> list[list[str]]:
    """The one that the kernel is compiled by, and others, each once."""
    chosen = compiled.compiler_command()
    assert chosen is not None
    found = {str(Path(at).resolve()): [name] for name in _OTHERS if (at := shutil.which(name))}
    if at := shutil.which(chosen[0]):
        found.pop(str(Path(at).resolve()), None)
    return [chosen, *found.values()]


# Compilers keep vectors in registers more easily where there are more of these.
QUICK, *SLOW = "haswell", "skylake-avx512", "cooperlake", "native"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 assembly")
@pytest.mark.parametrize("processor", [QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)])
@pytest.mark.parametrize("compiler", compilers(), ids=" ".join)
def test_no_vector_of_a_product_passes_through_the_stack(compiler: list[str], processor: str, tmp_path: Path) -> None:
    source, assembly = tmp_path / "products.cpp", tmp_path / "products.s"
    source.write_text(_MULTIPLY)
    flags = [*compiled.FLAGS, f"-march={processor}", "-fopenmp", f"-I{compiled.KERNEL}"]
    command = [*compiler, *flags, "-S", str(source), "-o", str(assembly)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and (processor != "native" or compiler != compiled.compiler_command()):
        pytest.skip(f"{compiler[0]} does not compile it for {processor}")
    assert not done.returncode, done.stderr
    assert len(_VECTOR.findall(assembly.read_text())) > 100
    assert vectors_on_stack(assembly.read_text()) == []
