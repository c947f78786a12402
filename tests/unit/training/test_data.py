"""The batches of each step: what they hold, their order, the share of each process, and the rows of both kinds of models."""

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.corpora.example import Example, write_jsonl
from tasks.models.prompting import encode
from tasks.models.settings import TextSettings
from tasks.training.data import IGNORED, Batch, BucketBatchSampler, JsonlDataset, TokenDataset, own_parts, split_microbatches
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.toys import END, toy_t5


def texts(lengths: list[tuple[int, int]]) -> TokenDataset:
    return TokenDataset([[5] * source for source, _ in lengths], [[6] * target for _, target in lengths], 0)


def drawn(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randint(1, longest), rng.randint(1, longest)) for _ in range(count)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60), st.integers(1, 9))
def test_an_epoch_has_every_example_once(lengths: list[tuple[int, int]], size: int) -> None:
    order = BucketBatchSampler(texts(lengths), TrainingSettings(batch_size=size))
    seen: list[int] = []
    step = 0
    while len(seen) < len(lengths):
        seen += order.batch_at(step)
        step += 1
    assert sorted(seen) == list(range(len(lengths)))


def padded(lengths: list[tuple[int, int]], batch: list[int]) -> int:
    return len(batch) * (max(lengths[index][0] for index in batch) + max(lengths[index][1] for index in batch))


def overhead(lengths: list[tuple[int, int]], settings: TrainingSettings) -> float:
    """Padded over real tokens of an epoch."""
    order, total, step = BucketBatchSampler(texts(lengths), settings), 0, 0
    seen = 0
    while seen < len(lengths):
        batch = order.batch_at(step)
        total, seen, step = total + padded(lengths, batch), seen + len(batch), step + 1
    return total / sum(map(sum, lengths))


def test_batches_are_alike_in_both_lengths() -> None:
    lengths = drawn(4000)
    shuffled = sum(padded(lengths, list(range(begin, begin + 16))) for begin in range(0, 4000, 16)) / sum(map(sum, lengths))
    assert shuffled > 1.8
    assert overhead(lengths, TrainingSettings(batch_size=16)) < 1.15


def test_batches_of_an_epoch_do_not_come_by_length() -> None:
    lengths = drawn(4000)
    order = BucketBatchSampler(texts(lengths), TrainingSettings(batch_size=16))
    first = [lengths[order.batch_at(step)[0]][1] for step in range(250)]
    assert 90 < sum(one < other for one, other in itertools.pairwise(first)) < 160


def test_any_step_can_be_asked_for_in_any_order() -> None:
    settings = TrainingSettings(batch_size=7, seed=3)
    examples = texts(drawn(50))
    whole = [BucketBatchSampler(examples, settings).batch_at(step) for step in range(30)]
    again = BucketBatchSampler(examples, settings)
    assert [again.batch_at(step) for step in (29, 3, 12)] == [whole[29], whole[3], whole[12]]
    assert whole[:8] != whole[8:16], "each epoch has an order of its own"
    other = BucketBatchSampler(examples, TrainingSettings(batch_size=7, seed=4))
    assert [other.batch_at(step) for step in range(30)] != whole


def test_a_part_comes_in_batches_of_its_own_and_the_whole_as_ever() -> None:
    examples, settings = texts(drawn(300)), TrainingSettings(batch_size=8)
    part = BucketBatchSampler(examples, settings, range(0, 300, 3))
    epoch = [index for step in range(13) for index in part.batch_at(step)]
    assert sorted(epoch) == list(range(0, 300, 3))
    whole, named = BucketBatchSampler(examples, settings), BucketBatchSampler(examples, settings, range(300))
    assert all(whole.batch_at(step) == named.batch_at(step) for step in range(40))


def test_other_targets_of_the_same_inputs_come_in_the_same_batches() -> None:
    lengths = drawn(300)
    other = texts([(source, 41 - target) for source, target in lengths])
    settings = TrainingSettings(batch_size=8)
    alone = [BucketBatchSampler(other, settings).batch_at(step) for step in range(20)]
    other.batched_like = texts(lengths)
    alike = [BucketBatchSampler(other, settings).batch_at(step) for step in range(20)]
    assert alike == [BucketBatchSampler(texts(lengths), settings).batch_at(step) for step in range(20)] != alone


TEXTS = TokenDataset(
    [[5, 6, END], [7, END], [8, 9, 4, 5, END], [6, END], [9, 9, END]],
    [[4, END], [3, 5, 6, 7, 8, END], [END], [2, END], [5, 5, 5, END]],
    0,
)


def test_shares_are_disjoint_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(2):
        in_process(monkeypatch, rank, 2)
        found += own_parts(list(range(11)), 2)
    assert sorted(index for part in found for index in part) == list(range(11))
    assert {len(part) for part in found} == {2, 3}


