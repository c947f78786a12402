"""The inputs that identify the work of the stage align: a run on other text is not resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import align
from tasks.training.context import TrainingJob


def job_of(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> TrainingJob:
    """What the stage would train with these settings of align."""
    jobs: list[TrainingJob] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["align", "--task", "words"])
    monkeypatch.setattr("tasks.training.stage.train_stage", lambda job, _: jobs.append(job))
    params = {"active": {"words": "data/words"}, "tasks": {"words": {"metric": "bleu", "align": settings}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    align.main()
    [job] = jobs
    return job


def test_stored_predictions_are_part_of_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = job_of(monkeypatch, tmp_path, loss="jensen_shannon", reference="stored")
    assert stored.files == (Path("data/words/calibration/logits"),)
    for settings in ({"loss": "jensen_shannon"}, {"loss": "sequence", "reference": "stored"}):
        assert job_of(monkeypatch, tmp_path, **settings).files == ()


def test_the_large_model_is_the_teacher_and_the_start_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models/words/small").mkdir(parents=True)
    begun = job_of(monkeypatch, tmp_path, start="fine_tuned")
    assert begun.model.pretrained == "models/words/small"
    assert job_of(monkeypatch, tmp_path).model.pretrained is None
    assert begun.teachers == (Path("models/words/large"),)
