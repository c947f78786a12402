"""The stage finetune with a small model that is made of layers of the large one."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tasks import finetune
from tasks.errors import InputError
from tests.architectures import llama


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, model: str, layers: list[int]) -> list[Any]:
    """Run the stage without training; return the jobs and their specs that it would train."""
    trained: list[Any] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["finetune", "--task", "words", "--model", model])
    monkeypatch.setattr("tasks.finetune.train_stage", lambda job, make_spec: trained.append((job, make_spec)))
    models = {"small": {"from_large": {"layers": layers}}, "large": {"pretrained": "folder"}}
    params = {"active": {"words": "data/words"}, "tasks": {"words": {"metric": "bleu", "models": models}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    finetune.main()
    return trained


def test_nothing_is_trained_but_where_drafters_begin_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, "small", [0, 2]) == []
    note = (tmp_path / "models/words/small/README.md").read_text()
    assert "the drafters of layers 0, 2 of models/words/large" in note
    assert (tmp_path / "results/words/training/small.csv").read_text() == "step,loss\n"


def test_layers_that_a_checkpoint_lacks_are_refused_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [(_, make_spec)] = run(monkeypatch, tmp_path, "large", [0, 3])
    opened = SimpleNamespace(model=llama(3), examples=[], held_out=[])
    with pytest.raises(InputError, match="layers names 3, but the large model has 3 decoder layers, 0 to 2"):
        make_spec(opened)
