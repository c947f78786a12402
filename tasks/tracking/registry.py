"""Pairs as versions of a registered model of MLflow.

A version is identified by a tag with the checksum of the pair's folder: the same pair gets one version, however often it is
reported. The alias `candidate` names the version of the newest report, which `tasks.promote` compares with the champion.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

from tasks.fingerprint import code_of

CANDIDATE = "candidate"
"""The alias of the version of the newest report."""
CONTENT_TAG, REPORTED_TAG = "draftline.content", "draftline.reported"
"""Of a version: checksum of the pair, and start of the report's run in milliseconds since the epoch."""
_PACKAGES = ("jinja2", "numpy", "safetensors", "sentencepiece", "torch", "tqdm", "transformers")
"""What `tasks.decoding` imports; MLflow adds itself."""
_MACHINE = {"device": "auto", "dtype": "float32", "runtime": "auto", "threads": 0}
"""Arguments of `load_pair` that `mlflow.pyfunc.load_model(…, model_config=…)` may replace."""
_TASKS = Path(__file__).parents[1]
_WHOLE = ("decoding", "models")
"""Packages that a registered model carries whole, with the sources of the kernel."""


def register(client: Any, uri: str, run_id: str, model: dict[str, Any], folder: Path, reported: int) -> None:
    """Let MLflow hold a version of the model with this content, and the alias `candidate` name it.

    Args:
        client: The `MlflowClient` to register in.
        uri: Of that MLflow.
        run_id: The id of the run that reports the pair.
        model: The fields of a `RegisteredModel`, with its path under `folder`.
        folder: The run's folder in the outbox.
        reported: When the run began, in milliseconds since the epoch; the alias does not go back to an older report.
    """
    name = model["name"]
    with FileLock(folder.parent / f".{name}.lock"):  # a run of the same pair may be sent by another process
        versions = {one.tags.get(CONTENT_TAG): one.version for one in client.search_model_versions(f"name = '{name}'")}
        number = versions.get(model["content"])
        if number is None:
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            model_id = _log_model(uri, run_id, model, folder)
            source = client.get_logged_model(model_id).artifact_location
            tags = {**model["tags"], CONTENT_TAG: model["content"]}
            about = {"run_id": run_id, "tags": tags, "description": model["description"], "model_id": model_id}
            number = client.create_model_version(name, source, **about).version
        current = client.get_registered_model(name).aliases.get(CANDIDATE)
        last = 0 if current is None else int(client.get_model_version(name, current).tags.get(REPORTED_TAG, 0))
        if last <= reported:
            client.set_model_version_tag(name, number, REPORTED_TAG, str(reported))
            client.set_registered_model_alias(name, CANDIDATE, number)


def _log_model(uri: str, run_id: str, model: dict[str, Any], folder: Path) -> str:
    """Log the pair with the code that opens it as a model of the run, and return the model's id; no pair is opened."""
    import mlflow
    import pandas as pd
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    from tasks.tracking.served_pair import COUNTS

    made = [ColSpec("string", "text"), ColSpec("string", "method"), *(ColSpec("long", name) for name in COUNTS)]
    params = ParamSchema([ParamSpec("max_new_tokens", "long", None), ParamSpec("method", "string", None)])
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=mlflow.get_run(run_id).info.experiment_id)
    # Not in a block of `start_run`, which would end the run where it is interrupted, and an ended run is complete.
    with tempfile.TemporaryDirectory() as code:
        script = shutil.copy2(Path(__file__).with_name("served_pair.py"), code)  # MLflow notes where it found it
        logged = Model.log(
            artifact_path=None,
            name=model["name"],
            flavor=mlflow.pyfunc,
            run_id=run_id,
            python_model=str(script),
            artifacts={"pair": str((folder / model["path"]).resolve())},
            code_paths=[str(copy_code(Path(code, "tasks")))],
            signature=ModelSignature(Schema([ColSpec("string", "text")]), Schema(made), params),
            input_example=pd.DataFrame({"text": model["examples"]}) if model["examples"] else None,
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in _PACKAGES],  # without +cpu
            metadata=model["metadata"],
            model_config=_MACHINE,
        )
    return str(logged.model_id)


def copy_code(folder: Path) -> Path:
    """Copy the part of the package `tasks` that decodes, and return the copy: a pair is served where `tasks` is missing."""
    for name in _WHOLE:
        shutil.copytree(_TASKS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in code_of("tasks.decoding.inference", frozenset()):
        place = folder / file.relative_to(_TASKS)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)
    for package in [folder, *folder.rglob("*/")]:
        source = _TASKS / package.relative_to(folder) / "__init__.py"
        if source.is_file():
            shutil.copy2(source, package)
    return folder
