"""Checks the C++ compiler and the instruction sets by a small program that was built as the native runtime is."""

from __future__ import annotations

import os
import shlex

from tasks.doctor.compiling import TUNED
from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding
from tasks.doctor.text import shortened

_WIDE = ("AVX2", "NEON")
_SLOWER = "without it, decoding falls back to PyTorch and is slower"


def compiler(facts: Facts) -> Finding:
    """Whether the native runtime can be built and loaded; missing where params.yaml asks for it."""
    needed = facts.machine.get("runtime") == "native" or facts.machine.get("dtype") == "int8"
    absent = MISSING if needed else WARNING
    found = facts.compiled
    install = "install g++ or clang++ (Debian, Ubuntu: apt install g++), or name a compiler in CXX"
    if not found.command:
        named = os.environ.get("CXX")
        return Finding(absent, f"CXX is {named}, which is not on PATH" if named else "no C++ compiler is on PATH", install)
    command = shlex.join(found.command)
    if found.answer is None:
        return Finding(absent, shortened(f"{command} fails: {_first_error(found.errors)}"), install)
    if found.answer.failure:
        said = shortened(f"{command} builds what cannot be loaded: {found.answer.failure}")
        return Finding(absent, said, "name another compiler in CXX")
    if found.refused:
        said = shortened(f"every process compiles anew, as nothing can be loaded from {found.refused}")
        return Finding(WARNING, said, "let XDG_CACHE_HOME name a folder of yours on a disk that is not mounted noexec")
    if not any(one.startswith(TUNED) for one in found.command):
        return Finding(WARNING, f"{command} compiles for no processor in particular ({found.version})", install)
    if "OpenMP" not in found.extensions:
        return Finding(WARNING, f"{command}, without OpenMP: one thread", "use g++, or install OpenMP for clang++ (libomp-dev)")
    return Finding(OK, f"{command}: {found.version}")


def _first_error(errors: str) -> str:
    lines = errors.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")


def instruction_sets(facts: Facts) -> Finding:
    """Which vectors the native runtime multiplies with; without a compiler, those that torch names."""
    found, torch = facts.compiled, facts.torch.values
    by_torch = f"torch uses {torch[-1]['value']['vectors']}" if torch else "not known without torch"
    if found.answer is None or not found.answer.values:
        return Finding(OK, f"{by_torch}; the native runtime was not built")
    lanes, names = found.answer.values[-1]["value"]["lanes"], [name for name in found.extensions if name != "OpenMP"]
    said = f"{', '.join(names) or 'none'}; {lanes} float32 numbers a vector; {by_torch}"
    if not set(_WIDE) & set(names):
        fix = "use a processor with AVX2 or NEON, or a virtual machine that passes its host's processor on"
        return Finding(WARNING, said, fix)
    return Finding(OK, said)


CHECKS = (
    Check("compiler", f"the native runtime; {_SLOWER}", compiler),
    Check("instruction sets", "fast decoding on a CPU", instruction_sets),
)
