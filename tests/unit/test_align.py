"""The inputs that identify the work of the stage align: a run on other text is not resumed."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import align
from tasks.training.stage import TrainingJob


def jobs_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, drafter: str = "aligned", seeds: tuple[int, ...] = (1,), **settings: Any
) -> list[TrainingJob]:
    """What the stage would train with these settings of align, seed by seed."""
    jobs: list[TrainingJob] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["align", "--task", "words", "--arm", drafter])
    monkeypatch.setattr("tasks.align.train_stage", lambda job, _: jobs.append(job))
    params = {
        "active": {"words": "data/words"},
        "tasks": {"words": {"metric": "bleu", "seeds": list(seeds), "calibrate": {"top_logits": 4}, "align": settings}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    align.main()
    return jobs


def job_of(monkeypatch: pytest.MonkeyPatch, folder: Path, drafter: str = "aligned", **settings: Any) -> TrainingJob:
    """What the stage would train for one seed."""
    [job] = jobs_of(monkeypatch, folder, drafter, **settings)
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


def test_both_arms_differ_in_their_targets_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models/words/small").mkdir(parents=True)
    same: dict[str, Any] = {"start": "fine_tuned", "draft_vocabulary": 200, "choose_by": "quality"}
    same |= {"steps": 70, "batch_size": 5, "learning_rate": 0.01}
    taught: dict[str, Any] = {"loss": "jensen_shannon", "beta": 0.1, "reference": "live"}
    aligned, control = (job_of(monkeypatch, tmp_path, drafter, **same, **taught) for drafter in ("aligned", "unaligned"))
    assert dataclasses.asdict(control.training) == {
        **dataclasses.asdict(aligned.training), "loss": "sequence", "beta": 0.5
    }  # fmt: skip
    assert (aligned.train_file.name, control.train_file.name) == ("calibration.jsonl", "calibration-references.jsonl")
    for name in ("model", "text", "machine", "held_out_file", "metric", "teachers", "code", "seed"):
        assert getattr(aligned, name) == getattr(control, name)
    assert (aligned.batched_like, control.batched_like) == (None, aligned.train_file)
    assert control.files == () and control.folder == Path("models/words/unaligned/1")


def test_each_seed_is_a_drafter_and_others_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for stale in ("7", "3", ".partial.7", ".partial.3"):  # the last one may be another process's
        (tmp_path / "models/words/aligned" / stale).mkdir(parents=True)
    logs = tmp_path / "results/words/training/aligned"
    logs.mkdir(parents=True)
    for stale in ("7", "3"):
        (logs / f"{stale}.csv").touch()
    jobs = jobs_of(monkeypatch, tmp_path, seeds=(3, 1))
    assert [file.name for file in logs.iterdir()] == ["3.csv"]
    assert [(job.training.seed, str(job.folder)) for job in jobs] == [(seed, f"models/words/aligned/{seed}") for seed in (3, 1)]
    assert {folder.name for folder in (tmp_path / "models/words/aligned").iterdir()} == {"3", ".partial.3"}
