"""Builds a small C++ program and loads it, as the native runtime is built and loaded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.doctor.probing import Answer, probe
from tasks.doctor.text import shortened

TUNED = ("-march", "-mcpu")
"""Beginnings of the arguments that make a compiler use what this processor has."""
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
        flags = [one for one in done.args if one.startswith((*TUNED, "-fopenmp"))]
        return Compiled([*compiler, *flags], cache, probe("compiled_code", str(library)), version=version, refused=refused)
