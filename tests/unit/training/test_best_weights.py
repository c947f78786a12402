"""The best weights: chosen, kept while a checkpoint names them, and put back."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.training.best_weights import BestWeights
from tasks.training.settings import TrainingSettings


def best_of(folder: Path, choose_by: str = "quality", patience: int = 0) -> BestWeights:
    return BestWeights(folder, TrainingSettings(choose_by=choose_by, patience=patience))


def model_of(value: float) -> Any:
    """Tied weights, as language models have, and a frozen part."""
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2), "frozen": torch.nn.Linear(2, 2)}
    )
    model["head"].weight = model["embed"].weight
    model["frozen"].requires_grad_(False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(value)
    return model


def looked(best: BestWeights, values: list[float], name: str = "quality", first: int = 1) -> BestWeights:
    for step, value in enumerate(values, first):
        best.update(model_of(float(step)), {name: value}, step)
    return best


def kept_files(folder: Path) -> list[int]:
    return sorted(int(file.stem.removeprefix("best")) for file in folder.glob("best*"))


@pytest.mark.parametrize(
    ("name", "values", "kept"),
    [
        ("quality", [1.0, 3.0, 2.0], 2),
        ("quality", [3.0, 3.0, 3.0], 1),
        ("validation_loss", [2.0, 1.0, 1.5], 2),
        ("quality", [0.0, -1.0], 1),
        ("validation_loss", [float("nan"), 5.0, float("-inf"), 4.0, float("nan")], 4),
    ],
)
def test_the_best_is_the_first_of_the_best_numbers(name: str, values: list[float], kept: int, tmp_path: Path) -> None:
    model = model_of(99.0)
    assert looked(best_of(tmp_path, name), values, name).restore_weights(model) == kept
    assert {weight.mean().item() for key, weight in model.named_parameters() if "frozen" not in key} == {kept}
    assert model["head"].weight is model["embed"].weight
    # What is not trained is not kept either: the model has it.
    assert model["frozen"].weight.mean().item() == 99.0


def test_where_the_last_are_kept_nothing_is_written(tmp_path: Path) -> None:
    best, model = looked(best_of(tmp_path, "last"), [1.0, 2.0]), model_of(7.0)
    assert best.restore_weights(model) is None
    assert not kept_files(tmp_path)
    assert model["head"].weight.mean().item() == 7.0


def test_patience_counts_evaluations_without_a_better_one(tmp_path: Path) -> None:
    best, seen = best_of(tmp_path, patience=2), []
    for step, value in enumerate([1.0, 0.5, 2.0, 2.0, 1.0], 1):
        best.update(model_of(step), {"quality": value}, step)
        seen.append(best.out_of_patience)
    assert seen == [False, False, False, False, True]
    assert not looked(best_of(tmp_path), [2.0, 1.0, 1.0, 1.0]).out_of_patience


def test_what_is_not_measured_chooses_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose_by is quality, but this run measures validation_loss; name"):
        best_of(tmp_path).update(model_of(0), {"validation_loss": 1.0}, 1)


def test_a_checkpoint_takes_up_the_search(tmp_path: Path) -> None:
    state = looked(best_of(tmp_path, patience=3), [1.0, 3.0, 2.0]).state_dict()
    taken = best_of(tmp_path, patience=3)
    taken.load_state_dict(state)
    looked(taken, [2.5, 2.0], first=4)
    assert taken.out_of_patience
    assert taken.restore_weights(model_of(0)) == 2


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_best_weights_that_are_gone_or_damaged_begin_the_search_anew(damage: str, tmp_path: Path) -> None:
    state = looked(best_of(tmp_path, patience=2), [1.0, 9.0, 2.0]).state_dict()
    (file,) = tmp_path.glob("best*2.safetensors")
    file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-1] + b"x")
    taken = best_of(tmp_path, patience=2)
    taken.load_state_dict(state)
    looked(taken, [1.0], first=4)
    assert not taken.out_of_patience
    assert taken.restore_weights(model_of(0)) == 4


def test_a_run_without_a_checkpoint_begins_with_nothing(tmp_path: Path) -> None:
    best = best_of(tmp_path)
    best.load_state_dict({})
    assert best.restore_weights(model_of(0)) is None


def test_weights_stay_while_a_checkpoint_on_the_disk_names_them(tmp_path: Path) -> None:
    """Checkpoints after steps 3, 6 and 9 of rising quality: each of the last two can be gone on from, and from its best."""
    best, states = best_of(tmp_path), []
    for begin in (1, 4, 7):
        looked(best, [float(begin), begin + 1.0, begin + 2.0], first=begin)
        states.append(best.state_dict())
        best.prune()
    assert kept_files(tmp_path) == [6, 9]
    # Killed before the next checkpoint, with better weights already there, and taken up from the older of the two.
    looked(best, [20.0], first=10)
    assert kept_files(tmp_path) == [6, 9, 10]
    taken = best_of(tmp_path)
    taken.load_state_dict(states[1])
    assert taken.restore_weights(model_of(0)) == 6
    looked(taken, [5.0], first=7)
    taken.prune()
    assert kept_files(tmp_path) == [6]


def test_no_space_left_keeps_the_best_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import safetensors.torch

    best = looked(best_of(tmp_path), [1.0])

    def full(_: Any, file: Path) -> None:
        file.write_text("partial")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(InputError, match=f"no space left for the best weights, of step 2, in {tmp_path}.*starts anew"):
        looked(best, [2.0], first=2)
    assert [file.name for file in tmp_path.iterdir()] == ["best00000001.safetensors"]
