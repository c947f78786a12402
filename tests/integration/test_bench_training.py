"""Both contenders of the training bench on a tiny model: they alternate in one process, learn, and count the same text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bench.training.contenders import Contender, DraftlineContender, TrainerContender, dataset_of
from tasks.bench.training.pausable import PausableLoop
from tasks.bench.training.recipes import LoadedRecipe, endless
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings

SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, seed=3)
EPOCH, BATCH = 40, 8


def opened() -> LoadedRecipe:
    rng = random.Random(0)
    texts = [[*rng.choices(range(3, 40), k=rng.randint(2, 12)), 1] for _ in range(EPOCH)]
    words = ("".join(rng.choices("abcdefgh", k=5)) for _ in range(400))
    tokenizer = train_tokenizer(words, TokenizerSettings(vocabulary=64))
    settings = TrainingSettings(relative_rate=True, learning_rate=3e-2, batch_size=BATCH)
    examples = TokenDataset(texts, [[*reversed(text[:-1]), 1] for text in texts], 0)
    return LoadedRecipe(
        initial_model(SHAPE, 64, pad=0, end=1), tokenizer, examples, endless(settings, "adafactor"), torch.device("cpu")
    )


def contenders(folder: Path) -> dict[str, tuple[LoadedRecipe, Contender]]:
    one, other = opened(), opened()
    return {
        "trainer": (one, TrainerContender(one, folder / "trainer", dataset_of(one.examples, "target"))),
        "ours": (other, DraftlineContender(other, folder / "ours")),
    }


def weights(opened: LoadedRecipe) -> list[Any]:
    return [weight.detach().clone() for weight in opened.model.parameters()]


@pytest.mark.slow
def test_both_contenders_learn_whole_epochs_in_alternation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        # An engine of an earlier test says so, and Trainer would take itself for one of several processes.
        monkeypatch.delenv(name, raising=False)
    found = contenders(tmp_path)
    turns = {name: PausableLoop(one.loop) for name, (_, one) in found.items()}
    steps = EPOCH // BATCH
    for _ in range(8):
        for name, turn in turns.items():
            others = [weights(one) for other, (one, _) in found.items() if other != name]
            turn.advance(steps)
            after = [weights(one) for other, (one, _) in found.items() if other != name]
            assert all(torch.equal(a, b) for one, two in zip(others, after, strict=True) for a, b in zip(one, two, strict=True))
    whole = sum(map(len, found["ours"][0].examples.sources)) + sum(map(len, found["ours"][0].examples.targets))
    for name, (_, one) in found.items():
        assert one.learned.tokens == 8 * whole, name
        first, *_, last = one.learned.losses
        assert last < first - 0.3, name
    for turn in turns.values():
        turn.stop()
