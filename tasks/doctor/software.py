"""Checks Python, its environment, installed versions, and the programs and the repository that the pipeline works with."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tasks.doctor.facts import ENVIRONMENT, LOCK, READY, Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding
from tasks.doctor.probing import ProbeError, ask
from tasks.doctor.text import listed, shortened

_BOUND = re.compile(r"(>=|<)\s*(\d+)\.(\d+)")
_LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)$", re.MULTILINE)
_SECONDS = 20


def python(facts: Facts) -> Finding:
    """This Python against `requires-python`, by major and minor version."""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    wanted = next(line.partition("=")[2].strip().strip('"') for line in text.splitlines() if line.startswith("requires-python"))
    here = sys.version_info[:2]
    found = f"{platform.python_version()}, {sys.executable}"
    for sign, major, minor in _BOUND.findall(wanted):
        bound = int(major), int(minor)
        if (sign == ">=" and here < bound) or (sign == "<" and here >= bound):
            first = f"remove {ENVIRONMENT} and " if facts.in_environment else ""
            fix = f"install a Python that is {wanted}, then {first}run make setup PYTHON=NAME with its name"
            return Finding(MISSING, f"{found}; needs {wanted}", fix)
    return Finding(OK, found)


def environment(facts: Facts) -> Finding:
    """Whether `make setup` has finished, and whether this Python is the one that `make` uses."""
    if not READY.exists():
        begun = "was not finished" if ENVIRONMENT.exists() else "has not been run"
        return Finding(WARNING, f"make setup {begun}", "run make setup and read its last lines")
    own = ENVIRONMENT / "bin" / "python"
    if shutil.which(str(own)) is None:
        return Finding(MISSING, f"{own} does not run", f"remove {ENVIRONMENT} and run make setup")
    if not facts.in_environment:
        fix = f"run {own} -m tasks.doctor to check what make repro uses"
        return Finding(WARNING, f"{sys.executable} is not the Python of {ENVIRONMENT}; all packages below are its own", fix)
    newer = LOCK.stat().st_mtime > READY.stat().st_mtime
    return Finding(OK, f"{ENVIRONMENT}, set up" + (f"; {LOCK} is newer, so make installs it again" if newer else ""))


def versions(facts: Facts) -> Finding:
    """Installed versions against the lock file; a local part, such as `+cpu`, is another build of the same version."""
    locked = _LOCKED.findall(LOCK.read_text(encoding="utf-8"))
    installed = {name: _installed(name) for name, _ in locked}
    absent = [name for name, version in installed.items() if version is None]
    other = [
        f"{name} {installed[name]} (locked: {version})"
        for name, version in locked
        if installed[name] is not None and str(installed[name]).partition("+")[0] != version
    ]
    if not absent and not other:
        return Finding(OK, f"all {len(locked)} packages as in {LOCK}")
    parts = [f"{len(other)} of {len(locked)} differ: {listed(other)}"] if other else []
    parts += [f"{len(absent)} of {len(locked)} not installed: {listed(absent)}"] if absent else []
    return Finding(WARNING, "; ".join(parts), facts.install)


def _installed(name: str) -> str | None:
    """Return the version of an installed package; `unknown` where its metadata are broken."""
    try:
        return importlib.metadata.version(name) or "unknown"
    except importlib.metadata.PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001 (metadata without a version raise differently in each version of Python)
        return "unknown"


def make(_: Facts) -> Finding:
    """The program `make`."""
    path = shutil.which("make")
    return Finding(OK, path) if path else Finding(MISSING, "not on PATH", "install make (Debian, Ubuntu: apt install make)")


def git(_: Facts) -> Finding:
    """The program `git`, and whether it reads this repository; it refuses one that belongs to another user."""
    path = shutil.which("git")
    if path is None:
        return Finding(WARNING, "not on PATH", "install git (Debian, Ubuntu: apt install git)")
    done = subprocess.run(  # noqa: S603 (fixed arguments)
        [path, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        return Finding(WARNING, shortened(done.stderr), "clone the repository with git, as the user who works in it")
    return Finding(OK, f"{path}, at commit {done.stdout.strip()}")


def dvc(facts: Facts) -> Finding:
    """DVC with the graph of this repository, which it reads only inside a git repository."""
    try:
        found = ask("repository")
    except ProbeError as error:
        outside = "clone the repository with git: DVC works only inside of one"
        return Finding(MISSING, str(error), outside if "git repo" in str(error) else facts.repair(str(error)))
    return Finding(OK, f"{found['version']}, {found['stages']} stages")


CHECKS = (
    Check("environment", "all commands but this one; make repro sets it up if necessary", environment),
    Check("Python", "everything", python, required=True),
    Check("versions", "the results that the documentation reports, and the tests", versions),
    Check("make", "make repro", make, required=True),
    Check("git", "the commit in the record of a run, and flows with parameters of their own", git),
)
REPOSITORY = Check("DVC", "make repro, which runs the stages by DVC", dvc, required=True)
