"""Text generated during training: in which steps, in which process, by which weights, and what outlives a kill."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.alignment.rollouts import OnPolicySource, RolloutGenerator, interleaved, top_k_rule
from tasks.alignment.settings import AlignSettings
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import CORRECTED, Generation
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings, fixed_window
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoders
from tasks.training.data import IGNORED, Batch, BucketBatchSampler, DatasetSource, TokenDataset
from tests.distributions import (
    DRAWS,
    FALSE_ALARM,
    LARGE,
    SAMPLINGS,
    SMALL,
    SOURCE,
    SequenceDistribution,
    dist,
    model_distribution,
    p_value,
    scores,
    sequence_distribution,
)
from tests.toys import END, START, VOCABULARY, Prefix, prefix_pair, toy_sources, toy_t5

EXAMPLES = TokenDataset([[10 + index, END] for index in range(9)], [[20, 21, END]] * 9, 0)


class Scribe:
    """Writes each text's source and number; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Rows, list[int], int]] = []

    def __call__(self, sources: Rows, numbers: Sequence[int], seed: int) -> Rows:
        self.asked.append((sources, list(numbers), seed))
        return [[source[0], 100 + number] for source, number in zip(sources, numbers, strict=True)]


def source_of(scribe: Scribe, folder: Path, **settings: Any) -> tuple[OnPolicySource, AlignSettings]:
    chosen: dict[str, Any] = {"on_policy": 1.0, "write_every": 4, "batch_size": 4, "steps": 40, **settings}
    recipe = AlignSettings(loss="forward_kl", **chosen)
    return OnPolicySource(DatasetSource(EXAMPLES, recipe), EXAMPLES, recipe, scribe, folder), recipe


def labels(parts: list[Batch]) -> list[list[int]]:
    return [[token for token in row if token != IGNORED] for part in parts for row in part.labels.tolist()]


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_a_share_of_the_steps_is_on_policy_and_the_same_for_a_seed(share: float, tmp_path: Path) -> None:
    def chosen(share: float, seed: int) -> list[bool]:
        source, _ = source_of(Scribe(), tmp_path, steps=2000, on_policy=share, seed=seed)
        return [source.is_on_policy(step) for step in reversed(range(2000))][::-1]

    found = chosen(share, 4)
    assert sum(found) / 2000 == pytest.approx(share, abs=0.04)
    assert chosen(share, 4) == found != chosen(share, 5)
    # A larger share holds the steps of a smaller one.
    assert all(more for more, less in zip(chosen(share + 0.1, 4), found, strict=True) if less)


