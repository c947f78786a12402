"""Registers a pair as a model of MLflow; doing it again changes nothing.

A version is identified by a tag with the checksum of the pair's folder: the same pair gets one version, however often it is
reported. The alias `candidate` names the version of the newest report.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tasks.tracking.model_files import write_model
from tasks.tracking.outbox import RegisteredModel

if TYPE_CHECKING:
    from mlflow import MlflowClient, entities

CONTENT_TAG, MODEL_TAG, REPORTED_TAG = "draftline.content", "draftline.model", "draftline.reported"
"""Checksum of the pair; id of the logged model, which a database does not keep with the version; start of the report's run."""
ALIAS = "candidate"


def model_name(task: str) -> str:
    """Return the name of a task's registered model."""
    return f"draftline-{task}"


def register(client: MlflowClient, experiment: str, run_id: str, model: RegisteredModel, folder: Path, reported: int) -> None:
    """Let MLflow hold a version of the model with this content, and the alias name it.

    Args:
        client: The MLflow to register in.
        experiment: The id of the run's experiment.
        run_id: The id of the run that reports the pair.
        model: The model, with its path under `folder`.
        folder: The run's folder in the outbox.
        reported: When the run began, in milliseconds since the epoch; the alias does not go back to an older report.
    """
    with FileLock(folder.parent / f".{model.name}.lock"):  # a run of the same pair may be sent by another process
        found = _version(client, model) or _create_version(client, experiment, run_id, model, folder)
        link_to_run(client, run_id, found.tags[MODEL_TAG])
        _point_alias(client, model.name, found, reported)


def _version(client: MlflowClient, model: RegisteredModel) -> entities.model_registry.ModelVersion | None:
    """Return the oldest version with the model's content; delete later ones, which a server made twice, but not if in use."""
    versions = client.search_model_versions(f"name = '{model.name}'")
    same = sorted((one for one in versions if one.tags.get(CONTENT_TAG) == model.content), key=lambda one: int(one.version))
    for double in same[1:]:
        if not client.get_model_version(model.name, double.version).aliases:
            client.delete_model_version(model.name, double.version)
    return same[0] if same else None


def _create_version(
    client: MlflowClient, experiment: str, run_id: str, model: RegisteredModel, folder: Path
) -> entities.model_registry.ModelVersion:
    if not client.search_registered_models(f"name = '{model.name}'"):
        client.create_registered_model(model.name)
    logged = _logged_model(client, experiment, run_id, model, folder)
    tags = {**model.tags, CONTENT_TAG: model.content, MODEL_TAG: logged.model_id}
    return client.create_model_version(
        model.name, logged.artifact_location, run_id, tags, None, model.description, 0, logged.model_id
    )


def _logged_model(
    client: MlflowClient, experiment: str, run_id: str, model: RegisteredModel, folder: Path
) -> entities.LoggedModel:
    """Return a logged model with the content, complete with its files."""
    found = client.search_logged_models([experiment], f"tags.`{CONTENT_TAG}` = '{model.content}'", max_results=1)
    tags = {**model.tags, CONTENT_TAG: model.content}
    logged = found[0] if found else client.create_logged_model(experiment, model.name, run_id, tags)
    if logged.status != "READY":
        with tempfile.TemporaryDirectory(dir=folder) as place:  # beside the pair: links to its files take no space
            written = Path(place, "model")
            write_model(written, model, folder / model.path, logged.model_id, run_id)
            client.log_model_artifacts(logged.model_id, str(written))
        client.finalize_logged_model(logged.model_id, "READY")
    return logged


def link_to_run(client: MlflowClient, run_id: str, model_id: str) -> None:
    """Show the model on the run's page; MLflow would show it twice if it were told twice."""
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(run_id).outputs
    if model_id not in [output.model_id for output in (outputs.model_outputs if outputs else ())]:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])


def _point_alias(client: MlflowClient, name: str, found: entities.model_registry.ModelVersion, reported: int) -> None:
    """Give a version the alias, unless the alias names one that a later report recommends."""
    current = client.get_registered_model(name).aliases.get(ALIAS)
    if current is not None:
        tags = client.get_model_version(name, current).tags
        if int(tags.get(REPORTED_TAG, 0)) > reported:
            return
    client.set_model_version_tag(name, found.version, REPORTED_TAG, str(reported))
    client.set_registered_model_alias(name, ALIAS, found.version)
