"""Alignment through DeepSpeed on a toy pair: every loss and every source of text makes a drafter that is accepted more."""

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.alignment.settings import LOSSES, AlignSettings
from tasks.alignment.spec import alignment_spec
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.inference import load_pair
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.layers import shared_parameters
from tasks.models.pruned_head import pruned_head
from tasks.models.settings import LayersSettings, ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.data import JsonlDataset
from tasks.training.loop import TrainingResult, evaluate, train
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tasks.training.stage import TrainingContext, TrainingSpec
from tests.training import CPU, InterruptedRun, interrupt_at, job_of, train_on

TEXT = TextSettings(max_source_tokens=16, max_target_tokens=12)
SHAPE: dict[str, Any] = {"d_ff": 32, "d_kv": 8, "heads": 2, "encoder_layers": 1, "feed_forward": "relu"}
SMALL = ModelSettings(**SHAPE, d_model=16, decoder_layers=1, dropout=0.1, seed=3)
LARGE = ModelSettings(**SHAPE, d_model=32, decoder_layers=2, dropout=0.0, seed=4)
VOCABULARY = 64


@dataclass(frozen=True)
class Setting:
    """A large model that knows its text, and a drafter that has seen a little of it."""

    large: Path
    drafter: Path
    text: Path
    tokenizer: Any

    def opened(self, resume: Path) -> TrainingContext:
        model = load_model(self.drafter)
        examples, held_out = (JsonlDataset(self.text, self.tokenizer, TEXT, decoder_only=False) for _ in range(2))
        files = {"train_file": self.text, "held_out_file": self.text}
        job = job_of(TaskPaths("toy"), SMALL, AlignSettings(), name="aligned", stage="align", text=TEXT, **files)
        return TrainingContext(job, model, self.tokenizer, examples, held_out, CPU, resume)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder, rng = tmp_path_factory.mktemp("pair"), random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(60)]
    chosen = [rng.choices(words, k=3) for _ in range(120)]
    # The next word of a target is random, so the large model is never certain.
    pairs = [Example(" ".join(three), (" ".join(rng.choice(three) for _ in three),)) for three in chosen]
    write_jsonl(pairs, folder / "text.jsonl")
    tokenizer = train_tokenizer((pair.source for pair in pairs), TokenizerSettings(vocabulary=VOCABULARY))
    tokenizer.save_pretrained(folder / "tokenizer")
    examples = JsonlDataset(folder / "text.jsonl", tokenizer, TEXT, decoder_only=False)
    for name, shape, steps in (("large", LARGE, 150), ("drafter", SMALL, 15)):
        model = initial_model(shape, VOCABULARY, tokenizer.pad_token_id, tokenizer.eos_token_id)
        recipe = TrainingSettings(optimizer="adamw", learning_rate=1e-2, steps=steps, batch_size=24)
        train_on(model, examples, recipe, folder / "resume")
        save_model(model, tokenizer, folder / name)
    return Setting(folder / "large", folder / "drafter", folder / "text.jsonl", tokenizer)


def recipe(**settings: Any) -> AlignSettings:
    chosen: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 5e-3, "steps": 60, "batch_size": 16, "seed": 2} | settings
    return AlignSettings(**chosen)


def train_in(
    opened: TrainingContext, settings: AlignSettings, setting: Setting, stop_at: int | None = None
) -> tuple[Any, TrainingResult, TrainingSpec]:
    """Align the drafter; `stop_at` interrupts the run at an evaluation."""
    learned = alignment_spec(opened, settings, setting.large)
    objective = Objective(opened.model, settings, learned.loss)
    log, resume = interrupt_at(stop_at), opened.resume
    outcome = train(
        objective, learned.source, opened.held_out, settings, CPU, measure=learned.measure, resume=resume, log=log, label="test"
    )
    return opened.model, outcome, learned


@pytest.mark.parametrize("case", [{"loss": "jensen_shannon"}, {"loss": "sequence"}], ids=["aligned", "control"])
def test_a_drafter_of_the_large_model_s_encoder_decodes_with_it(setting: Setting, tmp_path: Path, case: dict[str, Any]) -> None:
    """Trained with a draft vocabulary, interrupted, resumed, chosen among evaluations and saved: the encoder is the same."""
    settings = recipe(
        **case, draft_vocabulary=48, steps=30, evaluate_every=10, checkpoint_every=10, choose_by="acceptance_rate"
    )
    layers = LayersSettings(layers=(0,), share_encoder=True)

    def opened(folder: Path) -> TrainingContext:
        context = setting.opened(folder)
        job = dataclasses.replace(context.job, train_file=context.job.paths.calibration_set)
        model = initial_model(ModelSettings(from_large=layers), VOCABULARY, 0, 1, setting.large)
        return dataclasses.replace(context, job=job, model=model)

    before = opened(tmp_path / "resume").model
    with pytest.raises(InterruptedRun):
        train_in(opened(tmp_path / "resume"), settings, setting, stop_at=20)
    model, outcome, learned = train_in(opened(tmp_path / "resume"), settings, setting)
    assert outcome.resumed_from == 10
    assert acceptance(outcome.measured) > acceptance(learned.measure(before)) + 0.01  # type: ignore[misc]
    save_model(model, setting.tokenizer, tmp_path / "drafter")
    loaded = load_pair(large=setting.large, drafter=tmp_path / "drafter", text=TEXT, device="cpu")
    assert loaded.decoders.shares_encoder
    small, large = loaded.models["small"], loaded.models["large"]
    assert (small.config.shares_encoder, pruned_head(small).rows) == (True, 48)
    weights = load_model(tmp_path / "drafter").state_dict()
    for name, weight in load_model(setting.large).state_dict().items():
        if name.startswith(("shared.", "encoder.")):
            assert torch.equal(weights[name], weight), name
    assert shared_parameters(small, large) == sum(weight.numel() for weight in large.encoder.parameters())


def acceptance(measured: dict[str, float]) -> float:
    return measured["acceptance_rate"]


FAST = "jensen_shannon"
"""Unit tests cover what the other losses add."""
CASES = [loss if loss == FAST else pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES]


@pytest.mark.parametrize("loss", CASES)
def test_every_loss_raises_acceptance(setting: Setting, tmp_path: Path, loss: str) -> None:
    settings = recipe(loss=loss)
    model, outcome, learned = train_in(setting.opened(tmp_path / "resume"), settings, setting)
    assert learned.measure is not None
    before = acceptance(learned.measure(load_model(setting.drafter)))
    after = acceptance(learned.measure(model))
    assert after > before + 0.01
    assert acceptance(outcome.measured) == pytest.approx(after, abs=1e-6)
    begun = Objective(load_model(setting.drafter), settings, learned.loss)
    assert outcome.measured["validation_loss"] < evaluate(begun, setting.opened(tmp_path).held_out, CPU)