def in_process(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


def shares(monkeypatch: pytest.MonkeyPatch, indices: list[int], world: int, accumulation: int) -> list[Batch]:
    found = []
    for rank in range(world):
        in_process(monkeypatch, rank, world)
        mine = split_microbatches(TEXTS, indices, accumulation)
        assert len(mine) == accumulation
        found += mine
    in_process(monkeypatch, 0, 1)
    return found


@pytest.mark.parametrize(("world", "accumulation"), [(1, 2), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_the_parts_of_a_step_add_up_to_its_loss(monkeypatch: pytest.MonkeyPatch, world: int, accumulation: int) -> None:
    objective = Objective(toy_t5(3, 1, 2).eval(), TrainingSettings())
    whole = TEXTS.batch(range(5))
    counts = objective.counts([whole])
    parts = shares(monkeypatch, list(range(5)), world, accumulation)
    assert torch.equal(objective.counts(parts), counts)
    added = torch.stack([objective(part, counts) for part in parts]).detach().sum()
    torch.testing.assert_close(added, objective(whole, counts).detach())
    means = [objective(part, objective.counts([part])) for part in parts]
    assert abs(float(torch.stack(means).detach().mean() - added)) > 1e-3, "a mean of means is another loss"


def test_a_share_without_an_example_weighs_nothing_and_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    one, nothing = shares(monkeypatch, [2], 2, 1)
    assert one.labels.tolist() == [[END]]
    assert set(nothing.labels.flatten().tolist()) == {IGNORED}
    objective = Objective(toy_t5(3, 1, 2), TrainingSettings())
    loss = objective(nothing, objective.counts([one]))
    loss.backward()
    assert loss.item() == 0
    gradients = [weight.grad for weight in objective.parameters() if weight.grad is not None]
    assert gradients
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


def test_a_step_in_which_nothing_weighs_has_finite_gradients() -> None:
    batch = dataclasses.replace(TEXTS.batch([0]), weights=torch.zeros(1, 2))
    objective = Objective(toy_t5(3, 1, 2), TrainingSettings())
    loss = objective(batch, objective.counts([batch]))
    (loss * 8).backward()
    assert loss.item() == 0
    assert all(weight.grad.isfinite().all() for weight in objective.parameters() if weight.grad is not None)


PAIRS = [("one two", "two one"), ("one two three", "three two one"), ("two", "two"), ("three one", "one three one three")]
END = 1


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_jsonl([Example(source, (target,)) for source, target in PAIRS], path)
    return path


class Words:
    """A tokenizer that marks the beginning of each text and not its end, as Llama's does."""

    bos_token_id, eos_token_id, pad_token_id = 3, END, END

    def __init__(self, marks: bool = True) -> None:
        self.marks = marks

    def __call__(self, texts: list[str], max_length: int, truncation: bool) -> dict[str, list[list[int]]]:
        rows = [[self.bos_token_id] * self.marks + [4 + len(word) for word in text.split()] for text in texts]
        return {"input_ids": [row[:max_length] for row in rows]}


def test_a_row_is_the_source_and_its_target(file: Path) -> None:
    words = Words(marks=False)
    apart, joined = (JsonlDataset(file, words, TextSettings(), decoder_only=decoder_only) for decoder_only in (False, True))
    assert (apart.sources, apart.targets) == (joined.sources, joined.targets)
    batch = joined.batch([0, 1, 3])
    assert batch.source.shape == batch.mask.shape == batch.labels.shape
    for row, index in enumerate([0, 1, 3]):
        source, target = joined.sources[index], joined.targets[index]
        assert source[-1] == target[-1] == END
        length = len(source) + len(target)
        assert batch.source[row, :length].tolist() == source + target
        assert batch.mask[row].tolist() == [1] * length + [0] * (batch.mask.shape[1] - length)
        assert batch.labels[row, :length].tolist() == [IGNORED] * len(source) + target
        assert set(batch.labels[row, length:].tolist()) <= {IGNORED}


def test_a_source_is_closed_by_its_end_token_whatever_the_tokenizer_does() -> None:
    assert encode(Words(), ["a bb ccc", "a", ""], 4) == [[3, 5, 6, END], [3, 5, END], [3, END]]
    assert encode(Words(marks=False), ["a bb ccc dddd", "a bb ccc", ""], 4) == [[5, 6, 7, END], [5, 6, 7, END], [END]]


def test_the_beginning_is_marked_once(file: Path) -> None:
    joined, apart = (JsonlDataset(file, Words(), TextSettings(), decoder_only=decoder_only) for decoder_only in (True, False))
    assert all(row[0] == 3 and row.count(3) == 1 for row in joined.sources)
    assert not any(3 in row for row in joined.targets)
    assert [row[1:] for row in apart.targets] == joined.targets
