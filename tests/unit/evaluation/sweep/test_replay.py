"""Outputs of a split, and points replayed from cached predictions: each equals its decoding, and a broken one fails alone."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tasks.corpora.example import Example
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, SpeculativeCascadeSettings, TokenCascadeSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import GREEDY_ONLY
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import GridReplay, Outputs, ReplayedGrid, Split, collect_outputs, duplicates, replay_grid
from tasks.models.settings import TextSettings
from tests.architectures import pair_of
from tests.ticking import LIMIT, Clock, TickingDecoder, Words, broken_pair, evaluator_of, split_of, sweep_settings, ticking_pair

EXAMPLES = [Example(f"w{number + 2} w3", ("w4",)) for number in range(9)]


def drawn_split(name: str = "validation", seed: int = 0, timed: int = 4) -> Split:
    return Split(name, EXAMPLES, Words(), TextSettings(max_source_tokens=3), sweep_settings(latency_examples=timed, seed=seed))


def test_the_timed_examples_are_drawn_by_seed_and_split() -> None:
    assert drawn_split().timed == drawn_split().timed
    assert len(set(drawn_split().timed)) == 4
    assert set(drawn_split().timed) <= set(range(len(EXAMPLES)))
    assert len({tuple(drawn_split(name, seed).timed) for name in ("validation", "test") for seed in (0, 1)}) == 4


TEXT = Generation([5, 6, 1], "ssl", Counts(tokens=3, small_steps=2, large_calls=1, kept=Counter({(2, 2): 1})))


def outputs(generations: Iterable[Generation], split: Split | None = None) -> Outputs:
    return collect_outputs("decoded", generations, split or drawn_split())


def test_outputs_hold_texts_total_counts_and_counts_of_timed_examples() -> None:
    texts = [dataclasses.replace(TEXT, tokens=[calls + 2, 1], counts=Counts(tokens=2, large_calls=calls)) for calls in range(9)]
    split = drawn_split()
    found = outputs(texts, split)
    assert found.how == "decoded"
    assert found.tokens == [(number + 2, 1) for number in range(9)]
    assert (found.counts.tokens, found.counts.large_calls) == (18, 36)
    assert found.by_example == {number: Counts(tokens=2, large_calls=number) for number in split.timed}


def test_equal_texts_by_equal_runs_are_one_behaviour() -> None:
    again = dataclasses.replace(TEXT, tokens=list(TEXT.tokens), counts=TEXT.counts + Counts())
    assert outputs([TEXT] * 9).behaviour == outputs([again] * 9).behaviour


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(TEXT, tokens=[5, 7, 1]),
        dataclasses.replace(TEXT, proposers="sll"),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(small_steps=1)),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(large_calls=1)),
        dataclasses.replace(TEXT, counts=TEXT.counts + Counts(fallbacks=1)),
        dataclasses.replace(TEXT, counts=Counts(tokens=3, small_steps=2, large_calls=1, kept=Counter({(3, 2): 1}))),
    ],
    ids=["tokens", "proposers", "small steps", "large calls", "fallbacks", "drafts"],
)
def test_one_differing_example_is_another_behaviour(other: Generation) -> None:
    changed = [TEXT] * 8 + [other]
    assert outputs(changed).behaviour != outputs([TEXT] * 9).behaviour


def test_the_order_of_examples_is_part_of_the_behaviour() -> None:
    other = dataclasses.replace(TEXT, tokens=[7, 1])
    assert outputs([TEXT, other]).behaviour != outputs([other, TEXT]).behaviour


REQUEST, DRAWN = Request(LIMIT), SamplingSettings(temperature=1.0)
SWEEP = sweep_settings()
GRID = [
    SweepPoint("vanilla_large", VanillaSettings()),
    SweepPoint("vanilla_small", VanillaSettings()),
    *(
        SweepPoint("bild", BildSettings(fallback_threshold=fallback, rollback_threshold=rollback))
        for fallback in (0.2, 0.5, 0.8)
        for rollback in (0.5, 2.0, math.inf)
    ),
    *(SweepPoint("speculative", SpeculativeSettings(draft_length=length)) for length in (1, 2, 4, 20, 30)),
    SweepPoint("speculative_cascade", SpeculativeCascadeSettings(rule="opt", deferral_cost=0.2)),
    SweepPoint("token_cascade", TokenCascadeSettings(deferral_cost=0.4)),
    SweepPoint("sequence_cascade", SequenceCascadeSettings(deferral_cost=0.4)),
]
BEAMS, LAYERS = SweepPoint("beam_large", BeamSettings(beams=2)), SweepPoint("calm", CalmSettings())


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Two small T5s."""
    return pair_of("t5")


@pytest.fixture(scope="module")
def split(pair: Pair) -> Split:
    return split_of(pair, SWEEP)


def replayed(points: list[SweepPoint], pair: Pair, split: Split, folder: Path, request: Request = REQUEST) -> ReplayedGrid:
    return replay_grid(GridReplay(points, request, split, folder), pair, "test")


def test_every_point_is_replayed_as_it_is_decoded(pair: Pair, split: Split, tmp_path: Path) -> None:
    found = replayed(GRID, pair, split, tmp_path)
    evaluator = evaluator_of(pair, SWEEP)
    assert found.errors == {}
    assert list(found.outputs) == list(range(len(GRID)))
    for index, point in enumerate(GRID):
        decoded = evaluator.decoded(point, split)
        assert found.outputs[index] == dataclasses.replace(decoded, how="replayed")
    assert len({outputs.behaviour for outputs in found.outputs.values()}) > 6


