"""Checkpoints survive a kill, a full disk and damage; the best weights are kept while a checkpoint names them."""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.files import SUMS
from tasks.training import checkpoints
from tasks.training.checkpoints import BestWeights, latest, load_latest, save
from tasks.training.settings import TrainingSettings


class Engine:
    """Writes two files a checkpoint, as DeepSpeed does, and reads them back."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def save_checkpoint(self, folder: str, tag: str, client_state: dict[str, Any], save_latest: bool) -> None:
        (Path(folder) / tag).mkdir(parents=True, exist_ok=True)
        for name in ("model.pt", "optimizer.pt"):
            self._before()
            (Path(folder) / tag / name).write_text(json.dumps(client_state))

    def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        assert "changed" not in (Path(folder) / tag / "model.pt").read_text(), "unpickled before its checksum holds"
        return tag, json.loads((Path(folder) / tag / "optimizer.pt").read_text())


class Killed(BaseException):
    """Nothing catches it, as nothing runs after kill -9."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Callable[[], None]]]:
    """Ends a process before its nth change of the disk; gives what counts one."""
    with monkeypatch.context() as patched:

        def at(last: int) -> Callable[[], None]:
            done = iter(range(last + 1))

            def change() -> None:
                if next(done, last) == last:
                    raise Killed

            for name in ("unlink", "rename", "rmdir", "mkdir"):
                real = getattr(os, name)
                real = getattr(real, "real", real)

                def changed(*arguments: Any, real: Any = real, **options: Any) -> Any:
                    change()
                    return real(*arguments, **options)

                changed.real = real  # type: ignore[attr-defined]
                patched.setattr(os, name, changed)
            return change

        yield at


def test_a_run_killed_anywhere_resumes_from_a_complete_checkpoint(kill_at: Any, tmp_path: Path) -> None:
    """A third checkpoint, which also rotates the first away, cut off before each of its changes in turn."""
    finished = False
    for last in range(100):
        folder = tmp_path / str(last)
        for step in (4, 8):
            save(Engine(kill_at(10_000)), folder, step, {})
        try:
            save(Engine(kill_at(last)), folder, 12, {})
            finished = True
        except Killed:
            pass
        assert latest(folder) in ({"step00000012"} if finished else {"step00000008", "step00000012"})
        step, _ = load_latest(Engine(), folder)
        assert f"step{step:08d}" == latest(folder)
        # Taken up, it writes the same checkpoint again, over whatever lies there.
        save(Engine(kill_at(10_000)), folder, 12, {"again": True})
        assert load_latest(Engine(), folder) == (12, {"again": True, "step": 12})
        assert sorted(path.name for path in folder.iterdir()) == ["step00000008", "step00000012"]
        if finished:
            break
    assert finished
    assert last > 5


def test_only_a_complete_and_undamaged_checkpoint_is_loaded(tmp_path: Path) -> None:
    assert load_latest(Engine(), tmp_path) == (0, {})
    for step in (3, 5):
        save(Engine(), tmp_path, step, {"extra": step})
    (tmp_path / "step00000009").mkdir()
    (tmp_path / "step00000009" / "model.pt").write_text("partial")
    assert load_latest(Engine(), tmp_path) == (5, {"extra": 5, "step": 5})
    (tmp_path / "step00000005" / "model.pt").write_text("changed")
    assert load_latest(Engine(), tmp_path) == (3, {"extra": 3, "step": 3})


