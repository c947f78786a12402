"""Training through DeepSpeed: the same as plain torch, and the same after an interruption."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.alignment.spec import HeldOutAcceptance
from tasks.corpora.example import Example, write_jsonl
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training import checkpoints
from tasks.training.data import DatasetSource, JsonlDataset
from tasks.training.engine import create_engine, make_optimizer, rate_factor
from tasks.training.loop import DivergedError, Evaluator
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.training import CPU, InterruptedRun, interrupt_at, train_on

SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=2, dropout=0.1, seed=3)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> JsonlDataset:
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(60)]
    chosen = [letters.sample(words, 3) for _ in range(240)]
    pairs = [Example(" ".join(three), (" ".join(reversed(three)),)) for three in chosen]
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_jsonl(pairs, path)
    tokenizer = train_tokenizer((pair.source for pair in pairs), TokenizerSettings(vocabulary=64))
    return JsonlDataset(path, tokenizer, TextSettings())


def fresh_model() -> Any:
    return initial_model(SHAPE, 64, pad=0, end=1)


def weights_equal(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=tolerance) for one, other in pairs)


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw"])
def test_stage_0_equals_plain_torch_for_four_steps(examples: JsonlDataset, optimizer: str) -> None:
    settings = TrainingSettings(
        optimizer=optimizer, learning_rate=1e-2, warmup_steps=2, gradient_clipping=0.0, steps=4, batch_size=8
    )
    ours, plain = fresh_model().eval(), fresh_model().eval()
    objective = Objective(ours, settings)
    engine = create_engine(objective.eval(), settings, CPU)
    other = make_optimizer(plain, settings)
    source = DatasetSource(examples, settings)
    for step in range(settings.steps):
        (batch,) = source.microbatches(step)
        loss = engine(batch, objective.counts([batch]))
        expected = plain(input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels).loss
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        engine.backward(loss)
        engine.step()
        for group in other.param_groups:
            group["lr"] = settings.learning_rate * rate_factor(settings, step)
        other.zero_grad()
        expected.backward()
        other.step()
    assert weights_equal(ours, plain, tolerance=1e-5)
    assert not weights_equal(ours, fresh_model(), tolerance=1e-3)


def run(examples: JsonlDataset, folder: Path, stop_at: int | None = None, measure: Evaluator | None = None) -> Any:
    settings = TrainingSettings(
        optimizer="adamw", learning_rate=1e-2, steps=12, batch_size=8, evaluate_every=3, checkpoint_every=4, seed=5
    )
    model = fresh_model()
    outcome = train_on(model, examples, settings, folder, interrupt_at(stop_at), measure=measure)
    return model, outcome


def test_an_interrupted_run_ends_with_the_same_weights(examples: JsonlDataset, tmp_path: Path) -> None:
    whole, outcome = run(examples, tmp_path / "whole")
    assert outcome.resumed_from == 0
    with pytest.raises(InterruptedRun):
        run(examples, tmp_path / "cut", stop_at=9)
    resumed, outcome = run(examples, tmp_path / "cut")
    assert outcome.resumed_from == 8
    assert weights_equal(resumed, whole)
    # Every third step is evaluated, every fourth is a checkpoint.
    assert [*outcome.log] == [3, 4, 6, 8, 9, 12]
    assert [*outcome.log[12]] == ["loss", "learning_rate", "tokens_per_second", "target_tokens", "validation_loss"]


def test_measuring_acceptance_changes_no_weight_before_or_after_an_interruption(examples: JsonlDataset, tmp_path: Path) -> None:
    plain, _ = run(examples, tmp_path / "plain")
    measure = HeldOutAcceptance(plain.eval(), examples, 64, CPU)
    with pytest.raises(InterruptedRun):
        run(examples, tmp_path / "cut", stop_at=9, measure=measure)
    measured, outcome = run(examples, tmp_path / "cut", measure=measure)
    assert weights_equal(measured, plain)
    # The final weights are those of the model that it is compared with.
    assert outcome.measured["acceptance_rate"] == pytest.approx(1.0, abs=1e-5)
    assert outcome.measured["acceptance_greedy"] == 1.0


def test_acceptance_is_measured_with_the_validation_loss(examples: JsonlDataset, tmp_path: Path) -> None:
    lines: list[tuple[int, dict[str, float]]] = []
    settings = TrainingSettings(optimizer="adamw", learning_rate=1e-2, steps=60, batch_size=16, evaluate_every=30)
    large, _ = run(examples, tmp_path / "large")
    train_on(
        fresh_model(),
        examples,
        settings,
        tmp_path / "small",
        lambda metrics, step: lines.append((step, metrics)),
        measure=HeldOutAcceptance(large, examples, 64, CPU),
    )
    curve = [(step, metrics) for step, metrics in lines if "validation_loss" in metrics]
    assert [step for step, _ in curve] == [30, 60]
    assert all(metrics.keys() == {"validation_loss", "acceptance_rate", "acceptance_greedy"} for _, metrics in curve)
    assert all(0 < metrics["acceptance_rate"] < 1 and 0 <= metrics["acceptance_greedy"] <= 1 for _, metrics in curve)


def test_a_damaged_checkpoint_is_skipped(examples: JsonlDataset, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        run(examples, tmp_path / "cut", stop_at=9)
    newest = max((tmp_path / "cut").glob("step*"))
    assert newest.name == "step00000008"
    damaged = newest / next(iter(json.loads((newest / "complete.json").read_text())))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    resumed, outcome = run(examples, tmp_path / "cut")
    assert outcome.resumed_from == 4
    assert weights_equal(resumed, run(examples, tmp_path / "whole")[0])


def test_two_checkpoints_are_kept(examples: JsonlDataset, tmp_path: Path) -> None:
    engine = create_engine(fresh_model(), TrainingSettings(batch_size=8), CPU)
    for step in (1, 2, 3):
        checkpoints.save(engine, tmp_path, step, {"extra": step})
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step00000002", "step00000003"]
    step, state = checkpoints.load_latest(engine, tmp_path)
    assert (step, state["extra"]) == (3, 3)
    assert checkpoints.load_latest(engine, tmp_path / "nowhere") == (0, {})


def test_a_nonfinite_loss_names_its_step(examples: JsonlDataset, tmp_path: Path) -> None:
    model = fresh_model()
    with torch.no_grad():
        model.shared.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="nan at step 1; there is no checkpoint yet; lower learning_rate"):
        train_on(model, examples, TrainingSettings(batch_size=8), tmp_path)


def test_training_learns(examples: JsonlDataset, tmp_path: Path) -> None:
    losses: list[float] = []
    settings = TrainingSettings(optimizer="adafactor", learning_rate=1e-2, steps=60, batch_size=16)
    train_on(
        fresh_model(),
        examples,
        settings,
        tmp_path,
        lambda metrics, _: losses.append(metrics["loss"]) if "loss" in metrics else None,
    )
    assert losses[-1] < losses[0] - 0.5
