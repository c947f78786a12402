"""The files of a registered pair: code that opens it, the pair, signature, input example and requirements."""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tasks.files import link_folder
from tasks.tracking.outbox import RegisteredModel

_PACKAGES = ("jinja2", "numpy", "safetensors", "sentencepiece", "torch", "tqdm", "transformers")
"""What `tasks.decoding` imports; MLflow adds itself."""
_MACHINE = {"device": "auto", "dtype": "float32", "runtime": "auto", "threads": 0}
"""Arguments of `load_pair` that `mlflow.pyfunc.load_model(…, model_config=…)` may replace."""
_PAIR = "artifacts/pair"
_SCRIPT = Path(__file__).with_name("served_pair.py")
CODE = (
    *("__init__.py", "corpora/__init__.py", "corpora/example.py", "decoding", "errors.py", "files.py", "hub.py", "machine.py"),
    *("models", "settings.py", "supervisor.py"),
)
"""Files and packages of `tasks` that decoding runs; the model carries them, so that it is served where `tasks` is missing."""


def write_model(path: Path, model: RegisteredModel, pair: Path, model_id: str, run_id: str) -> None:
    """Write the files of the model: the code that opens the pair, and the pair by links. No model is opened.

    Args:
        path: The folder to write, which does not exist.
        model: What to say of it.
        pair: The pair's folder.
        model_id: MLflow's id of the logged model.
        run_id: MLflow's id of the run.
    """
    from mlflow.models import Model
    from mlflow.pyfunc import FLAVOR_NAME, save_model

    files = Model(run_id=run_id, model_uuid=model_id, model_id=model_id)
    with tempfile.TemporaryDirectory() as code:
        save_model(
            path,
            python_model=str(_SCRIPT),
            code_paths=[str(_copy_code(Path(code, "tasks")))],
            mlflow_model=files,
            signature=_signature(),
            input_example=_example(model),
            pip_requirements=_requirements(),
            metadata=model.metadata,
            model_config=_MACHINE,
        )
    # `artifacts` of save_model would copy the pair, gigabytes perhaps, into the folder for temporary files.
    link_folder(pair, path / _PAIR)
    files.flavors[FLAVOR_NAME] |= {"artifacts": {"pair": {"path": _PAIR, "uri": _PAIR}}, "model_code_path": _SCRIPT.name}
    files.model_size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    files.save(path / "MLmodel")


def _copy_code(folder: Path) -> Path:
    """Copy the part of the package `tasks` that decodes, and return the copy."""
    package = Path(__file__).parents[1]
    for name in CODE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (package / name).is_dir():
            shutil.copytree(package / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(package / name, folder / name)
    return folder


def _signature() -> object:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    from tasks.tracking.served_pair import COUNTS

    given = Schema([ColSpec("string", "text")])
    made = Schema([ColSpec("string", "text"), ColSpec("string", "method"), *(ColSpec("long", name) for name in COUNTS)])
    params = ParamSchema([ParamSpec("max_new_tokens", "long", None), ParamSpec("method", "string", None)])
    return ModelSignature(given, made, params)


def _example(model: RegisteredModel) -> object:
    import pandas as pd

    return pd.DataFrame({"text": model.examples}) if model.examples else None


def _requirements() -> list[str]:
    """Return the packages that decoding needs, in the versions of this machine without the name of a build such as `+cpu`."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package}=={version(package).partition('+')[0]}")
        except PackageNotFoundError:
            found.append(package)
    return found
