"""What several checks look at, each found once and only when a check asks for it."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.doctor.compiling import Compiled, compile_program
from tasks.doctor.probing import Answer, probe

ENVIRONMENT = Path(".venv")
"""The virtual environment that `make setup` makes, in the repository, which is the working directory."""
READY = ENVIRONMENT / ".ready"
"""The file that `make setup` writes when it has finished."""
LOCK = Path("requirements.lock")


class Facts:
    """Facts about this machine."""

    @cached_property
    def torch(self) -> Answer:
        """The answer of the probe `torch_build`."""
        return probe("torch_build")

    @cached_property
    def compiled(self) -> Compiled:
        """What became of a small program, built as the native runtime is."""
        return compile_program()

    @cached_property
    def machine(self) -> dict[str, Any]:
        """The section `machine` of params.yaml; empty if it cannot be read, which `python -m tasks.config` explains."""
        try:
            import yaml

            return dict(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["machine"])
        except Exception:  # noqa: BLE001 (no yaml, no file, no such section, no mapping)
            return {}

    @cached_property
    def in_environment(self) -> bool:
        """Whether this Python is that of `.venv`."""
        return ENVIRONMENT.exists() and Path(sys.prefix).resolve() == ENVIRONMENT.resolve()

    @cached_property
    def install(self) -> str:
        """What to do about packages that are missing or have another version than the locked one."""
        if self.in_environment:
            return f"run {ENVIRONMENT}/bin/python -m pip install --requirement {LOCK}"
        return f"run make setup, which installs {LOCK} into {ENVIRONMENT}"

    def repair(self, failure: str) -> str:
        """What to do about a package that failed with this message; pip leaves a damaged one of the right version as it is."""
        if "ModuleNotFoundError" in failure or not self.in_environment:
            return self.install
        return f"fix what the message names; if the package is damaged, remove {ENVIRONMENT} and run make setup"
