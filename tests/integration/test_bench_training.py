"""Both sides of the training bench on a tiny model: they take turns in one process, learn, and count the same text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bench.training.recipes import Opened, endless
from tasks.bench.training.sides import Ours, Side, Theirs, dataset_of
from tasks.bench.training.turns import Turns
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.data import TextSet
from tasks.training.settings import TrainingSettings

SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, seed=3)
EPOCH, BATCH = 40, 8


def opened() -> Opened:
    chance = random.Random(0)
    texts = [[*chance.choices(range(3, 40), k=chance.randint(2, 12)), 1] for _ in range(EPOCH)]
    words = ("".join(chance.choices("abcdefgh", k=5)) for _ in range(400))
    tokenizer = train_tokenizer(words, TokenizerSettings(vocabulary=64))
    settings = TrainingSettings(relative_rate=True, learning_rate=3e-2, batch_size=BATCH)
    examples = TextSet(texts, [[*reversed(text[:-1]), 1] for text in texts], 0)
    return Opened(
        initial_model(SHAPE, 64, pad=0, end=1), tokenizer, examples, endless(settings, "adafactor"), torch.device("cpu")
    )


def sides(folder: Path) -> dict[str, tuple[Opened, Side]]:
    one, other = opened(), opened()
    return {
        "trainer": (one, Theirs(one, folder / "trainer", dataset_of(one.examples, "target"))),
        "ours": (other, Ours(other, folder / "ours")),
    }


def weights(opened: Opened) -> list[Any]:
    return [weight.detach().clone() for weight in opened.model.parameters()]


def test_both_learn_whole_epochs_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        # An engine of an earlier test says so, and Trainer would take itself for one of several processes.
        monkeypatch.delenv(name, raising=False)
    found = sides(tmp_path)
    turns = {name: Turns(side.loop) for name, (_, side) in found.items()}
    steps = EPOCH // BATCH
    for _ in range(8):
        for name, turn in turns.items():
            others = [weights(one) for other, (one, _) in found.items() if other != name]
            turn.advance(steps)
            after = [weights(one) for other, (one, _) in found.items() if other != name]
            assert all(torch.equal(a, b) for one, two in zip(others, after, strict=True) for a, b in zip(one, two, strict=True))
    whole = sum(map(len, found["ours"][0].examples.sources)) + sum(map(len, found["ours"][0].examples.targets))
    for name, (_, side) in found.items():
        assert side.learned.tokens == 8 * whole, name
        first, *_, last = side.learned.losses
        assert last < first - 0.3, name
    for turn in turns.values():
        turn.stop()
