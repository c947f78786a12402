"""A training stage that ends after a checkpoint: its next run continues there, and saves the model of a whole run."""

from pathlib import Path
from typing import Any

import pytest

from tasks.models.settings import ModelSettings
from tasks.paths import TaskPaths
from tasks.training import checkpoints
from tasks.training.settings import TrainingSettings
from tasks.training.stage import TrainingJob, train_stage
from tests.training import InterruptedRun, toy_job, toy_spec

PATHS = TaskPaths("toy")
SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1)
RECIPE = TrainingSettings(optimizer="adamw", learning_rate=1e-2, steps=6, batch_size=4, evaluate_every=3, checkpoint_every=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """In a folder of its own, with a corpus and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    return toy_job(PATHS, SHAPE, RECIPE)


def test_a_stage_continues_from_its_checkpoint(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = checkpoints.save

    def run(ends_after: int | None = None) -> list[int]:
        """Run the stage and return the steps after which it left a checkpoint."""
        saved.clear()

        def noted(engine: Any, folder: Path, step: int, state: dict[str, Any]) -> None:
            save(engine, folder, step, state)
            saved.append(step)
            if step == ends_after:
                raise InterruptedRun

        monkeypatch.setattr(checkpoints, "save", noted)
        train_stage(job, toy_spec)
        return list(saved)

    model = PATHS.model("small") / "model.safetensors"
    whole = run()
    expected = model.read_bytes()
    model.unlink()
    with pytest.raises(InterruptedRun):
        run(ends_after=whole[0])
    assert not model.exists()
    assert run() == whole[1:]
    assert model.read_bytes() == expected
    assert not list(Path(".cache/resume").rglob("step*"))
