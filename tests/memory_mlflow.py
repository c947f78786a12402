"""An `MlflowClient` in memory. It can kill its caller, lose answers, work late, hang and be unavailable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tasks.files import link_folder
from tasks.tracking import RegisteredModel, recorder, registration, upload
from tasks.tracking.client import Unavailable
from tasks.tracking.upload import PARENT_TAG
from tests.memory_registry import MemoryRegistry, ModelOutput


class Metric(NamedTuple):
    """Stands for `mlflow.entities.Metric`."""

    key: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None


class Dataset(NamedTuple):
    """Stands for `mlflow.entities.Dataset`."""

    name: str
    digest: str
    source_type: str
    source: str
    schema: str | None = None
    profile: str | None = None


class InputTag(NamedTuple):
    """Stands for `mlflow.entities.InputTag`."""

    key: str
    value: str


class DatasetInput(NamedTuple):
    """Stands for `mlflow.entities.DatasetInput`."""

    dataset: Dataset
    tags: list[InputTag]


class Param(NamedTuple):
    """Stands for `mlflow.entities.Param`."""

    key: str
    value: str


class StoreError(Exception):
    """Stands for `MlflowException`."""

    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.error_code = error_code


class Killed(BaseException):
    """Stands for the end of the process that sends."""


class Stored:
    """A run of the store; `history` is a set, as MLflow's databases keep one of two equal values."""

    def __init__(self, run_id: str, name: str, tags: dict[str, str], start: int) -> None:
        self.info = SimpleNamespace(
            run_id=run_id, status="RUNNING", lifecycle_stage="active", start_time=start, end_time=None, run_name=name
        )
        self.data = SimpleNamespace(metrics={}, params={}, tags=dict(tags))
        self.history: set[Metric] = set()
        self.artifacts: dict[str, str] = {}
        self.datasets: set[tuple[Dataset, str]] = set()
        """As in MLflow's databases, one of two equal ones."""

    @property
    def parent(self) -> str:
        return str(self.data.tags.get(PARENT_TAG, ""))


