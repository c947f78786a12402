"""Fused decoders of toy models for the tests of the fused runtime, with recorded CUDA graphs imitated on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Step
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.fused import EACH_STEP, FusedDecoder, SyncPolicy
from tests.tape import TapeRecorder

NAMES = ("t5", "mt5", "llama", "gpt2")
every = pytest.mark.parametrize("name", NAMES)
recorded_or_not = pytest.mark.parametrize("recorded", [False, True], ids=["unrecorded", "recorded"])
# Each model once, two of them recorded: recordings do not depend on the architecture.
name_and_recorded = pytest.mark.parametrize(
    ("name", "recorded"), [("t5", True), ("mt5", False), ("llama", False), ("gpt2", True)]
)


def fused(
    model: Any, *, recorded: bool = False, sync_policy: SyncPolicy = EACH_STEP, vocabulary: int | None = None
) -> FusedDecoder:
    blueprint = blueprint_of(model)
    assert blueprint is not None
    return FusedDecoder(
        model, blueprint, "toy", vocabulary, recorder=TapeRecorder() if recorded else None, sync_policy=sync_policy
    )


def assert_same(ours: Step, theirs: Step) -> None:
    assert ours.lengths == theirs.lengths
    assert ours.argmax is not None
    assert ours.hidden is not None and theirs.hidden is not None
    for row, count in enumerate(theirs.lengths):
        torch.testing.assert_close(ours.logits[row, :count], theirs.logits[row, :count], atol=1e-4, rtol=0)
        torch.testing.assert_close(ours.hidden[row, :count], theirs.hidden[row, :count], atol=1e-4, rtol=0)
        assert ours.argmax[row] == ours.logits[row, :count].argmax(-1).tolist()
