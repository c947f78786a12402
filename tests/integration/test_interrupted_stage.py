"""A training stage that ends after a checkpoint: its next run continues there, and saves the model of a whole run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tasks.corpora.example import Example, write_jsonl
from tasks.machine import MachineSettings
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training import checkpoints
from tasks.training.data import DatasetSource
from tasks.training.settings import TrainingSettings
from tasks.training.stage import TrainingContext, TrainingJob, TrainingSpec, train_stage
from tests.training import InterruptedRun

PATHS = TaskPaths("toy")
SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1)
RECIPE = TrainingSettings(optimizer="adamw", learning_rate=1e-2, steps=6, batch_size=4, evaluate_every=3, checkpoint_every=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """In a folder of its own, with a corpus and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    words = ["red", "blue", "green", "black", "white", "brown"]
    examples = [Example(" ".join(pair), (" ".join(pair[::-1]),)) for pair in itertools.permutations(words, 2)]
    PATHS.corpus.mkdir(parents=True)
    for split in ("train", "validation"):
        write_jsonl(examples, PATHS.split(split))
    text = [*(example.source for example in examples), *(f"nor is {number}" for number in range(0, 9000, 37))]
    train_tokenizer(text, TokenizerSettings(vocabulary=64)).save_pretrained(PATHS.tokenizer)
    return TrainingJob(
        name="small",
        stage="finetune",
        paths=PATHS,
        model=SHAPE,
        training=RECIPE,
        text=TextSettings(max_source_tokens=16, max_target_tokens=12),
        machine=MachineSettings(device="cpu"),
        metric="bleu",
        train_file=PATHS.split("train"),
        held_out_file=PATHS.split("validation"),
    )


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
        train_stage(job, make_spec)
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


def make_spec(opened: TrainingContext) -> TrainingSpec:
    return TrainingSpec(DatasetSource(opened.examples, opened.job.training))
