"""The memory that a step is said to need, against the peak of a process that takes one."""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings
from tasks.training.memory import text_cost
from tasks.training.settings import TrainingSettings

SHAPE = ModelSettings(d_model=256, d_ff=1024, d_kv=64, heads=4, encoder_layers=4, decoder_layers=4)
TEXTS, SOURCE, TARGET = 16, 128, 64
STEP = """
import json, re, sys, torch
from pathlib import Path
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings
from tasks.training.engine import make_optimizer
from tasks.training.settings import TrainingSettings
torch.set_num_threads(1)
shape, training, texts, source, target = json.loads(sys.argv[1])
model = initial_model(ModelSettings(**shape), 1000, 0, 1).train()
settings = TrainingSettings(**training)
if settings.activation_checkpointing:
    model.activation_checkpointing_enable()
optimizer = make_optimizer(model, settings)

def gradients(texts, source, target):
    ids = lambda length: torch.randint(2, 1000, (texts, length))
    if model.config.is_encoder_decoder:
        logits = model(input_ids=ids(source), decoder_input_ids=ids(target)).logits
    else:
        logits = model(input_ids=ids(source + target), logits_to_keep=target).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids(target).flatten()).backward()

def memory(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

gradients(1, 2, 2)  # loads what torch and transformers load late
optimizer.zero_grad()
before = memory("VmRSS") - 4 * sum(one.numel() for one in model.parameters())
for _ in range(2):
    gradients(texts, source, target)
    optimizer.step()
    optimizer.zero_grad()
print(memory("VmHWM") - before)
"""
"""The peak is that of /proc: `ru_maxrss` begins at the peak of the process that started this one."""


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("architecture", ["t5", "llama", "gpt2"])
def test_the_memory_of_a_step_is_its_peak(architecture: str, optimizer: str, checkpointing: bool) -> None:
    """Within a tenth, with activation checkpointing a quarter, where malloc takes and returns every larger piece at once."""
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    training: dict[str, Any] = {"optimizer": optimizer, "activation_checkpointing": checkpointing}
    said = json.dumps([dataclasses.asdict(shape), training, TEXTS, SOURCE, TARGET])
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_MMAP_MAX_": "1000000"}
    done = subprocess.run([sys.executable, "-c", STEP, said], capture_output=True, text=True, check=True, env=environment)
    cost = text_cost(initial_model(shape, 1000, 0, 1).config, SOURCE, TARGET)
    estimated = cost.step_bytes(TrainingSettings(**training), TEXTS)
    assert estimated == pytest.approx(int(done.stdout), rel=0.25 if checkpointing else 0.1)


def test_a_forward_pass_is_counted() -> None:
    """Of a decoder-only model: two operations for each weight that a token meets, and those of attention."""
    shape = ModelSettings(architecture="gpt2", d_model=64, d_ff=128, heads=2, decoder_layers=3)
    model = initial_model(shape, 500, 0, 1)
    cost = text_cost(model.config, 6, 4)
    layers = 3 * (4 * 64 * 64 + 2 * 64 * 128)  # attention's four products of the width, feed-forward's two
    attention = 3 * 2 * 2 * 10 * 10 * 64
    assert cost.operations == 2 * (10 * layers + 4 * 64 * 500) + attention
    assert cost.parameters == sum(one.numel() for one in model.parameters())
    assert cost.recomputed < cost.activations
    assert all(one.device == torch.device("cpu") for one in model.parameters())


def test_what_trains_less_takes_less() -> None:
    cost = text_cost(initial_model(SHAPE, 1000, 0, 1).config, SOURCE, TARGET)
    taken = cost.step_bytes(TrainingSettings(steps=0), 8)
    assert taken == 4 * cost.parameters
    frozen = cost.step_bytes(TrainingSettings(optimizer="adamw"), 8, trained=0)
    assert cost.step_bytes(TrainingSettings(optimizer="adamw"), 8) - frozen == 3 * 4 * cost.parameters
    half = cost.step_bytes(TrainingSettings(), 8, half=True)
    assert cost.step_bytes(TrainingSettings(), 8) - half == 4 * cost.activations - 2 * cost.parameters
