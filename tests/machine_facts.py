"""Facts of a machine and the checks that read them, for tests of the doctor."""

from __future__ import annotations

from typing import Any

from tasks.doctor.__main__ import CHECKS
from tasks.doctor.facts import Facts
from tasks.doctor.finding import Check
from tasks.doctor.probing import Answer

TORCH: dict[str, Any] = {
    "version": "2.13.0",
    "cuda": None,
    "hip": None,
    "vectors": "AVX2",
    "threads": 2,
    "driver": "",
    "gpus": [],
}


def facts(machine: dict[str, Any] | None = None, **torch: Any) -> Facts:
    """Facts with these settings, and with torch as described."""
    given = Facts()
    given.__dict__.update(machine=machine or {}, torch=Answer([{"value": TORCH | torch}]), install="install them")
    return given


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)
