"""Describes the origin of a run as tags: code, packages, machine, data and user."""

from __future__ import annotations

import contextlib
import functools
import getpass
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.tracking.recorder import DataSet

_PACKAGES = ("torch", "transformers", "deepspeed", "mlflow")
_LOCK = "dvc.lock"


def lineage(root: Path = Path(), inputs: Sequence[Path | str] = ()) -> dict[str, str]:
    """Return tags that describe the origin of a run, without those that are unknown. Imports no heavy package.

    Args:
        root: The repository.
        inputs: Files and folders under `root` that the stage reads; `dvc.lock` has their hashes.

    Returns:
        `git_commit`, `git_dirty` (ignoring the lock file, which DVC writes while it runs), `python`, `torch`, `transformers`,
        `deepspeed` and `mlflow` (versions), `host_cpu`, `host_cores`, `host_gpu`, `stage` and `experiment` (DVC's names),
        `flow_run` (Prefect's id), `input PATH` (md5), and what MLflow's pages show as user, source and version.
    """
    commit = _git(root, "rev-parse", "HEAD")
    changes = commit and _git(root, "status", "--porcelain", "--", ".", f":(exclude){_LOCK}")
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    tags = {
        "git_commit": commit,
        "git_dirty": None if changes is None else "true" if changes else "false",
        **_versions(),
        **hardware(),
        **{f"input {data.name}": data.digest for data in datasets(inputs, root=root)},
        "stage": os.environ.get("DVC_STAGE"),
        "experiment": os.environ.get("DVC_EXP_NAME"),
        "flow_run": os.environ.get("PREFECT__FLOW_RUN_ID"),
        "mlflow.user": _user(),
        "mlflow.source.name": Path(sys.argv[0]).name if spec is None else str(spec.name),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit,
    }
    return {name: value for name, value in tags.items() if value}


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's answer; None without git, a repository or a commit. Takes no lock of the repository."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(  # noqa: S603 (fixed arguments)
            command, env=environment, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    tags = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            tags[package] = importlib.metadata.version(package)
    return tags


def hardware() -> dict[str, str]:
    """Return the CPU, the cores that this process may use, and the GPU if torch is imported already and sees one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    tags = {"host_cpu": platform.processor() or platform.machine(), "host_cores": str(cores)}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        tags["host_cpu"] = next(names, tags["host_cpu"])
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            tags["host_gpu"] = torch.cuda.get_device_name()
    return tags


def datasets(inputs: Sequence[Path | str], context: str = "", root: Path = Path()) -> list[DataSet]:
    """Return the inputs that DVC knows, each with the output that it is or lies in, as `dvc.lock` describes that.

    Args:
        inputs: Files and folders under `root`.
        context: What they are read for, in a word.
        root: The repository.
    """
    lock = root / _LOCK
    if not inputs or not lock.exists():
        return []
    from tasks.tracking.recorder import DataSet

    known, found = _outputs(lock.read_text(encoding="utf-8")), []
    for path in map(Path, inputs):
        relative = path.relative_to(root.resolve()) if path.is_absolute() else path
        out = next((known[parent.as_posix()] for parent in (relative, *relative.parents) if parent.as_posix() in known), None)
        if out is not None:
            found.append(DataSet(relative.as_posix(), out["md5"], out["path"], out.get("size"), out.get("nfiles"), context))
    return found


@functools.lru_cache(maxsize=1)  # a sweep asks for each drafter, and a long file takes a tenth of a second
def _outputs(lock: str) -> dict[str, Any]:
    """The outputs in the text of a `dvc.lock` that have a hash, by path."""
    import yaml

    stages = (yaml.safe_load(lock) or {}).get("stages", {})
    return {out["path"]: out for stage in stages.values() for out in stage.get("outs", ()) if "md5" in out}


def _user() -> str | None:
    with contextlib.suppress(KeyError, OSError):  # a container's process may run under an id that no user has
        return getpass.getuser()
    return None
