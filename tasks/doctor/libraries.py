"""Checks that the packages of pyproject.toml can be imported, each group for what needs it."""

from __future__ import annotations

import importlib.metadata
import re
from functools import partial
from pathlib import Path
from typing import Any

from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding
from tasks.doctor.probing import ProbeError, ask, probe
from tasks.doctor.software import REPOSITORY
from tasks.doctor.text import listed

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_MODULES = {"pyyaml": "yaml", "vl-convert-python": "vl_convert"}
"""Modules with a name of their own; others have the package's, with `_` for `-`."""


def _project() -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:
        raise RuntimeError("pyproject.toml takes Python 3.11 to be read") from None
    project: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _names(requirements: list[str]) -> list[str]:
    return [found[0] for found in map(_NAME.match, requirements) if found]


def dependencies(facts: Facts) -> Finding:
    """Import every dependency of the project."""
    modules = [_MODULES.get(name, name.replace("-", "_")) for name in _names(_project()["dependencies"])]
    failures = import_failures(modules)
    if not failures:
        return Finding(OK, f"all {len(modules)} packages can be imported")
    said = listed([f"{name} ({failure})" for name, failure in failures.items()], most=3)
    return Finding(MISSING, f"{len(failures)} of {len(modules)} cannot be imported: {said}", facts.repair(said))


def import_failures(modules: list[str]) -> dict[str, str]:
    """Import modules in a child process and return why those failed that did; one that ends the process is named, too."""
    failures: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        answer = probe("imports", *waiting)
        failures.update({one["value"]["module"]: one["value"]["failure"] for one in answer.values if one["value"]["failure"]})
        waiting = waiting[len(answer.values) :]
        if waiting:
            failures[waiting.pop(0)] = answer.failure or "no answer"
    return failures


def deepspeed(facts: Facts) -> Finding:
    """Take a training step as the stages do, on their device."""
    try:
        version = ask("training_step", str(facts.machine.get("device", "auto")))
    except ProbeError as error:
        return Finding(MISSING, str(error), facts.repair(str(error)))
    return Finding(OK, f"{version} takes a training step")


def _one(module: str, facts: Facts) -> Finding:
    """Import a package that `make repro` does without."""
    failure = import_failures([module]).get(module)
    if failure:
        return Finding(WARNING, f"cannot be imported: {failure}", facts.repair(failure))
    return Finding(OK, importlib.metadata.version(module))


def _extra(name: str, facts: Facts) -> Finding:
    """Whether the packages of an extra are installed; they are not imported."""
    packages, absent = _names(_project()["optional-dependencies"][name]), []
    for package in packages:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            absent.append(package)
    if absent:
        return Finding(WARNING, f"{len(absent)} of {len(packages)} not installed: {listed(absent)}", facts.install)
    return Finding(OK, f"all {len(packages)} packages installed")


CHECKS = (
    Check("libraries", "every stage", dependencies, required=True),
    Check("DeepSpeed", "training: the stages finetune, control and align", deepspeed, required=True),
    REPOSITORY,
    Check("MLflow", "the record of all runs, which waits on disk meanwhile, and make ui", partial(_one, "mlflow")),
    Check("Prefect", "python -m flows.pipeline and flows.serve", partial(_one, "prefect")),
    Check("extra gguf", "models from GGUF files, and pairs exported as such", partial(_extra, "gguf")),
    Check("extra servers", "PostgreSQL and S3 behind MLflow and DVC", partial(_extra, "servers")),
    Check("extra dev", "make test, make lint and make bench", partial(_extra, "dev")),
)
