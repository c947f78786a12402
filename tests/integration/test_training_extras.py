"""Heads and classifier through DeepSpeed: trained with a frozen or a trained model, resumed, saved and decoded with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.extras import own_weights
from tasks.models.settings import ModelSettings
from tasks.training.data import TokenDataset
from tasks.training.loop import TrainingResult
from tasks.training.settings import TrainingSettings
from tests.toys import VOCABULARY, toy_sources
from tests.training import InterruptedRun, NoTokenizer, interrupt_at, same_weights, train_on

SHAPE = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=3, dropout=0.1, seed=3)
RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-2,
    "steps": 12,
    "batch_size": 8,
    "evaluate_every": 3,
    "checkpoint_every": 4,
    "seed": 5,
}


TEXTS = TokenDataset(toy_sources(60), toy_sources(60, seed=1), 0)


def run(folder: Path, model: Any = None, stop_at: int | None = None, **settings: Any) -> tuple[Any, TrainingResult]:
    model = initial_model(SHAPE, VOCABULARY, pad=0, end=1) if model is None else model
    return model, train_on(model, TEXTS, TrainingSettings(**RECIPE, **settings), folder, interrupt_at(stop_at))


@pytest.mark.parametrize(
    "settings",
    [
        {"draft_heads": 2, "exit_classifier": True, "exit_loss": "weighted"},
        pytest.param({"draft_heads": 2, "trunk": "frozen"}, marks=pytest.mark.slow),
    ],
    ids=["all together", "frozen trunk"],
)
def test_an_interrupted_run_resumes_its_heads(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, outcome = run(tmp_path / "whole", **settings)
    assert outcome.resumed_from == 0
    with pytest.raises(InterruptedRun):
        run(tmp_path / "cut", stop_at=9, **settings)
    resumed, outcome = run(tmp_path / "cut", **settings)
    assert outcome.resumed_from == 8
    assert "draft_heads.first" in whole.state_dict()
    assert same_weights(resumed, whole)


def test_a_frozen_model_is_saved_with_its_heads_and_decodes_as_before(tmp_path: Path) -> None:
    trunk, _ = run(tmp_path / "trunk", exit_loss="first_last", exit_layer=2)
    save_model(trunk, NoTokenizer(), tmp_path / "model")
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    start = load_model(tmp_path / "model")
    trained, _ = run(
        tmp_path / "heads", start, draft_heads=2, exit_classifier=True, trunk="frozen", weight_decay=0.1, exit_layer=2
    )
    save_model(trained, NoTokenizer(), tmp_path / "with heads")
    loaded = load_model(tmp_path / "with heads")
    weights = own_weights(loaded)
    assert weights.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())
    assert same_weights(loaded.draft_heads, trained.draft_heads)
    assert loaded.config.exit_layer == 2
    large = TransformersDecoder(loaded, "large")
    pair, request, sources = Pair(large, large), Request(12), TEXTS.sources[:20]
    vanilla = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, request)]
    for drafter in ("heads", "early_layer"):
        generations = decode("speculative", SpeculativeSettings(drafter=drafter), pair, sources, request)
        assert [one.tokens for one in generations] == vanilla
    exits = decode("calm", CalmSettings(confidence="classifier", threshold=0.5), pair, sources, request)
    assert all(one.counts.layers <= 3 * one.counts.tokens for one in exits)
