"""Pools of written text: what a step gets, in which process, and what of them outlives a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.alignment.rollout_buffer import RolloutBuffer, Rollouts
from tasks.alignment.schedule import DataSource, Schedule
from tasks.alignment.settings import AlignSettings
from tasks.decoding.decoder import Rows
from tasks.training.batching import BucketBatchSampler
from tasks.training.data import IGNORED, Batch, TokenDataset
from tests.toys import END

EXAMPLES = TokenDataset([[10 + index, END] for index in range(9)], [[20, 21, END]] * 9, 0)


class Scribe:
    """Writes each text's source and number; notes what it was asked."""

    def __init__(self, weight: float | None = None) -> None:
        self.asked: list[tuple[Rows, list[int], int]] = []
        self._weight = weight

    def __call__(self, sources: Rows, numbers: Sequence[int], seed: int) -> Rollouts:
        self.asked.append((sources, list(numbers), seed))
        tokens = [[source[0], 100 + number] for source, number in zip(sources, numbers, strict=True)]
        return Rollouts(tokens, None if self._weight is None else [[1.0, self._weight]] * len(sources))


def source_of(scribe: Scribe, folder: Path, **settings: Any) -> tuple[RolloutBuffer, AlignSettings]:
    chosen: dict[str, Any] = {"on_policy": 1.0, "write_every": 4, "batch_size": 4, "steps": 40, **settings}
    recipe = AlignSettings(loss="forward_kl", **chosen)
    return RolloutBuffer(EXAMPLES, recipe, Schedule(recipe).window, scribe, folder), recipe


def labels(parts: list[Batch]) -> list[list[int]]:
    return [[token for token in row if token != IGNORED] for part in parts for row in part.labels.tolist()]


def test_a_step_s_inputs_are_the_order_s_and_its_texts_the_writer_s(tmp_path: Path) -> None:
    scribe = Scribe()
    source, recipe = source_of(scribe, tmp_path)
    order = BucketBatchSampler(EXAMPLES, recipe)
    for begin in (0, 4):
        numbers = iter(range(100, 200))
        for step in range(begin, begin + 4):
            [part] = source.microbatches(step)
            assert part.source[:, 0].tolist() == [10 + example for example in order.batch_at(step)]
            assert labels([part]) == [[10 + example, next(numbers)] for example in order.batch_at(step)]
            assert part.weights is None
    assert [seed for _, _, seed in scribe.asked] == [0, 4], "each window is written once, with its own draws"


def test_weights_are_aligned_with_their_tokens(tmp_path: Path) -> None:
    source, _ = source_of(Scribe(weight=0.25), tmp_path)
    [part] = source.microbatches(0)
    assert part.weights is not None
    assert set(map(tuple, part.weights.tolist())) == {(1.0, 0.25)}


def test_a_window_written_before_a_kill_is_read_again(tmp_path: Path) -> None:
    first, _ = source_of(Scribe(weight=0.1), tmp_path)
    before = [labels(first.microbatches(step)) for step in range(4)]
    again = Scribe(weight=0.5)
    resumed, _ = source_of(again, tmp_path)
    assert [labels(resumed.microbatches(step)) for step in (2, 3)] == before[2:]
    assert not again.asked
    [part] = resumed.microbatches(3)
    assert part.weights is not None
    assert part.weights[0].tolist() == pytest.approx([1.0, 0.1])
    resumed.microbatches(4)
    assert len(again.asked) == 1


@pytest.mark.parametrize("torn", ["", "{}", '{"tokens": [[10,', None], ids=["empty", "other form", "cut", "one digit changed"])
def test_a_damaged_file_is_written_again(tmp_path: Path, torn: str | None) -> None:
    source_of(Scribe(), tmp_path)[0].microbatches(0)
    [file] = tmp_path.glob("*")
    file.write_text(file.read_text().replace("100", "101") if torn is None else torn)
    scribe = Scribe()
    assert labels(source_of(scribe, tmp_path)[0].microbatches(0))
    assert len(scribe.asked) == 1


def test_windows_are_kept_while_a_checkpoint_may_need_them(tmp_path: Path) -> None:
    """With a checkpoint every 6 steps, training may go on at the last two of them."""
    source, _ = source_of(Scribe(), tmp_path, checkpoint_every=6)
    for step in range(40):
        source.microbatches(step)
        begun = sorted(int(file.name[5:13]) for file in tmp_path.glob("*.json"))
        oldest = max(0, (step // 6 - 1) * 6)
        assert set(range(oldest // 4 * 4, step + 1, 4)) <= set(begun)
        assert len(begun) <= 5
    assert not list(tmp_path.glob(".partial.*"))


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_processes_write_what_one_alone_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accumulation: int) -> None:
    def written(rank: int, world: int) -> list[list[list[int]]]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        scribe = Scribe(weight=0.1)
        source, _ = source_of(scribe, tmp_path / f"{world}", accumulation=accumulation)
        found = []
        for step in range(4):
            parts = source.microbatches(step)
            assert len(parts) == accumulation
            found.append([row for row in labels(parts) if row])
        assert sorted(row for step in found for row in step) == sorted(
            [sources[0], 100 + number] for sources, number in zip(scribe.asked[0][0], scribe.asked[0][1], strict=True)
        )
        return found

    [alone] = [written(0, 1)]
    shared = [written(rank, 3) for rank in range(3)]
    for step in range(4):
        assert sorted(row for process in shared for row in process[step]) == sorted(alone[step])


def test_calibration_steps_write_nothing(tmp_path: Path) -> None:
    scribe = Scribe()
    source, recipe = source_of(scribe, tmp_path, on_policy=0.4)
    schedule = Schedule(recipe)
    written = [step for step in range(40) if schedule.source_at(step) is DataSource.ON_POLICY]
    for step in written:
        source.microbatches(step)
    sizes = BucketBatchSampler(EXAMPLES, recipe)
    assert sum(len(numbers) for _, numbers, _ in scribe.asked) == sum(len(sizes.batch_at(step)) for step in written)
