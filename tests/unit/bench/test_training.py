"""Two loops in turns, what both sides train, and what the bench asks for before it begins."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

from tasks.bench.training import command
from tasks.bench.training.contenders import LENGTHS, dataset_of, trainer_optimizer
from tasks.bench.training.pausable import Begin, PausableLoop
from tasks.bench.training.recipes import endless
from tasks.bench.training.worker import SpeedRatio, speed_ratio
from tasks.errors import InputError
from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings


def test_loops_go_as_far_as_they_are_told_one_after_the_other() -> None:
    steps: list[str] = []

    def counting(name: str) -> PausableLoop:
        def loop(begin: Begin) -> None:
            for number in itertools.count():
                begin()
                steps.append(f"{name}{number}")

        return PausableLoop(loop)

    one, other = counting("a"), counting("b")
    assert steps == []
    one.advance(2)
    other.advance(1)
    one.advance(1)
    assert steps == ["a0", "a1", "b0", "a2"]
    one.stop()
    other.stop()
    assert steps == ["a0", "a1", "b0", "a2"]


def test_only_the_steps_of_a_turn_are_timed() -> None:
    now = [0.0]

    def loop(begin: Begin) -> None:
        while True:
            begin()
            now[0] += 2.0

    turns = PausableLoop(loop, lambda: now[0])
    assert turns.advance(3) == 6.0
    now[0] += 100.0
    assert turns.advance(1) == 2.0
    turns.stop()


def test_stopping_lets_a_loop_clean_up_and_nothing_catches_it() -> None:
    cleaned: list[bool] = []

    def loop(begin: Begin) -> None:
        try:
            while True:
                try:
                    begin()
                except Exception:  # noqa: BLE001 (what a careless loop does)
                    cleaned.append(False)
        finally:
            cleaned.append(True)

    turns = PausableLoop(loop)
    turns.advance(1)
    turns.stop()
    assert cleaned == [True]


def test_what_a_loop_dies_of_is_told() -> None:
    def loop(begin: Begin) -> None:
        begin()
        raise LookupError("broken")

    turns = PausableLoop(loop)
    with pytest.raises(LookupError, match="broken"):
        turns.advance(1)
    with pytest.raises(RuntimeError, match="ended by itself"):
        PausableLoop(lambda _: None)


def test_a_recipe_without_an_end_keeps_the_rest() -> None:
    own = TrainingSettings(
        learning_rate=0.02, relative_rate=True, warmup_steps=50, decay="linear", batch_size=8, accumulation=4
    )
    same = endless(own, "adafactor")
    assert (same.learning_rate, same.relative_rate, same.warmup_steps, same.batch_size) == (0.02, True, 50, 8)
    assert (same.decay, same.accumulation) == ("constant", 1)
    assert same.steps == same.evaluate_every == same.checkpoint_every > 10**6
    other = endless(own, "adamw")
    assert (other.optimizer, other.relative_rate, other.learning_rate) == ("adamw", False, 1e-3)


def test_trainer_gets_the_length_that_it_is_to_group_by() -> None:
    texts = TokenDataset([[5, 6, 1], [7, 1]], [[8, 1], [9, 9, 9, 1]], 0)
    columns = {name: dataset_of(texts, name)["length"][:] for name in LENGTHS}
    assert columns == {"source": [3, 2], "target": [2, 4], "sum": [5, 6], "longer": [3, 4]}
    assert dataset_of(texts, "sum")["attention_mask"][:] == [[1, 1, 1], [1, 1]]


def test_trainer_has_the_optimizer_of_the_recipe() -> None:
    from transformers.optimization import Adafactor

    model = torch.nn.Linear(2, 2)
    known = trainer_optimizer(model, TrainingSettings(learning_rate=0.02, relative_rate=True, weight_decay=0.5))
    assert isinstance(known, Adafactor)
    group = known.param_groups[0]
    assert (group["lr"], group["scale_parameter"], group["relative_step"], group["weight_decay"]) == (0.02, True, False, 0.5)
    other = trainer_optimizer(model, TrainingSettings(optimizer="adamw", learning_rate=0.25))
    assert isinstance(other, torch.optim.AdamW)
    assert other.param_groups[0]["fused"]


def test_a_ratio_is_of_neighbours() -> None:
    found = speed_ratio([20.0, 10.0, 44.0], [10.0, 10.0, 11.0])
    assert found == SpeedRatio(ratio=2.0, least=1.0, most=4.0, ours=20.0, trainer=10.0)


@pytest.fixture
def settings_file() -> str:
    return str(Path("params.yaml").resolve())


@pytest.mark.parametrize("option", ["steps", "rounds", "inputs"])
def test_nothing_is_measured_of_nothing(option: str, settings_file: str) -> None:
    with pytest.raises(InputError, match=f"--{option} is 0; it must be at least 1"):
        command.main(["--params", settings_file, f"--{option}", "0"])


def test_what_the_pipeline_makes_must_be_there(settings_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"data/translation/corpus/train.jsonl is missing; make it by dvc repro"):
        command.main(["--params", settings_file])


def test_without_accelerate_one_line_says_so(settings_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data/translation/corpus/train.jsonl", "data/translation/tokenizer", "models/translation/large"):
        Path(folder).mkdir(parents=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="accelerate is not installed"):
        command.main(["--params", settings_file])
