"""A pair in a real MLflow: registered from the outbox, opened by its alias, and served, each time with the offline texts."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.decoding import load_pair
from tasks.tracking import Recorder, RegisteredModel, upload_all
from tasks.tracking.upload import connect
from tests.calibration import SOURCES
from tests.local_mlflow import empty_database
from tests.optional import NOT_FOR_DECODING
from tests.pair_folders import tiny_pair
from tests.services import free_port, service

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")

MODEL = "models:/draftline-toy@candidate"
TEXTS = SOURCES[:4]
COUNTS = ("tokens", "large_calls", "small_steps", "drafted", "accepted")


@dataclass
class Registered:
    """A database with a registered pair."""

    folder: Path
    client: Any
    environment: dict[str, str]
    offline: list[dict[str, Any]]
    """What `load_pair` gives for `TEXTS`."""


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Registered:
    folder = tmp_path_factory.mktemp("registered")
    uri, pair = f"sqlite:///{folder / 'mlflow.db'}", tiny_pair(folder)
    model = RegisteredModel("draftline-toy", str(pair), "**the verdict**", {"task": "toy"}, {"verdict": "the verdict"}, TEXTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
        for _ in range(2):
            with Recorder("toy", "report", {}, {}, flush_seconds=0) as run:
                run.log_model(model)
    shutil.copyfile(empty_database(), folder / "mlflow.db")
    assert upload_all(folder / "outbox", uri) == (2, [])
    opened = load_pair(pair, threads=1)
    outputs = [opened.generate(text)[0] for text in TEXTS]
    offline = [{"text": one.text, **{name: getattr(one.counts, name) for name in COUNTS}} for one in outputs]
    assert len({one["text"] for one in offline}) > 1
    return Registered(folder, connect(uri), {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": ""}, offline)


def test_two_reports_of_a_pair_make_one_version_with_the_verdict(registered: Registered) -> None:
    [version] = registered.client.search_model_versions("name = 'draftline-toy'")
    assert (version.description, version.tags["task"]) == ("**the verdict**", "toy")
    experiment = registered.client.get_experiment_by_name("toy").experiment_id
    [model] = registered.client.search_logged_models([experiment])
    assert model.status == "READY"
    assert {run.info.status for run in registered.client.search_runs([experiment])} == {"FINISHED"}


def test_the_model_holds_signature_example_and_no_pickle(registered: Registered) -> None:
    [model] = registered.folder.glob("mlartifacts/models/*/artifacts")
    described = (model / "MLmodel").read_text(encoding="utf-8")
    assert '"name": "text"' in described and '"name": "max_new_tokens"' in described and "the verdict" in described
    assert str(Path(__file__).parents[2]) not in described
    assert json.loads((model / "input_example.json").read_text(encoding="utf-8"))["data"] == [[text] for text in TEXTS]
    assert not list(model.rglob("*.pkl"))
    assert "torch==" in (model / "requirements.txt").read_text(encoding="utf-8")
    assert len(list(model.glob("artifacts/*/large/model.safetensors"))) == 1


def test_the_alias_opens_the_pair(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the code of this process decodes, since it is imported already; the model brings its own."""
    import mlflow

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registered.environment["MLFLOW_TRACKING_URI"])
    model = mlflow.pyfunc.load_model(MODEL, model_config={"threads": 1})
    assert Path(sys.path[0]).is_relative_to(registered.folder) and Path(sys.path[0], "tasks/decoding").is_dir()
    own, vanilla = (model.predict({"text": TEXTS}, {"method": name}).to_dict("records") for name in (None, "vanilla_large"))
    assert [one["method"] for one in (*own, *vanilla)] == ["speculative"] * 4 + ["vanilla_large"] * 4
    assert [{name: one[name] for name in registered.offline[0]} for one in own] == registered.offline
    assert [one["text"] for one in vanilla] == [one["text"] for one in registered.offline]


def test_a_copied_folder_has_artifacts_of_its_own(
    registered: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    copy = shutil.copytree(registered.folder, tmp_path / "copy")
    client = connect(f"sqlite:///{copy / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toy")
    runs = client.search_runs([experiment.experiment_id])
    [version], [model] = client.search_model_versions(), client.search_logged_models([experiment.experiment_id])
    places = [experiment.artifact_location, *(run.info.artifact_uri for run in runs), model.artifact_location, version.source]
    assert {place.partition("mlartifacts")[0] for place in places} == {f"{copy.as_uri()}/"}
    monkeypatch.setattr(sys, "path", [*sys.path])
    opened = mlflow.pyfunc.load_model(version.source, model_config={"threads": 1})
    assert Path(sys.path[0]).is_relative_to(copy)
    assert opened.predict({"text": TEXTS[:1]})["text"].tolist() == [registered.offline[0]["text"]]


@pytest.mark.slow
def test_mlflow_serves_the_pair(registered: Registered, tmp_path: Path) -> None:
    # The import of a package fails whose module is None.
    absent = f"import sys\nsys.modules.update(dict.fromkeys({NOT_FOR_DECODING.split()}))"
    (tmp_path / "sitecustomize.py").write_text(absent)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", MODEL, "--env-manager", "local", "--port", str(port)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**registered.environment, "PATH": path, "PYTHONPATH": str(tmp_path)}
    url = f"http://127.0.0.1:{port}"
    with service(command, f"{url}/ping", tmp_path / "log", variables, tmp_path):
        table = {"columns": ["text"], "data": [[text] for text in TEXTS]}
        answer = httpx.post(f"{url}/invocations", json={"dataframe_split": table}, timeout=60).json()["predictions"]
        assert [one["text"] for one in answer] == [one["text"] for one in registered.offline]
        short = {"inputs": {"text": TEXTS}, "params": {"max_new_tokens": 3}}
        assert [one["tokens"] for one in httpx.post(f"{url}/invocations", json=short).json()["predictions"]] == [3] * 4
        for asked, reason in (
            ({**short, "params": {"method": "none"}}, "method is none; it must be one of"),
            ({"dataframe_split": {**table, "data": [["red"], [None]]}}, "the column text holds nan; give a text in each row"),
        ):
            refused = httpx.post(f"{url}/invocations", json=asked)
            assert refused.status_code == 400 and reason in refused.json()["message"]
