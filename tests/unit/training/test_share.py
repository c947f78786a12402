"""The estimate of what a training takes, against the memory of real steps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tasks import cgroups
from tasks.locks import Share
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TextSettings
from tasks.training import share
from tasks.training.context import TrainingContext
from tasks.training.settings import TrainingSettings

TEXT = TextSettings(max_source_tokens=128, max_target_tokens=64)
SHAPE = ModelSettings(d_model=256, d_ff=1024, d_kv=64, heads=4, encoder_layers=4, decoder_layers=4)
TINY = ModelSettings(d_model=32, d_ff=64, d_kv=16, heads=2, encoder_layers=1, decoder_layers=1)
TRAINING = TrainingSettings(optimizer="adamw", batch_size=32)


def need(training: TrainingSettings, shape: ModelSettings = TINY, teachers: tuple[Path, ...] = ()) -> Share:
    job = SimpleNamespace(training=training, text=TEXT, teachers=teachers)
    opened = SimpleNamespace(model=initial_model(shape, 1000, 0, 1), job=job, device=torch.device("cpu"))
    return share.training_share(cast(TrainingContext, opened))


def test_the_memory_grows_with_what_needs_it(tmp_path: Path) -> None:
    usual = need(TRAINING).memory
    assert need(replace(TRAINING, batch_size=64)).memory > 1.5 * (usual - share._LOADED)
    assert need(replace(TRAINING, accumulation=4)).memory < usual
    assert need(replace(TRAINING, optimizer="adafactor")).memory < usual
    assert need(replace(TRAINING, batch_size=1, batch_tokens=32 * 192)).memory == usual
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert need(TRAINING, teachers=(tmp_path,)).memory == usual + 1000


def test_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(cgroups, "core_limit", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert (need(TRAINING).threads, share.room_of(torch.device("cpu")).threads) == (4, 6)
    monkeypatch.setattr(cgroups, "core_limit", lambda: 2.5)
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 1000)
    assert need(TRAINING).threads == 2
    assert share.room_of(torch.device("cpu")) == Share(2, 900)


STEP = """
import resource, sys, torch
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings
torch.set_num_threads(1)
model = initial_model(ModelSettings(**eval(sys.argv[1])), 1000, 0, 1).train()
optimizer = torch.optim.AdamW(model.parameters())
ids = lambda length: torch.randint(2, 1000, (32, length))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    model(input_ids=ids(128), labels=ids(64)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
def test_the_estimate_is_near_the_peak_of_two_steps() -> None:
    """Not too low by more than a tenth, which a machine keeps free, and less than twice as high."""
    import dataclasses
    import subprocess
    import sys

    shape: Any = {field.name: getattr(SHAPE, field.name) for field in dataclasses.fields(SHAPE)}
    done = subprocess.run([sys.executable, "-c", STEP, repr(shape)], capture_output=True, text=True, check=True)
    weights = 4 * sum(one.numel() for one in initial_model(SHAPE, 1000, 0, 1).parameters())
    measured, estimated = int(done.stdout), need(TRAINING, SHAPE).memory - share._LOADED - weights
    assert 0.9 * measured < estimated < 2 * measured, (measured, estimated)
