"""A training stage that ends after a checkpoint: its next run continues there, and saves the model of a whole run."""

import re
from pathlib import Path
from typing import Any

import pytest

from tasks.models.settings import ModelSettings
from tasks.paths import TaskPaths
from tasks.training import checkpoints
from tasks.training.settings import TrainingSettings
from tasks.training.stage import train_stage
from tests.training import InterruptedRun, toy_job, toy_spec

PATHS = TaskPaths("toy")
SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1)
RECIPE = TrainingSettings(
    optimizer="adamw", learning_rate=1e-2, steps=6, batch_size=4, evaluate_every=3, checkpoint_every=2, choose_by="quality"
)


def test_a_stage_continues_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    job, model = toy_job(PATHS, SHAPE, RECIPE), PATHS.model("small") / "model.safetensors"
    save, saved = checkpoints.save, list[int]()

    def noted(engine: Any, folder: Path, step: int, state: dict[str, Any]) -> None:
        save(engine, folder, step, state)
        saved.append(step)
        if len(saved) == 1:
            raise InterruptedRun

    monkeypatch.setattr(checkpoints, "save", noted)
    with pytest.raises(InterruptedRun):
        train_stage(job, toy_spec)
    assert not model.exists()
    train_stage(job, toy_spec)
    assert not list(Path(".cache/resume").rglob("step*"))
    card = (model.parent / "README.md").read_text(encoding="utf-8")
    assert re.search(r"- quality: \d+\.\d{4} points\n", card)
    assert re.search(r"- validation loss: \d+\.\d{4} nats a token\n", card)
    steps, continued = saved.copy(), model.read_bytes()
    model.unlink()
    train_stage(job, toy_spec)
    assert saved == steps + steps, "the whole run leaves the checkpoints that both parts left together"
    assert model.read_bytes() == continued
