"""Which examples a step takes: every example once an epoch, alike in length, under the budget, the same after a resume."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.training.batching import BucketBatchSampler, partition
from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings


def texts(lengths: list[tuple[int, int]]) -> TokenDataset:
    return TokenDataset([[5] * source for source, _ in lengths], [[6] * target for _, target in lengths], 0)


def drawn(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randint(1, longest), rng.randint(1, longest)) for _ in range(count)]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([0, 1, 50, 200]),
)
def test_an_epoch_has_every_example_once(lengths: list[tuple[int, int]], size: int, budget: int) -> None:
    order = BucketBatchSampler(texts(lengths), TrainingSettings(batch_size=size, batch_tokens=budget))
    seen: list[int] = []
    step = 0
    while len(seen) < len(lengths):
        seen += order.batch_at(step)
        step += 1
    assert sorted(seen) == list(range(len(lengths)))


def padded(lengths: list[tuple[int, int]], batch: list[int]) -> int:
    return len(batch) * (max(lengths[index][0] for index in batch) + max(lengths[index][1] for index in batch))


def test_a_budget_counts_padding_and_only_an_example_alone_may_break_it() -> None:
    lengths = [*drawn(300), (90, 80)]
    order = BucketBatchSampler(texts(lengths), TrainingSettings(batch_tokens=120))
    batches = [order.batch_at(step) for step in range(200)]
    assert all(padded(lengths, batch) <= 120 or len(batch) == 1 for batch in batches)
    assert [300] in batches
    assert max(map(len, batches)) > 4


def overhead(lengths: list[tuple[int, int]], settings: TrainingSettings) -> float:
    """Padded over real tokens of an epoch."""
    order, total, step = BucketBatchSampler(texts(lengths), settings), 0, 0
    seen = 0
    while seen < len(lengths):
        batch = order.batch_at(step)
        total, seen, step = total + padded(lengths, batch), seen + len(batch), step + 1
    return total / sum(map(sum, lengths))


@pytest.mark.parametrize(
    "settings", [TrainingSettings(batch_size=16), TrainingSettings(batch_tokens=700)], ids=["size", "budget"]
)
def test_batches_are_alike_in_both_lengths(settings: TrainingSettings) -> None:
    lengths = drawn(4000)
    shuffled = sum(padded(lengths, list(range(begin, begin + 16))) for begin in range(0, 4000, 16)) / sum(map(sum, lengths))
    assert shuffled > 1.8
    assert overhead(lengths, settings) < 1.15


def test_what_varies_most_is_sorted_first() -> None:
    rng = random.Random(0)
    lengths = [(rng.randint(20, 400), rng.randint(10, 50)) for _ in range(2000)]
    assert overhead(lengths, TrainingSettings(batch_size=16)) < 1.2


def test_batches_of_an_epoch_do_not_come_by_length() -> None:
    lengths = drawn(4000)
    order = BucketBatchSampler(texts(lengths), TrainingSettings(batch_size=16))
    first = [lengths[order.batch_at(step)[0]][1] for step in range(250)]
    rises = sum(one < other for one, other in itertools.pairwise(first))
    assert 90 < rises < 160


def test_any_step_can_be_asked_for_in_any_order() -> None:
    settings = TrainingSettings(batch_size=7, seed=3)
    examples = texts(drawn(50))
    whole = [BucketBatchSampler(examples, settings).batch_at(step) for step in range(30)]
    again = BucketBatchSampler(examples, settings)
    assert [again.batch_at(step) for step in (29, 3, 12)] == [whole[29], whole[3], whole[12]]
    assert whole[:8] != whole[8:16], "each epoch has an order of its own"
    other = BucketBatchSampler(examples, TrainingSettings(batch_size=7, seed=4))
    assert [other.batch_at(step) for step in range(30)] != whole


def test_shares_are_disjoint_and_whole() -> None:
    batch = list(range(11))
    shares = [partition(batch, part, 4) for part in range(4)]
    assert sorted(index for part in shares for index in part) == batch
    assert {len(part) for part in shares} == {2, 3}


def test_other_targets_of_the_same_inputs_come_in_the_same_batches() -> None:
    lengths = drawn(300)
    other = texts([(source, 41 - target) for source, target in lengths])
    settings = TrainingSettings(batch_size=8)
    alone = [BucketBatchSampler(other, settings).batch_at(step) for step in range(20)]
    other.batched_like = texts(lengths)
    alike = [BucketBatchSampler(other, settings).batch_at(step) for step in range(20)]
    assert alike == [BucketBatchSampler(texts(lengths), settings).batch_at(step) for step in range(20)] != alone