def test_a_window_contains_the_on_policy_steps(tmp_path: Path) -> None:
    mixed, _ = source_of(Scribe(), tmp_path, steps=44, on_policy=0.5, write_every=10)
    steps = [step for step in range(44) if mixed.is_on_policy(step)]
    windows = {tuple(mixed.window(step)) for step in steps}
    assert sorted(step for window in windows for step in window) == steps
    assert all(len({step // 10 for step in window}) == 1 for window in windows)
    assert len(windows) == 5


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
    assert [seed for _, _, seed in scribe.asked] == [0, 4], "each window is written once, with its own draws"


def test_calibration_steps_write_nothing(tmp_path: Path) -> None:
    scribe = Scribe()
    source, recipe = source_of(scribe, tmp_path, on_policy=0.4)
    order, plain = BucketBatchSampler(EXAMPLES, recipe), DatasetSource(EXAMPLES, recipe)
    written = [step for step in range(40) if source.is_on_policy(step)]
    for step in range(40):
        found = labels(source.microbatches(step))
        assert (found == labels(plain.microbatches(step))) == (step not in written)
    assert sum(len(numbers) for _, numbers, _ in scribe.asked) == sum(len(order.batch_at(step)) for step in written)


def test_a_window_written_before_a_kill_is_read_again(tmp_path: Path) -> None:
    first, _ = source_of(Scribe(), tmp_path)
    before = [labels(first.microbatches(step)) for step in range(4)]
    again = Scribe()
    resumed, _ = source_of(again, tmp_path)
    assert [labels(resumed.microbatches(step)) for step in (2, 3)] == before[2:]
    assert not again.asked
    resumed.microbatches(4)
    assert len(again.asked) == 1


@pytest.mark.parametrize("torn", ["", "[]", "[[10,", None], ids=["empty", "other form", "cut", "one digit changed"])
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


@pytest.mark.parametrize("accumulation", [1, 3])
def test_processes_write_what_one_alone_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accumulation: int) -> None:
    def written(rank: int, world: int) -> list[list[list[int]]]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        scribe = Scribe()
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


LIMIT = 12
SOURCES = toy_sources(70, seed=2)
NUMBERS = range(100, 170)


def generated(drafter: Any, large: Any = None, seed: int = 7, **settings: Any) -> Rows:
    recipe = AlignSettings(loss="forward_kl", **settings)
    return RolloutGenerator(drafter, large, VOCABULARY, LIMIT, recipe).generate(SOURCES, NUMBERS, seed)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_the_methods(temperature: float) -> None:
    small, large = toy_t5(1, 1, 1), toy_t5(2, 1, 2)
    request = Request(LIMIT, SamplingSettings(temperature=temperature), 7)
    both = open_decoders(small, large, VOCABULARY)
    alone = decode("vanilla_small", VanillaSettings(), both, SOURCES, request, NUMBERS)
    assert generated(small, writing_temperature=temperature) == [one.tokens for one in alone]
    mixed = interleaved(both, request, 2).run(SOURCES, NUMBERS, LIMIT)
    chosen: dict[str, Any] = {"writer": "interleaved", "interleave_top_k": 2, "writing_temperature": temperature}
    assert generated(small, large, **chosen) == [one.tokens for one in mixed]
    assert any(CORRECTED in one.proposers for one in mixed)


def test_a_text_does_not_depend_on_its_batch() -> None:
    ours = RolloutGenerator(toy_t5(1, 1, 1), toy_t5(2, 1, 2), VOCABULARY, LIMIT, AlignSettings(loss="forward_kl"))
    together = ours.generate(SOURCES, NUMBERS, 7)
    assert ours.generate(SOURCES[1::2], NUMBERS[1::2], 7) == together[1::2]
    assert ours.generate(SOURCES[:20], NUMBERS[:20], 8) != together[:20]


def test_the_writer_uses_the_current_weights_of_the_drafter() -> None:
    small = toy_t5(1, 1, 1)
    ours = RolloutGenerator(small, toy_t5(2, 1, 2), VOCABULARY, LIMIT, AlignSettings(writing_temperature=0.0))
    before = ours.generate(SOURCES, NUMBERS, 7)
    with torch.no_grad():
        small.lm_head.weight.copy_(small.lm_head.weight.roll(1, 0))
    after = ours.generate(SOURCES, NUMBERS, 7)
    assert after != before
    assert after == generated(copy.deepcopy(small), writing_temperature=0.0)


def test_writing_leaves_dropout_and_its_draws_alone() -> None:
    small = toy_t5(1, 1, 1)
    for module in small.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    state = torch.get_rng_state()
    still = generated(small)
    assert not small.training
    small.train()
    assert generated(small) == still
    assert all(module.training for module in small.modules())
    assert torch.equal(torch.get_rng_state(), state)


PLAIN = SAMPLINGS["plain"]
TOKENS = 8


def interleaved_distribution(top_k: int, sampling: SamplingSettings, limit: int) -> SequenceDistribution:
    """Each token q's where it is among p's top tokens, and p's for the rest of q."""

    def shares(text: Prefix) -> np.ndarray:
        q, p = dist(SMALL, text, sampling), dist(LARGE, text, sampling)
        likely = np.isin(np.arange(TOKENS), np.argsort(-scores(LARGE, text))[:top_k])
        kept = np.where(likely, q, 0.0)
        return np.asarray(kept + p * (1 - kept.sum()))

    return sequence_distribution(shares, limit)


def written(top_k: int, sampling: SamplingSettings, limit: int, draws: int = DRAWS) -> list[Generation]:
    method = interleaved(prefix_pair(SMALL, LARGE), Request(limit, sampling, seed=3), top_k)
    return method.run([list(SOURCE)] * draws, range(draws), limit)


@pytest.mark.parametrize(
    ("top_k", "sampling"),
    [(1, SamplingSettings(temperature=0.7)), pytest.param(3, PLAIN, marks=pytest.mark.slow)],
    ids=["one, cool", "three, plain"],
)
def test_interleaved_texts_follow_their_distribution(top_k: int, sampling: SamplingSettings) -> None:
    texts = written(top_k, sampling, 3)
    assert p_value(texts, interleaved_distribution(top_k, sampling, 3)) > FALSE_ALARM
    assert p_value(texts, model_distribution(SMALL, sampling, 3)) < FALSE_ALARM
    assert p_value(texts, model_distribution(LARGE, sampling, 3)) < FALSE_ALARM


def test_texts_longer_than_a_draft_follow_the_law_too() -> None:
    """After a draft that is kept whole the next one begins, with no token of p's between."""
    sampling = SamplingSettings(temperature=0.7)
    both, drafts = prefix_pair(SMALL, LARGE), SpeculativeSettings(draft_length=1)
    method = fixed_window(both, drafts, top_k_rule(3), Request(3, sampling, 5))
    texts = method.run([list(SOURCE)] * DRAWS, range(DRAWS), 3)
    assert p_value(texts, interleaved_distribution(3, sampling, 3)) > FALSE_ALARM


def test_replaced_tokens_are_marked_and_others_are_among_the_top() -> None:
    texts = written(2, PLAIN, 3, draws=200)
    assert {place for one in texts for place, who in enumerate(one.proposers) if who == CORRECTED} == {0, 1, 2}
    for one in texts:
        for place, (token, who) in enumerate(zip(one.tokens, one.proposers, strict=True)):
            top = np.argsort(-scores(LARGE, (START, *one.tokens[:place])))[:2]
            assert who == CORRECTED or token in top


def test_with_the_whole_vocabulary_nothing_is_replaced() -> None:
    assert not any(CORRECTED in one.proposers for top_k in (TOKENS, TOKENS + 9) for one in written(top_k, PLAIN, 3, draws=100))


def test_greedy_with_one_acceptable_token_is_the_large_model_s_text() -> None:
    both, request = prefix_pair(SMALL, LARGE), Request(12)
    [one] = interleaved(both, request, 1).run([list(SOURCE)], [0], 12)
    [expected] = decode("vanilla_large", VanillaSettings(), both, [list(SOURCE)], request)
    assert one.tokens == expected.tokens
