"""The compiled matrix products: no weight and no sum passes through the stack.

A compiler may send vectors through the stack, which is correct and ten times slower, so that no other test notices it. The code
is read for common processors, whatever processor runs the test, from every compiler that this machine has.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tasks.decoding.runtimes import compiled

_SOURCE = """
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
    found = {str(Path(at).resolve()): [name] for name in _OTHERS if (at := shutil.which(name))}
    if chosen is not None and (at := shutil.which(chosen[0])):
        found.pop(str(Path(at).resolve()), None)
    return [chosen or ["none"], *found.values()]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 assembly")
@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512", "sapphirerapids", "native"])
@pytest.mark.parametrize("compiler", compilers(), ids=" ".join)
def test_no_vector_of_a_product_passes_through_the_stack(compiler: list[str], processor: str, tmp_path: Path) -> None:
    if compiler == ["none"]:
        pytest.skip("needs a C++ compiler")
    source, assembly = tmp_path / "products.cpp", tmp_path / "products.s"
    source.write_text(_SOURCE)
    command = [
        *compiler,
        *compiled.FLAGS,
        f"-march={processor}",
        "-fopenmp",
        f"-I{compiled.KERNEL}",
        "-S",
        str(source),
        "-o",
        str(assembly),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and (processor != "native" or compiler != compiled.compiler_command()):
        pytest.skip(f"{compiler[0]} does not compile it for {processor}")
    assert not done.returncode, done.stderr
    assert len(_VECTOR.findall(assembly.read_text())) > 100
    assert vectors_on_stack(assembly.read_text()) == []