class MemoryMlflow(MemoryRegistry):
    """The store and its client; `fault` is called with the number of a request and the work, which it does or does not do."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Stored] = {}
        self.experiments: dict[str, Any] = {}
        self.fault: Callable[[int, Callable[[], None]], None] = lambda number, work: work()
        self.requests: list[str] = []
        self.connections = self.inside = self.most_inside = 0
        self.unavailable = False
        self.together: threading.Barrier | None = None
        self._lock = threading.Lock()

    def connect(self, uri: str) -> MemoryMlflow:
        self.connections += 1
        if self.unavailable:
            raise Unavailable(f"{uri} does not answer")
        return self

    def active(self) -> list[Stored]:
        return [run for run in self.runs.values() if run.info.lifecycle_stage == "active"]

    def by_name(self, name: str) -> Stored:
        (run,) = (run for run in self.active() if run.info.run_name == name)
        return run

    def get_experiment_by_name(self, name: str) -> Any:
        return self._request("get experiment", lambda: self.experiments.get(name))

    def create_experiment(self, name: str, artifact_location: str | None, tags: dict[str, str]) -> str:
        found = SimpleNamespace(experiment_id=name, lifecycle_stage="active", tags=tags)
        self._request("create experiment", lambda: self.experiments.setdefault(name, found))
        return name

    def search_runs(self, experiments: list[str], wanted: str, view: int, max_results: int) -> list[Stored]:
        tag, value = wanted.removeprefix("tags.`").removesuffix("'").split("` = '")
        assert (view, max_results) == (3, 50_000)
        found = self._request("search", lambda: [_copy(run) for run in self.runs.values() if run.data.tags.get(tag) == value])
        return list(found)

    def create_run(self, experiment: str, start_time: int, tags: dict[str, str], run_name: str) -> Any:
        def create() -> Stored:
            run = Stored(f"run{len(self.runs)}", run_name, tags, start_time)
            self.runs[run.info.run_id] = run
            return _copy(run)

        return self._request("create run", create)

    def get_metric_history(self, run_id: str, name: str) -> Any:
        return self._request("history", lambda: [metric for metric in self._run(run_id).history if metric.key == name])

    def log_batch(self, run_id: str, metrics: list[Metric], params: Sequence[Param] = (), synchronous: bool = True) -> Any:
        def log() -> None:
            run = self._run(run_id)
            if any(metric.key == "refused" for metric in metrics):
                raise StoreError("a bad name", "INVALID_PARAMETER_VALUE")
            for metric in metrics:
                if metric.model_id is not None:
                    self.measured.setdefault(metric.model_id, set()).add(metric[:4])
            run.history |= {metric._replace(model_id=None) for metric in metrics}
            run.data.metrics |= {metric.key: metric.value for metric in metrics}
            run.data.params |= {param.key: param.value for param in params}

        if synchronous:
            return self._request("log", log)
        failures: list[StoreError] = []

        def wait() -> None:
            if failures:
                raise failures[0]

        try:
            self._request("log later", log)
        except StoreError as error:
            failures.append(error)
        return SimpleNamespace(wait=wait)

    def log_artifact(self, run_id: str, path: str, folder: str | None) -> None:
        name = "/".join(filter(None, [folder, Path(path).name]))
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        self._request("artifact", lambda: self._run(run_id).artifacts.__setitem__(name, text))

    def log_artifacts(self, run_id: str, path: str, folder: str | None) -> None:
        for file in Path(path).iterdir():
            self.log_artifact(run_id, str(file), folder)

    def log_inputs(self, run_id: str, inputs: list[DatasetInput]) -> None:
        known = {(one.dataset, one.tags[0].value) for one in inputs}
        self._request("inputs", lambda: self._run(run_id).datasets.update(known))

    def set_tag(self, run_id: str, tag: str, value: str) -> None:
        self._request("tag run", lambda: self._run(run_id).data.tags.__setitem__(tag, value))

    def set_terminated(self, run_id: str, status: str, end: int) -> None:
        self._request("end", lambda: self._run(run_id).info.__dict__.update(status=status, end_time=end))

    def delete_run(self, run_id: str) -> None:
        self._request("delete", lambda: self._run(run_id).info.__dict__.update(lifecycle_stage="deleted"))

    def _data(self, run_id: str) -> Any:
        return SimpleNamespace(tags=dict(self._run(run_id).data.tags))

    def _run(self, run_id: str) -> Stored:
        if run_id not in self.runs:
            raise StoreError(f"run {run_id} does not exist", "RESOURCE_DOES_NOT_EXIST")
        return self.runs[run_id]

    def _request(self, kind: str, work: Callable[[], Any]) -> Any:
        answer = []
        with self._lock:
            self.requests.append(kind)
            number = len(self.requests)
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        if self.together is not None and kind == "create run":
            self.together.wait(timeout=120)
        try:
            with self._lock:
                self.fault(number, lambda: answer.append(work()))
        finally:
            with self._lock:
                self.inside -= 1
        return answer[0]


def _copy(run: Stored) -> Stored:
    """Return what an answer holds: the run as it is at that moment."""
    copy = Stored(run.info.run_id, run.info.run_name, run.data.tags, run.info.start_time)
    copy.info.__dict__.update(run.info.__dict__)
    copy.data.metrics.update(run.data.metrics)
    return copy


def _write_model(path: Path, model: RegisteredModel, pair: Path, model_id: str, run_id: str) -> None:
    link_folder(pair, path / "artifacts/pair")
    (path / "MLmodel").write_text(model_id, encoding="utf-8")


@contextmanager
def memory_mlflow(folder: Path) -> Iterator[MemoryMlflow]:
    """Replace MLflow by a store in memory; runs wait in `folder`/outbox."""
    store, others = MemoryMlflow(), set(threading.enumerate())
    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    entities.__dict__.update(LoggedModelOutput=ModelOutput, Metric=Metric, Param=Param, ViewType=SimpleNamespace(ALL=3))
    entities.__dict__.update(Dataset=Dataset, DatasetInput=DatasetInput, InputTag=InputTag)
    package.__dict__["entities"] = entities
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mlflow", package)
        patch.setitem(sys.modules, "mlflow.entities", entities)
        patch.setattr(upload, "connect", store.connect)
        patch.setattr(recorder, "connect", store.connect)
        patch.setattr(registration, "write_model", _write_model)
        patch.setattr(upload, "_PAUSE_SECONDS", 0.0)
        patch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
        patch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@server")
        yield store
        for thread in set(threading.enumerate()) - others:
            thread.join(60)  # a thread that still sends would import the real mlflow
