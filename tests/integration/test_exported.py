"""A trained model's folder, opened by the code of its card in another process and folder, without this project."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.models.settings import ModelSettings
from tasks.paths import TaskPaths
from tasks.training.settings import TrainingSettings
from tasks.training.stage import train_stage
from tests.training import toy_job, toy_spec

ROOT = Path(__file__).parents[2]
SHAPE: dict[str, Any] = {"d_model": 32, "d_ff": 48, "d_kv": 16, "heads": 2, "encoder_layers": 1, "dropout": 0.0}
RECIPE: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-2, "steps": 4, "batch_size": 4, "evaluate_every": 2}
RUNS: dict[str, tuple[ModelSettings, TrainingSettings]] = {
    "large": (
        ModelSettings(**SHAPE, decoder_layers=3),
        TrainingSettings(**RECIPE, draft_heads=2, exit_classifier=True, precision="bfloat16", choose_by="quality"),
    ),
    "small": (ModelSettings(**SHAPE, decoder_layers=1), TrainingSettings(**RECIPE, zero_stage=3)),
    "llama": (ModelSettings(**SHAPE, architecture="llama", decoder_layers=2), TrainingSettings(**RECIPE)),
    "gpt2": (ModelSettings(**SHAPE, architecture="gpt2", decoder_layers=2), TrainingSettings(**RECIPE)),
}
"""Cards know three names, so each model has its own task."""

OPENED = """
import json, os, re, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    scope = {}
    for snippet in re.findall(r"```python\\n(.*?)```", open("README.md").read(), re.DOTALL):
        exec(snippet, scope)
    print("printed", json.dumps({"tasks": "tasks" in sys.modules, "type": scope["model"].config.model_type,
        "dtype": str(scope["model"].dtype), "tokens": scope["written"].tolist()}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders that were moved after training."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
        found = {}
        for run, (model, training) in RUNS.items():
            name, paths = "small" if run == "small" else "large", TaskPaths(run)
            train_stage(dataclasses.replace(toy_job(paths, model, training), name=name), toy_spec)
            found[run] = paths.model(name).resolve()
    moved = tmp_path_factory.mktemp("elsewhere")
    for run, folder in found.items():
        shutil.copytree(folder, moved / run)
    return {run: moved / run for run in found}


@pytest.mark.slow
def test_the_code_of_a_card_opens_the_model_anywhere(folders: dict[str, Path]) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", OPENED, *map(str, folders.values())]
    ran = subprocess.run(command, cwd=folders["large"], env=variables, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    printed = [json.loads(line.removeprefix("printed ")) for line in ran.stdout.split("\n") if line.startswith("printed ")]
    assert [one["type"] for one in printed] == ["t5", "t5", "llama", "gpt2"]
    assert not any(one["tasks"] for one in printed)
    assert {one["dtype"] for one in printed} == {"torch.float32"}
    # A start token and at most as many as the texts that it was trained on; a decoder-only model's begins after the source.
    assert all(0 < len(one["tokens"][0]) <= 13 + (one["type"] == "t5") for one in printed)
