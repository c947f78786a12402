"""Checks the C++ compiler and the instruction sets with a small program, built and loaded as the native runtime is."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding, shortened
from tasks.doctor.probing import Answer, probe

_MACROS = {
    "__AVX512BW__": "AVX-512",
    "__AVX512BF16__": "AVX-512-BF16",
    "__AVX512VNNI__": "AVX-512-VNNI",
    "__AVX2__": "AVX2",
    "__FMA__": "FMA",
    "__ARM_NEON": "NEON",
    "_OPENMP": "OpenMP",
}
"""What the compiler defines where it may use an extension: those that the kernel asks for, and the base of other processors."""
_TUNED = ("-march", "-mcpu")
_WIDE = ("AVX2", "NEON")
_SLOWER = "without it, decoding falls back to PyTorch and is slower"


@dataclass(frozen=True)
class Compiled:
    """What became of the program."""

    command: list[str]
    """The compiler with its arguments; empty without a compiler."""
    folder: Path | None = None
    """Where its library was loaded from; none if no compiler could build it."""
    answer: Answer | None = None
    """What the library said; none if it was not built."""
    errors: str = ""
    """What the compiler wrote when it failed, or why it did not start."""
    version: str = ""
    """The first line of what it says about itself."""
    refused: str = ""
    """The folders before that from which a library cannot be loaded, with the reason."""

    @property
    def extensions(self) -> list[str]:
        """The extensions that the compiler uses on this processor; none without a library."""
        return [] if self.answer is None or not self.answer.values else list(self.answer.values[-1]["value"]["extensions"])


def _source() -> str:
    extensions = "\n".join(f'#ifdef {macro}\n    " {name}"\n#endif' for macro, name in _MACROS.items())
    return f"""#include "arithmetic.h"
extern "C" int doctor_lanes() {{ return kLanes; }}
extern "C" const char* doctor_extensions() {{ return ""
{extensions}
; }}
"""


def compile_program() -> Compiled:
    """Build the program in the first folder of the native runtime's from which it can be loaded, and load it."""
    from tasks.decoding.runtimes import compiled

    compiler = compiled.compiler_command()
    if compiler is None:
        return Compiled([])
    result, refused = Compiled(compiler), ""
    for cache in compiled.cache_folders():
        try:
            result = _compile_in(cache, compiler, refused)
        except OSError as error:  # a compiler that does not start, a folder without room
            result = Compiled(compiler, errors=str(error))
        if result.answer is None or not result.answer.failure:
            break
        refused = f"{cache}: {result.answer.failure}"
    return result


def _compile_in(cache: Path, compiler: list[str], refused: str) -> Compiled:
    from tasks.decoding.runtimes import compiled

    version = shortened(compiled.version(compiler).decode(errors="replace").partition("\n")[0])
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        source, library = Path(folder, "doctor.cpp"), Path(folder, "doctor.so")
        source.write_text(_source(), encoding="utf-8")
        done = compiled.build([*compiler, f"-I{compiled.KERNEL}"], source, library)
        if done.returncode:
            return Compiled(compiler, errors=done.stderr.decode(errors="replace"))
        flags = [one for one in done.args if one.startswith((*_TUNED, "-fopenmp"))]
        return Compiled([*compiler, *flags], cache, probe("compiled_code", str(library)), version=version, refused=refused)


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
    if not any(one.startswith(_TUNED) for one in found.command):
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
