"""What a run in MLflow holds beside its values and files: data sets, tables, a description, and the models that it trained.

Everything may be sent again: MLflow keeps a data set and a metric once; a tag, a file and a link replace themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.outbox import DataSet, Run, TrainedModel
from tasks.tracking.registration import link_to_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTE_TAG, TABLES_TAG, CONTEXT_TAG = "mlflow.note.content", "mlflow.loggedArtifacts", "mlflow.data.context"
"""MLflow's own names: the description of a page, the tables of a run, what a data set was read for."""
TRAINED_TAG = "draftline.trained"
"""Of a logged model: key of the run that trained it, and its name."""


class Contents:
    """Sends the contents of one run.

    Args:
        client: The MLflow.
        experiment: The id of the run's experiment.
        run: The run.
        run_id: MLflow's id of it.
        folder: Its folder in the outbox.
        find_earlier: Returns MLflow's id of an earlier run by its key; None where MLflow has none.
    """

    def __init__(
        self,
        client: MlflowClient,
        experiment: str,
        run: Run,
        run_id: str,
        folder: Path,
        find_earlier: Callable[[str], str | None],
    ) -> None:
        self._client, self._experiment, self._run, self._run_id = client, experiment, run, run_id
        self._folder, self._find_earlier = folder, find_earlier

    def send(self) -> None:
        """Send all of it."""
        if self._run.datasets:
            self._client.log_inputs(self._run_id, [_dataset_input(data) for data in self._run.datasets])
        for path, also_in in self._run.tables:
            for receiver in self._receivers(also_in):
                self._send_table(receiver, self._folder / path)
        for text, also_in in self._run.notes:
            for receiver in self._receivers(also_in):
                self._client.set_tag(receiver, NOTE_TAG, text)
        for model in self._run.trained:
            self._send_trained(model)

    def _receivers(self, also_in: Sequence[str]) -> list[str]:
        return [self._run_id, *filter(None, map(self._find_earlier, also_in))]

    def _send_table(self, run_id: str, table: Path) -> None:
        """Do what `MlflowClient.log_table` does, but replace a table of the same name, to which that would append."""
        self._client.log_artifact(run_id, str(table), None)
        known = json.loads(self._client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
        entry = {"path": table.name, "type": "table"}
        if entry not in known:
            self._client.set_tag(run_id, TABLES_TAG, json.dumps([*known, entry]))

    def _send_trained(self, model: TrainedModel) -> None:
        from mlflow.entities import Metric

        key = f"{self._run.key} {model.name}"
        found = self._client.search_logged_models([self._experiment], f"tags.`{TRAINED_TAG}` = '{key}'", max_results=1)
        about = (model.name, self._run_id, {**model.tags, TRAINED_TAG: key}, model.params)
        logged = found[0] if found else self._client.create_logged_model(self._experiment, *about)
        if logged.status != "READY":
            self._client.log_model_artifacts(logged.model_id, str(self._folder / model.path))
            measured = [metric for metric in self._run.metrics if metric[0] in model.metrics]
            metrics = [Metric(name, value, at, step, model_id=logged.model_id) for name, value, step, at in measured]
            self._client.log_batch(self._run_id, metrics)
            self._client.finalize_logged_model(logged.model_id, "READY")
        link_to_run(self._client, self._run_id, logged.model_id)


def _dataset_input(data: DataSet) -> object:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = {name: value for name, value in (("size", data.size), ("files", data.files)) if value is not None}
    source = json.dumps({"path": data.output, "hash": data.digest})
    described = Dataset(data.name, data.digest, "dvc", source, profile=json.dumps(profile))
    return DatasetInput(described, [InputTag(CONTEXT_TAG, data.context)] if data.context else [])
