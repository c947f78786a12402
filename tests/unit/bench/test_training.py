"""What both contenders train and count, and what the benchmark requires before it begins."""

import importlib.util
import random
from pathlib import Path

import pytest
import torch

from tasks.bench import training
from tasks.bench.training import DraftlineContender, Recipe, TrainerContender, Visit, endless, trainer_optimizer
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings

SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, seed=3)
EPOCH, BATCH = 40, 8


def test_only_the_asked_steps_are_timed_and_counted() -> None:
    now = [0.0]
    visit = Visit(lambda: now[0])
    for steps in (4, 1):
        visit.restart(steps)
        while not visit.begin_step():
            now[0] += 100.0 if visit.begun <= training._WARM_UP else 2.0
            visit.count(10)
        assert (visit.seconds, visit.tokens) == (2.0 * steps, 10 * steps)


def recipe() -> Recipe:
    rng = random.Random(0)
    texts = [[*rng.choices(range(3, 40), k=rng.randint(2, 12)), 1] for _ in range(EPOCH)]
    words = ("".join(rng.choices("abcdefgh", k=5)) for _ in range(400))
    settings = TrainingSettings(relative_rate=True, learning_rate=3e-2, batch_size=BATCH)
    return Recipe(
        initial_model(SHAPE, 64, pad=0, end=1),
        train_tokenizer(words, TokenizerSettings(vocabulary=64)),
        TokenDataset(texts, [[*reversed(text[:-1]), 1] for text in texts], 0),
        endless(settings),
        torch.device("cpu"),
    )


@pytest.mark.slow
def test_both_contenders_learn_and_count_whole_epochs_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setattr(training, "_WARM_UP", EPOCH // BATCH)
    theirs, ours = recipe(), recipe()
    contenders = (TrainerContender(theirs, tmp_path, "target"), DraftlineContender(ours, tmp_path))
    whole = sum(map(len, ours.examples.sources)) + sum(map(len, ours.examples.targets))
    for _ in range(2):
        for one in contenders:
            one.run(7 * EPOCH // BATCH)
            assert one.visit.tokens == 7 * whole
    for one in contenders:
        first, *_, last = one.visit.losses
        assert last < first - 0.3


def test_a_recipe_without_an_end_keeps_the_rest() -> None:
    own = TrainingSettings(
        learning_rate=0.02, relative_rate=True, warmup_steps=50, decay="linear", batch_size=8, accumulation=4
    )
    same = endless(own)
    assert (same.learning_rate, same.relative_rate, same.warmup_steps, same.batch_size) == (0.02, True, 50, 8)
    assert (same.decay, same.accumulation) == ("constant", 1)
    assert same.steps == same.evaluate_every == same.checkpoint_every > 10**6


def test_trainer_has_the_optimizer_of_the_recipe() -> None:
    from transformers.optimization import Adafactor

    model = torch.nn.Linear(2, 2)
    known = trainer_optimizer(model, TrainingSettings(learning_rate=0.02, relative_rate=True, weight_decay=0.5))
    assert isinstance(known, Adafactor)
    group = known.param_groups[0]
    assert (group["lr"], group["scale_parameter"], group["relative_step"], group["weight_decay"]) == (0.02, True, False, 0.5)
    other = trainer_optimizer(model, TrainingSettings(optimizer="adamw", learning_rate=0.25))
    assert isinstance(other, torch.optim.AdamW)
    assert other.param_groups[0]["fused"]


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--params", str(Path("params.yaml").resolve())]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--steps is 0; it must be at least 1"):
        training.main([*given, "--steps", "0"])
    with pytest.raises(InputError, match=r"data/translation/corpus/train.jsonl is missing; make it by dvc repro"):
        training.main(given)
    for place in ("data/translation/corpus/train.jsonl", "data/translation/tokenizer"):
        Path(place).mkdir(parents=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="accelerate is not installed"):
        training.main(given)
