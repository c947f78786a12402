"""Where a run came from: code, packages, machine, data and who started it, as tags."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "deepspeed", "mlflow")
_LOCK = "dvc.lock"


def lineage(root: Path = Path(), inputs: Sequence[Path | str] = ()) -> dict[str, str]:
    """Tags that say where a run came from; what cannot be found out is left out. Imports no heavy package.

    Args:
        root: the repository.
        inputs: files and folders under `root` that the stage reads; their hashes are taken from `dvc.lock`.

    Returns:
        `git_commit`, `git_dirty` (the lock file, which DVC writes while it runs, aside), `python`, `torch`, `transformers`,
        `deepspeed` and `mlflow` (versions), `host_cpu`, `host_cores`, `host_gpu`, `stage` (DVC's name of it), `experiment`
        (DVC's), `flow_run` (Prefect's id), `input PATH` (its md5), and what MLflow's pages show as user, source and version.
    """
    tags = {
        **_git(root),
        **_versions(),
        **_hardware(),
        **_dvc_inputs(root, inputs),
        "stage": os.environ.get("DVC_STAGE"),
        "experiment": os.environ.get("DVC_EXP_NAME"),
        "flow_run": os.environ.get("PREFECT__FLOW_RUN_ID"),
        "mlflow.user": _user(),
        "mlflow.source.name": _module(),
        "mlflow.source.type": "LOCAL",
    }
    return {name: value for name, value in tags.items() if value}


def _git(root: Path) -> dict[str, str]:
    commit = _ask_git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _ask_git(root, "status", "--porcelain", "--", ".", f":(exclude){_LOCK}")
    tags = {"git_commit": commit, "mlflow.source.git.commit": commit}
    return tags if changes is None else {**tags, "git_dirty": "true" if changes else "false"}


def _ask_git(root: Path, *words: str) -> str | None:
    """What git answers, or None where there is no git, no repository or no commit; takes no lock of the repository's."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = subprocess.run(  # noqa: S603 (fixed words)
            ["git", "-C", str(root), *words],  # noqa: S607 (whichever git the user has)
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _versions() -> dict[str, str]:
    tags = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            tags[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return tags


def _hardware() -> dict[str, str]:
    """CPU, the cores that this process may use, and the GPU where torch is imported already and sees one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    tags = {"host_cpu": _cpu(), "host_cores": str(cores)}
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        tags["host_gpu"] = str(torch.cuda.get_device_name())
    return tags


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _dvc_inputs(root: Path, inputs: Sequence[Path | str]) -> dict[str, str]:
    """The md5 that `dvc.lock` has for each input, or for the output that it lies in."""
    lock = root / _LOCK
    if not inputs or not lock.exists():
        return {}
    import yaml

    stages = (yaml.safe_load(lock.read_text(encoding="utf-8")) or {}).get("stages", {})
    known = {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", ()) if "md5" in out}
    tags = {}
    for given in inputs:
        path = Path(given)
        path = path.relative_to(root.resolve()) if path.is_absolute() else path
        for place in (path, *path.parents):
            if place.as_posix() in known:
                tags[f"input {path.as_posix()}"] = known[place.as_posix()]
                break
    return tags


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's process may run under an id that no user has
        return None


def _module() -> str:
    """The module that runs as `python -m`, else the name of the script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return str(spec.name) if spec is not None else Path(sys.argv[0]).name