def test_a_new_checkpoint_is_kept_rather_than_damaged_later_ones(tmp_path: Path) -> None:
    for step in (8, 12):
        save(Engine(), tmp_path, step, {})
        (tmp_path / f"step{step:08d}" / "model.pt").write_text("damaged")
    assert load_latest(Engine(), tmp_path) == (0, {})
    save(Engine(), tmp_path, 4, {})
    assert load_latest(Engine(), tmp_path) == (4, {"step": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["step00000004"]


@pytest.mark.parametrize("seal", ["", "# 1 files", "# 0 files\n", "12  model.pt\n# 1 files\n"])
def test_an_incomplete_seal_does_not_count(seal: str, tmp_path: Path) -> None:
    save(Engine(), tmp_path, 3, {})
    (tmp_path / "step00000003" / SUMS).write_text(seal)
    assert latest(tmp_path) is None


def test_a_checkpoint_without_a_part_for_this_process_is_named(tmp_path: Path) -> None:
    class Missing(Engine):
        def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
            return None, {}

    save(Engine(), tmp_path, 3, {})
    with pytest.raises(InputError, match="step00000003 has no part for rank 0; remove it and run again"):
        load_latest(Missing(), tmp_path)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("earlier", "fix"), [((3, 5), "goes on from step 5"), ((), "starts anew")])
def test_no_space_left_leaves_older_checkpoints_and_no_partial_one(earlier: tuple[int, ...], fix: str, tmp_path: Path) -> None:
    for step in earlier:
        save(Engine(), tmp_path, step, {})
    with pytest.raises(InputError, match=rf"no space left for the checkpoint of step 7 in {tmp_path}.* MB .*{fix}"):
        save(Engine(full), tmp_path, 7, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step{step:08d}" for step in earlier]


def test_no_space_left_for_the_seal_is_no_checkpoint_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoints, "seal", lambda _: full())
    with pytest.raises(InputError, match="no space left"):
        save(Engine(), tmp_path, 7, {})
    assert not list(tmp_path.iterdir())


def best_of(folder: Path, choose_by: str = "quality", state: Mapping[str, object] | None = None) -> BestWeights:
    return BestWeights(folder, TrainingSettings(choose_by=choose_by), state or {})


def model_of(value: float) -> Any:
    """Tied weights, as language models have, and a frozen part."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("embed", "head", "frozen")})
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


def test_no_best_weights_are_written_when_the_last_are_kept(tmp_path: Path) -> None:
    best, model = looked(best_of(tmp_path, "last"), [1.0, 2.0]), model_of(7.0)
    assert best.restore_weights(model) is None
    assert not list(tmp_path.iterdir())
    assert model["head"].weight.mean().item() == 7.0


def test_what_was_not_measured_cannot_choose(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose_by is quality, but this run measures validation_loss; name"):
        best_of(tmp_path).update(model_of(0), {"validation_loss": 1.0}, 6)


def test_a_checkpoint_resumes_the_search(tmp_path: Path) -> None:
    save(Engine(), tmp_path, 3, looked(best_of(tmp_path), [1.0, 3.0, 2.0]).state_dict())
    _, state = load_latest(Engine(), tmp_path)
    taken = best_of(tmp_path, state=state)
    looked(taken, [2.5, 2.0], first=4)
    assert taken.restore_weights(model_of(0)) == 2


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_each_checkpoint_has_the_best_weights_of_its_time(damage: str, tmp_path: Path) -> None:
    """Checkpoints after steps 3, 6 and 9 of rising quality: each of the last two can be gone on from, and from its best."""
    best = best_of(tmp_path)
    for begin in (1, 4, 7):
        looked(best, [float(begin), begin + 1.0, begin + 2.0], first=begin)
        save(Engine(), tmp_path, begin + 2, best.state_dict())
    # Killed before the next checkpoint, with better weights already there.
    looked(best, [20.0], first=10)
    step, state = load_latest(Engine(), tmp_path)
    assert (step, best_of(tmp_path, state=state).restore_weights(model_of(0))) == (9, 9)
    # Damage to the weights is damage to the checkpoint: the run goes on from the one before.
    file = tmp_path / "step00000009" / "best.safetensors"
    file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-1] + b"x")
    step, state = load_latest(Engine(), tmp_path)
    taken, model = best_of(tmp_path, state=state), model_of(0)
    assert (step, taken.restore_weights(model), model["head"].weight.mean().item()) == (6, 6, 6.0)
    assert looked(taken, [5.0], first=7).restore_weights(model_of(0)) == 6


def test_without_a_checkpoint_the_search_begins_anew(tmp_path: Path) -> None:
    looked(best_of(tmp_path), [9.0])
    begun = best_of(tmp_path)
    assert begun.restore_weights(model_of(0)) is None
    assert looked(begun, [1.0]).restore_weights(model_of(0)) == 1


def test_no_space_left_keeps_the_best_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import safetensors.torch

    best = looked(best_of(tmp_path), [1.0])

    def cut(_: Any, file: Path) -> None:
        file.write_text("partial")
        full()

    monkeypatch.setattr(safetensors.torch, "save_file", cut)
    with pytest.raises(InputError, match=f"no space left for the best weights, of step 2, in {tmp_path}.*starts anew"):
        looked(best, [2.0], first=2)
    assert [file.name for file in tmp_path.iterdir()] == ["best.safetensors"]
