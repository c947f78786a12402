"""Scripts that stand in for programs of other machines, first on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def write_scripts(folder: Path, **scripts: str) -> str:
    """Write a shell script for each program; return a PATH that finds them first."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    return f"{programs}{os.pathsep}{os.environ['PATH']}"


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """The same for this process."""
    monkeypatch.setenv("PATH", write_scripts(folder, **scripts))