def test_points_that_cannot_be_replayed_are_left_out(pair: Pair, split: Split, tmp_path: Path) -> None:
    found = replayed([*GRID[:7], BEAMS, LAYERS, *GRID[7:]], pair, split, tmp_path)
    assert found.errors == {}
    assert list(found.outputs) == [number for number in range(len(GRID) + 2) if number not in (7, 8)]


def test_drawn_points_are_decoded_in_batches_as_alone(pair: Pair, split: Split, tmp_path: Path) -> None:
    sweep = sweep_settings(sampling=DRAWN, samples=2, quality_batch=5)
    request, points = Request(LIMIT, DRAWN, 3), [point for point in GRID if point.method not in GREEDY_ONLY]
    grid = GridReplay(points, request, split, tmp_path, decoded=True, samples=2, batch=5)
    found, evaluator = replay_grid(grid, pair, "test"), evaluator_of(pair, sweep, request)
    assert found.errors == {} and list(found.outputs) == list(range(len(points)))
    for index, point in enumerate(points):
        assert found.outputs[index] == evaluator.decoded(point, split)
    assert len(found.outputs[0].further) == len(split.examples)


def test_a_larger_grid_computes_only_new_predictions_and_a_resumed_replay_runs_no_model(tmp_path: Path) -> None:
    clock = Clock()
    pair = ticking_pair(clock)
    split = split_of(pair, SWEEP)

    def runs_of(points: list[SweepPoint], folder: str) -> tuple[int, ReplayedGrid]:
        """Runs of both models during a replay, and its result."""
        models = [model for model in (pair.small, pair.large) if isinstance(model, TickingDecoder)]
        before = sum(model.ran for model in models)
        found = replayed(points, pair, split, tmp_path / folder)
        return sum(model.ran for model in models) - before, found

    alone, wanted = runs_of(GRID, "alone")
    part, _ = runs_of(GRID[:8], "grown")
    rest, found = runs_of(GRID, "grown")
    assert found == wanted
    assert 0 < part < alone
    assert rest < alone / 2
    begun = clock()
    assert runs_of(GRID, "grown") == (0, wanted)
    assert clock() == begun, "no source is encoded either"


def test_predictions_of_two_splits_do_not_mix(tmp_path: Path) -> None:
    clock = Clock()
    pair = ticking_pair(clock)
    splits = [split_of(pair, SWEEP, name) for name in ("validation", "test")]
    found = [replayed(GRID[:4], pair, split, tmp_path) for split in splits]
    for split, one in zip(splits, found, strict=True):
        decoded = [evaluator_of(pair, SWEEP).decoded(point, split).tokens for point in GRID[:4]]
        assert [outputs.tokens for outputs in one.outputs.values()] == decoded
    begun = clock()
    assert [replayed(GRID[:4], pair, split, tmp_path) for split in splits] == found
    assert clock() == begun, "no model was run"


@pytest.mark.parametrize(("side", "example", "length"), [("small", 0, 2), ("large", 7, 2)])
def test_broken_logits_cost_the_points_that_meet_them_and_no_more(tmp_path: Path, side: str, example: int, length: int) -> None:
    pair = broken_pair(side, example, length)
    split = split_of(pair, SWEEP)
    evaluator, wanted, broken = evaluator_of(pair, dataclasses.replace(SWEEP, quality_batch=1)), {}, set()
    for index, point in enumerate(GRID):
        try:
            wanted[index] = dataclasses.replace(evaluator.decoded(point, split), how="replayed")
        except RuntimeError:
            broken.add(index)
    for _ in range(2):  # the second time from the cache
        found = replayed(GRID, pair, split, tmp_path)
        assert found.outputs == wanted
        assert found.errors.keys() == broken
        for error in found.errors.values():
            assert error.startswith(f"BrokenLogitsError: the {side} model gave NaN, +infinity or no finite logit at step")
    assert broken
    assert wanted


def test_duplicates_are_points_of_one_method_with_equal_behaviour(pair: Pair, split: Split, tmp_path: Path) -> None:
    points = [*GRID, SweepPoint("speculative_cascade", SpeculativeCascadeSettings(rule="chow", deferral_cost=0.0)), *GRID[-1:]]
    outputs = replayed(points, pair, split, tmp_path).outputs
    found = duplicates(outputs, points)

    def alike(one: int, other: int) -> bool:
        first, second = outputs[one], outputs[other]
        same = (first.tokens, first.counts, first.by_example) == (second.tokens, second.counts, second.by_example)
        return same and points[one].method == points[other].method

    for index in outputs:
        earlier = [other for other in range(index) if alike(index, other)]
        assert found.get(index) == (earlier[0] if earlier else None)
    lengths = {point.settings.draft_length: index for index, point in enumerate(GRID) if point.method == "speculative"}
    assert found[lengths[30]] == lengths[20]
    assert lengths[20] not in found


def test_points_of_two_methods_are_no_duplicates() -> None:
    alike = Outputs("replayed", behaviour=7)
    bild, speculative = GRID[2], GRID[-5]
    assert bild.method != speculative.method
    assert duplicates(dict.fromkeys((1, 2, 4, 5), alike), [bild, bild, speculative] * 2) == {4: 1, 5: 2}
