"""Sends runs from the outbox to MLflow; sending again what MLflow holds already changes nothing.

A pass over a run looks up what MLflow holds, by the keys that runs carry as a tag, and sends the rest. A run is ended last: an
ended run is complete. Passes are repeated until one finds nothing missing. This completes what a killed upload began, and what
a server did without answering in time; of two runs that it then holds with one key, one is deleted.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from tasks.tracking.bulk import insert_runs
from tasks.tracking.client import Unavailable, connect, one_line, sqlite_file
from tasks.tracking.contents import Contents
from tasks.tracking.outbox import RUN_FILE, Metric, Run, append, now_ms, read
from tasks.tracking.registration import register
from tasks.tracking.views import experiment_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient, entities

KEY_TAG, PARENT_TAG = "draftline.key", "mlflow.parentRunId"
_ATTEMPTS, _PAUSE_SECONDS = 3, 1.0


class NotSentError(Exception):
    """A run could not be sent, or not completely; others may be."""


def upload_all(outbox: Path, uri: str, deadline: float = math.inf) -> tuple[int, list[str]]:
    """Send every run that is no longer written, the oldest first; return how many were sent and why each other one waits.

    Never raises because of MLflow, and stops at the monotonic time `deadline`. The caller holds a lock of `tasks.locks`.
    """
    sent, client, reasons = 0, None, list[str]()
    folders = sorted(file.parent for file in outbox.glob(f"*/{RUN_FILE}"))
    for index, folder in enumerate(folders):
        try:
            with FileLock(folder / "lock", blocking=False):
                if time.monotonic() > deadline:
                    raise Unavailable("no time left for sending")
                client = client or connect(uri)
                Upload(folder, uri, client, deadline).complete()
                shutil.rmtree(folder)
                sent += 1
        except (Timeout, FileNotFoundError):  # another process writes, sends or has sent it
            continue
        except Unavailable as error:
            return sent, [*reasons, *[str(error)] * (len(folders) - index)]
        except (NotSentError, ValueError, OSError) as error:
            reasons.append(str(error))
            client = None  # MLflow may have gone: the next run connects again
    return sent, reasons


class Upload:
    """A run of the outbox, with its child runs, on its way to MLflow."""

    def __init__(self, folder: Path, uri: str, client: MlflowClient, deadline: float = math.inf) -> None:
        self.run, self._folder, self._database = read(folder), folder, sqlite_file(uri)
        self._client, self._deadline, self._experiment, self._sent = client, deadline, "", 0

    def complete(self) -> None:
        """Send what is missing until MLflow holds the run exactly once; raise if several passes in a row get nothing done."""
        attempts = _ATTEMPTS
        while attempts:
            before = self._sent
            try:
                if not self._send_missing():
                    return
                attempts -= 1
            except Exception as error:  # whatever it is, the stage must not fail because of it
                attempts = _ATTEMPTS if self._sent > before else attempts - 1
                if not attempts or time.monotonic() > self._deadline:
                    raise NotSentError(f"run {self.run.name!r}: {one_line(error)}") from error
                time.sleep(_PAUSE_SECONDS)
        raise NotSentError(f"run {self.run.name!r}: MLflow does not show what it was sent")

    def open(self) -> entities.Run:
        """Return the run in MLflow, which is created if missing."""
        self._experiment = self._experiment_id(self.run.experiment)
        stored = self._search(KEY_TAG, self.run.key).get(self.run.key) or self._create(self.run)
        if stored.info.run_id != self.run.run_id:
            self.run.run_id = stored.info.run_id
            append(self._folder, run_id=self.run.run_id)
        return stored

    def send_values(self, run: Run, stored: entities.Run) -> None:
        """Send params, and the metrics that MLflow has no value of at their step."""
        from mlflow.entities import Param

        run_id = stored.info.run_id
        known = {(name, value.step) for name in stored.data.metrics for value in self._client.get_metric_history(run_id, name)}
        metrics = _entities([metric for metric in run.metrics if (metric[0], metric[2]) not in known])
        params = [Param(name, value) for name, value in run.params.items()]
        for start in range(0, max(len(metrics), len(params)), 100):  # a request holds at most 100 params
            batch = slice(start, start + 100)
            self._log(run, run_id, metrics[batch], params[batch])

    def _log(self, run: Run, run_id: str, metrics: list[entities.Metric], params: list[entities.Param]) -> None:
        """Send values; of a batch that MLflow refuses, send each alone and leave out those that it refuses then."""
        values = [*metrics, *params]
        try:
            self._client.log_batch(run_id, metrics, params)
        except Exception as error:
            if getattr(error, "error_code", "") != "INVALID_PARAMETER_VALUE":
                raise
            if len(values) == 1:
                print(f"warning: MLflow refuses {values[0].key} of run {run.name!r}: {one_line(error)}", file=sys.stderr)
            for value in values if len(values) > 1 else ():
                self._log(run, run_id, [one for one in metrics if one is value], [one for one in params if one is value])

    def log_async(self, metrics: list[Metric]) -> Callable[[], object]:
        """Queue metrics for MLflow's asynchronous logging; return a function that waits until they are sent."""
        wait: Callable[[], object] = self._client.log_batch(self.run.run_id, _entities(metrics), synchronous=False).wait
        return wait

    def _send_missing(self) -> bool:
        """Send what MLflow does not hold; return whether anything was missing."""
        stored = self.open()
        if stored.info.lifecycle_stage == "deleted":  # by somebody who does not want to see it
            return False
        run_id = stored.info.run_id
        children = self._search(PARENT_TAG, run_id) if self.run.children else {}
        missing = [child for child in self.run.children if child.key not in children or _is_running(children[child.key])]
        inserted = self._insert_children([child for child in missing if child.key not in children], run_id)
        # A server answers four requests in the time of one; an SQLite file has one writer.
        with ThreadPoolExecutor(1 if self._database else 4) as pool:
            rest = [child for child in missing if child.key not in inserted]
            list(pool.map(lambda child: self._send_child(child, children.get(child.key), run_id), rest))
        if not _is_running(stored):
            return bool(missing)
        self.send_values(self.run, stored)
        self._send_artifacts(run_id)
        Contents(self._client, self._experiment, self.run, run_id, self._folder, self._find_earlier).send()
        for model in self.run.models:
            register(self._client, self._experiment, run_id, model, self._folder, self.run.start)
        self._client.set_terminated(run_id, self.run.status, self.run.end)
        return True

    def _insert_children(self, new: list[Run], parent: str) -> set[str]:
        """Insert child runs at once where MLflow is a database on this machine; return the keys of those inserted."""
        if self._database is None or time.monotonic() > self._deadline:
            return set()
        runs = [(child, child.tags | {KEY_TAG: child.key, PARENT_TAG: parent}) for child in new]
        with contextlib.suppress(Exception):  # the slow way then tells whether anything is wrong
            inserted = insert_runs(self._client, self._experiment, runs)
            self._sent += len(inserted)
            return inserted
        return set()

    def _send_child(self, child: Run, stored: entities.Run | None, parent: str) -> None:
        if time.monotonic() > self._deadline:
            raise NotSentError("no time left for sending")
        stored = stored or self._create(child, **{PARENT_TAG: parent})
        self.send_values(child, stored)
        self._client.set_terminated(stored.info.run_id, child.status, child.end)
        self._sent += 1

    def _send_artifacts(self, run_id: str) -> None:
        """Upload files, and folders under their names, to the run and to the earlier runs that keep them as well."""
        for copy, folder, also_in in self.run.artifacts:
            path = self._folder / copy
            into = Path(folder, path.name if path.is_dir() else "").as_posix()
            send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            for receiver in [run_id, *filter(None, map(self._find_earlier, also_in))]:
                send(receiver, str(path), None if into == "." else into)

    def _find_earlier(self, key: str) -> str | None:
        """Return the id of an earlier run; None where MLflow has none, such as one recorded on another machine."""
        stored = self._search(KEY_TAG, key).get(key)
        if stored is None and any(self._folder.parent.glob(f"*-{key}/{RUN_FILE}")):
            raise NotSentError("an earlier run that keeps its files as well is not sent yet")
        return None if stored is None or stored.info.lifecycle_stage == "deleted" else str(stored.info.run_id)

    def _create(self, run: Run, **tags: str) -> entities.Run:
        tags |= run.tags | {KEY_TAG: run.key}
        return self._client.create_run(self._experiment, start_time=run.start, tags=tags, run_name=run.name)

    def _search(self, tag: str, value: str) -> dict[str, entities.Run]:
        """Return our runs with a tag by their keys, deleted ones included; of active ones with the same key, keep only one."""
        from mlflow.entities import ViewType

        runs = self._client.search_runs([self._experiment], f"tags.`{tag}` = '{value}'", ViewType.ALL, max_results=50_000)
        kept: dict[str, entities.Run] = {}
        for run in sorted((run for run in runs if KEY_TAG in run.data.tags), key=self._rank):
            if kept.setdefault(run.data.tags[KEY_TAG], run) is not run and run.info.lifecycle_stage == "active":
                self._client.delete_run(run.info.run_id)
        return kept

    def _rank(self, stored: entities.Run) -> tuple[bool, bool, bool, str]:
        """Sort first what to keep: the run that is known already, active runs before deleted ones, ended ones before others."""
        info = stored.info
        return info.run_id != self.run.run_id, info.lifecycle_stage == "deleted", _is_running(stored), info.run_id

    def _experiment_id(self, name: str) -> str:
        """Return the id of an experiment, which is created if missing."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            artifacts = (self._database.parent / "mlartifacts").as_uri() if self._database else None
            return str(self._client.create_experiment(name, artifact_location=artifacts, tags=experiment_tags(now_ms())))
        if found.lifecycle_stage == "deleted":
            raise NotSentError(f"experiment {name!r} is deleted in MLflow; restore it there to let its runs in")
        return str(found.experiment_id)


def _entities(metrics: list[Metric]) -> list[entities.Metric]:
    from mlflow import entities

    return [entities.Metric(name, value, time, step) for name, value, step, time in metrics]


def _is_running(stored: entities.Run) -> bool:
    return bool(stored.info.lifecycle_stage == "active" and stored.info.status == "RUNNING")
