"""What the fused runtime records and replays, and where it keeps the rows of a batch."""

from __future__ import annotations

import torch

from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.cuda_graphs import rounded
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.runtimes.fused_stack import assign_slots
from tests.architectures import models
from tests.tape import TapeRecorder
from tests.toys import toy_sources
from tests.unit.decoding.runtimes.fused_decoders import fused


def test_few_recordings_serve_many_runs() -> None:
    recorder = TapeRecorder()
    model = models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    for source in toy_sources(10):
        starts = decoder.start(decoder.encode([source]))
        decoder.forward(starts)
        for token in range(2, 12):
            decoder.forward([[token]])
        decoder.forward([[5, 6, 7]])
    # One each for the encoder, one new token and three.
    assert recorder.recordings == 3
    assert recorder.replays == 130


def test_a_replaced_table_is_recorded_again() -> None:
    """A recording does not keep its inputs alive; on a GPU their memory could hold other tensors by then."""
    recorder, model = TapeRecorder(), models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    for length, recordings in ((5, 1), (60, 1), (70, 2), (5, 3), (6, 3)):
        decoder.encode([[3] * length])
        assert recorder.recordings == recordings


def test_results_outlive_the_next_run() -> None:
    decoder = fused(models("llama")[1], recorded=True)
    decoder.forward(decoder.start(decoder.encode(toy_sources(2))))
    first = decoder.forward([[4], [5]])
    before = first.logits.clone(), None if first.hidden is None else first.hidden.clone()
    decoder.forward([[6], [7]])
    assert torch.equal(first.logits, before[0])
    assert first.hidden is not None and before[1] is not None and torch.equal(first.hidden, before[1])


def test_slots_are_assigned_with_few_copies() -> None:
    assert assign_slots([0, 1, 2], 3) == ([0, 1, 2], [])
    assert assign_slots([2, 0], 4) == ([2, 0], [])
    assert assign_slots([1, 1, 0], 4) == ([1, 2, 0], [(1, 2)])
    assert assign_slots([3, 2], 2) == ([0, 1], [(3, 0), (2, 1)])
    assert assign_slots([3, 3, 0], 4) == ([3, 1, 0], [(3, 1)])
    assert assign_slots([5, 1, 5, 1], 4) == ([0, 1, 2, 3], [(5, 0), (5, 2), (1, 3)])
    assert [rounded(number) for number in (1, 2, 3, 5, 8, 33)] == [1, 2, 4, 8, 8, 64]
    assert [rounded(number, 64) for number in (0, 1, 64, 65, 129)] == [64, 64, 64, 128, 256]
