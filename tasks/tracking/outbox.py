"""The outbox: runs on disk, each in a folder that is removed once MLflow holds the run.

`TIME-KEY/run.jsonl` grows with the run. Each line is an object with fields of `Run`: the lists of all lines are joined, other
values replaced. `files/` holds copies of artifacts, tables and model cards, `models/CHECKSUM` pairs to register; `lock` is
locked by the process that writes the run, then by the one that sends it. The kernel releases the locks of a process that dies:
a run that is neither locked nor ended was killed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_FILE = "run.jsonl"
Metric = tuple[str, float, int, int]
"""Name, value, step and time of one value; times are milliseconds since the epoch, MLflow's unit."""


@dataclass
class RegisteredModel:
    """A pair that MLflow shall register as a version of a model."""

    name: str
    """Of the registered model."""
    path: str
    """The pair's folder: in a run, its path under the run's folder."""
    description: str
    """What the version's page says, in Markdown."""
    tags: dict[str, str]
    metadata: dict[str, Any]
    """Plain values that the file MLmodel carries."""
    examples: list[str]
    """Texts of the input example."""
    content: str = ""
    """Checksum of the pair's folder."""


@dataclass
class DataSet:
    """A file or folder that a run reads."""

    name: str
    """Its path in the repository."""
    digest: str
    """DVC's hash of the output that is the path or contains it."""
    output: str
    """The path of that output."""
    size: int | None = None
    """Bytes of the output."""
    files: int | None = None
    """Files of the output; None where it is one file."""
    context: str = ""
    """What the run reads it for, in a word."""


@dataclass
class TrainedModel:
    """A model that a run trained: what it is and where its weights are, without the weights."""

    name: str
    path: str
    """The folder with its card: in a run, its path under the run's folder."""
    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[str]
    """Names of the run's metrics that are measurements of the model."""


@dataclass
class Run:
    """A run as MLflow shall hold it, where a tag with the key identifies it; `run_id` is MLflow's own id, once known."""

    key: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    start: int
    end: int = 0
    status: str = "KILLED"
    experiment: str = ""
    run_id: str = ""
    metrics: list[Metric] = field(default_factory=list)
    artifacts: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Path under the run's folder, folder in MLflow, and keys of earlier runs that keep the file as well."""
    children: list[Run] = field(default_factory=list)
    models: list[RegisteredModel] = field(default_factory=list)
    datasets: list[DataSet] = field(default_factory=list)
    trained: list[TrainedModel] = field(default_factory=list)
    tables: list[tuple[str, list[str]]] = field(default_factory=list)
    """Path of a table under the run's folder, and keys of earlier runs that hold it as well."""
    notes: list[tuple[str, list[str]]] = field(default_factory=list)
    """A description in Markdown, and keys of earlier runs that have it as well."""


def outbox_folder(root: Path = Path()) -> Path:
    """Return the folder that `DRAFTLINE_OUTBOX` names, or `.cache/mlflow-outbox` under `root`, the repository."""
    return Path(os.environ.get("DRAFTLINE_OUTBOX") or root / ".cache" / "mlflow-outbox")


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def append(folder: Path, **fields: object) -> None:
    """Add a line to a run file. Numbers may be NaN or infinite, which Python's JSON writes and reads."""
    with (folder / RUN_FILE).open("ab", buffering=0) as file:
        file.write(json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n")


def read(folder: Path) -> Run:
    """Read a run. The last value of a metric at a step counts, and the last child with a key.

    Raises:
        ValueError: A line cannot be read. A line without its newline does not count: its writer was killed.
    """
    file, fields = folder / RUN_FILE, dict[str, Any]()
    try:
        for line in file.read_bytes().split(b"\n")[:-1]:
            for name, value in json.loads(line).items():
                fields[name] = fields.get(name, []) + value if isinstance(value, list) else value
        run = Run(**fields)
        run.end = run.end or int(1000 * file.stat().st_mtime)
        run.metrics = list({(name, step): (name, value, step, at) for name, value, step, at in run.metrics}.values())
        run.children = list({child["key"]: Run(**child) for child in fields.get("children", ())}.values())
        run.models = [RegisteredModel(**model) for model in fields.get("models", ())]
        run.datasets = [DataSet(**data) for data in fields.get("datasets", ())]
        run.trained = [TrainedModel(**model) for model in fields.get("trained", ())]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); repair it or remove its folder") from error
    return run
