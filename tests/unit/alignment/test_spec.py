"""The parts of a training spec, and pairs that cannot be aligned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.position_weights import ReachedCrossEntropyLoss
from tasks.alignment.schedule import DataSource, Schedule
from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import ScheduledSource, alignment_spec, start_model
from tasks.alignment.stored import FOLDER, pack_top_logits
from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.context import TrainingContext, TrainingJob
from tasks.training.data import Batch, TokenDataset
from tasks.training.losses import CrossEntropyLoss

CPU = torch.device("cpu")
SHAPE = ModelSettings(d_model=16, d_ff=16, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1)
DECODER_ONLY = dataclasses.replace(SHAPE, architecture="llama")


def tokenizer_of(words: str) -> Any:
    return train_tokenizer([f"{words} {one}{other}{third}" for one in words for other in words for third in words], VOCABULARY)


VOCABULARY = TokenizerSettings(vocabulary=64)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_of("abcdefghijklm")


def saved(folder: Path, tokenizer: Any, shape: ModelSettings = SHAPE) -> Path:
    save_model(initial_model(shape, 64, 0, 1), tokenizer, folder)
    return folder


def opened(tokenizer: Any, model: ModelSettings = SHAPE) -> TrainingContext:
    """Of a job whose files are relative to where the test runs."""
    file = Path("nowhere")
    job = TrainingJob(
        name="aligned",
        stage="align",
        paths=TaskPaths("toy"),
        model=model,
        training=AlignSettings(),
        text=TextSettings(max_target_tokens=6),
        machine=MachineSettings(),
        train_file=file,
        held_out_file=file,
        metric="bleu",
    )
    examples, held_out = (TokenDataset([[5, 6, 1], [7, 1]], [[8, 1], [9, 4, 1]], 0) for _ in range(2))
    drafter = initial_model(dataclasses.replace(SHAPE, seed=9), 64, 0, 1)
    return TrainingContext(job, drafter, tokenizer, examples, held_out, CPU, Path("resume"))


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_alignment_begins_as_the_small_model_or_with_what_became_of_it(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    assert start_model(AlignSettings(), SHAPE, tmp_path / "small") is SHAPE
    begun = start_model(AlignSettings(start="fine_tuned"), SHAPE, tmp_path / "small")
    assert begun == dataclasses.replace(SHAPE, pretrained=str(tmp_path / "small"))


def test_a_fine_tuned_start_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"align\.start is fine_tuned, but there is no model at .*nothing; run the stage finetune"
    ):
        start_model(AlignSettings(start="fine_tuned"), SHAPE, tmp_path / "nothing")


def test_incompatible_models_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is encoder-decoder .* but the large one is decoder-only"):
        alignment_spec(opened(tokenizer), AlignSettings(), saved(tmp_path / "causal", tokenizer, DECODER_ONLY))
    with pytest.raises(InputError, match="train or load both models with one tokenizer"):
        alignment_spec(opened(tokenizer), AlignSettings(), saved(tmp_path / "foreign", tokenizer_of("nopqrstuvwxyz")))


def test_acceptance_is_measured_for_every_loss_and_text(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    for settings in (AlignSettings(), AlignSettings(loss="total_variation")):
        learned = alignment_spec(small, settings, large)
        assert learned.evaluation.measure is not None
        assert learned.evaluation.measure(small.model).keys() == {"acceptance_rate", "acceptance_greedy"}
        assert isinstance(learned.loss, DivergenceLoss) == (settings.loss != "sequence")


def test_the_loss_reads_its_weights_from_the_settings(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    batch = small.held_out.batch([0, 1])
    small.model.eval()

    def loss_of(**changes: Any) -> float:
        loss = alignment_spec(small, AlignSettings(**changes), large).loss or CrossEntropyLoss()
        return float(loss.sums(small.model, batch)[0])

    soft, hard = loss_of(loss="jensen_shannon", beta=0.1), loss_of()
    assert loss_of(loss="jensen_shannon", beta=0.1, label_weight=0.25) == pytest.approx(0.75 * soft + 0.25 * hard, rel=1e-5)
    # Of the two models here no prediction is right, so that all of Gatekeeper is its other term.
    assert loss_of(loss="gatekeeper", sure_weight=0.2) == pytest.approx(
        4 * loss_of(loss="gatekeeper", sure_weight=0.8), rel=1e-5
    )


def test_only_a_loss_that_changes_over_training_reads_its_progress(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    small.model.eval()

    def progress_of(**changes: Any) -> list[float | None]:
        spec = alignment_spec(small, AlignSettings(steps=5, **changes), large)
        return [spec.source.microbatches(step)[0].progress for step in range(5)]

    assert progress_of(loss="total_variation") == [None] * 5
    assert progress_of(loss="total_variation", kl_until=0.5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert progress_of(position_weights="decay") == [None] * 5
    assert progress_of(position_weights="acceptance") == [0.0, 0.25, 0.5, 0.75, 1.0]

    def loss_at(step: int, **changes: Any) -> float:
        spec = alignment_spec(small, AlignSettings(steps=5, **changes), large)
        assert spec.loss is not None
        return spec.loss.sums(small.model, spec.source.microbatches(step)[0])[0].item()

    turning: dict[str, Any] = {"loss": "total_variation", "kl_until": 0.5}
    assert loss_at(0, **turning) == pytest.approx(loss_at(0, loss="forward_kl"))
    assert loss_at(1, **turning) == pytest.approx((loss_at(1, loss="forward_kl") + loss_at(1, loss="total_variation")) / 2)
    assert loss_at(2, **turning) == pytest.approx(loss_at(2, loss="total_variation"))


def test_position_weights_come_with_the_batch_or_from_the_loss(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    decaying = AlignSettings(position_weights="decay", position_window=2, position_decay=0.25, batch_size=2)
    spec = alignment_spec(small, decaying, large)
    [batch] = spec.source.microbatches(0)
    assert spec.loss is None
    assert batch.weights is not None
    assert sorted(batch.weights.tolist()) == [[1.0, 0.25, 0.0], [1.0, 0.25, 1.0]]
    for loss, kind in (("sequence", ReachedCrossEntropyLoss), ("forward_kl", DivergenceLoss)):
        spec = alignment_spec(small, AlignSettings(loss=loss, position_weights="acceptance", position_window=2), large)
        assert isinstance(spec.loss, kind)
        batch = spec.source.microbatches(0)[0]
        assert batch.weights is None
        weighted = spec.loss.sums(small.model, batch)[0].item()
        plain = spec.loss.sums(small.model, dataclasses.replace(batch, progress=None))[0].item()
        assert weighted < 0.95 * plain


def test_a_replay_s_weights_are_multiplied(tokenizer: Any, tmp_path: Path) -> None:
    """All steps but the first replay; a text of one window has the weights of the replay times the powers of the decay."""
    chosen: dict[str, Any] = {"steps": 9, "batch_size": 2, "replay_rounds": 1, "replay_steps": 8, "replay_kept": 0.5}
    large = saved(tmp_path / "large", tokenizer)
    plain = alignment_spec(opened(tokenizer), AlignSettings(**chosen), large).source.microbatches(4)[0].weights
    decaying = AlignSettings(**chosen, position_weights="decay", position_window=8, position_decay=0.5)
    found = alignment_spec(opened(tokenizer), decaying, large).source.microbatches(4)[0].weights
    assert plain is not None and found is not None
    torch.testing.assert_close(found, plain * 0.5 ** torch.arange(plain.shape[1]))


def test_stored_predictions_are_read_or_missed_in_one_line(tokenizer: Any, tmp_path: Path) -> None:
    large, settings = saved(tmp_path / "large", tokenizer), AlignSettings(loss="forward_kl", reference="stored")
    with pytest.raises(InputError, match=r"no stored predictions of the large model; set calibrate\.top_logits"):
        alignment_spec(opened(tokenizer), settings, large)
    folder = TaskPaths("toy").calibration / FOLDER
    folder.mkdir(parents=True)
    top = [torch.randn(length, 64).log_softmax(-1).topk(3) for length in (2, 3)]
    for which in ("calibration", "validation"):
        save_file(pack_top_logits([(one.indices, one.values) for one in top]), folder / f"{which}-00000.safetensors")
    ready = opened(tokenizer)
    learned = alignment_spec(ready, settings, large)
    [part] = learned.source.microbatches(0)
    assert part.top is not None
    assert part.top.tokens.shape == (2, 3, 3)
    assert learned.loss is not None
    for batch in (part, ready.held_out.batch([0, 1])):
        assert all(term.isfinite() for term in learned.loss.sums(ready.model, batch))


def test_each_step_s_text_is_what_the_schedule_says(tokenizer: Any, tmp_path: Path) -> None:
    """The inputs are those of the calibration set's order; targets are its own, or written, or weighed as verified."""
    settings = AlignSettings(
        loss="forward_kl", steps=30, batch_size=2, on_policy=0.5, write_every=6, replay_rounds=2, replay_steps=4
    )
    source, schedule = (
        alignment_spec(opened(tokenizer), settings, saved(tmp_path / "large", tokenizer)).source,
        Schedule(settings),
    )
    own = {(8, 1, -100), (9, 4, 1)}
    seen = set()
    for step in range(30):
        [part] = source.microbatches(step)
        assert sorted(part.source[:, 0].tolist()) == [5, 7]
        seen.add(schedule.source_at(step))
        assert (part.weights is not None) == (schedule.source_at(step) is DataSource.REPLAY)
        assert (set(map(tuple, part.labels.tolist())) == own) == (schedule.source_at(step) is DataSource.CALIBRATION)
        assert part.labels.shape[1] <= 6
    assert seen == set(DataSource)


def test_a_scheduled_source_asks_one_source_a_step() -> None:
    class Named:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def microbatches(self, step: int) -> list[Batch]:
            self.asked.append(step)
            return []

    settings = AlignSettings(loss="forward_kl", steps=20, on_policy=0.5, replay_rounds=1, replay_steps=5)
    sources, schedule = {text: Named() for text in DataSource}, Schedule(settings)
    scheduled = ScheduledSource(schedule, sources)
    for step in range(20):
        scheduled.microbatches(step)
    assert all(
        source.asked == [step for step in range(20) if schedule.source_at(step) is text] for text, source in sources.items()
    )


@pytest.mark.parametrize("what", [{"on_policy": 0.5}, {"replay_rounds": 1}])
def test_a_partitioned_drafter_cannot_generate_text(what: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {"loss": "forward_kl", "optimizer": "adamw", **what}
    assert AlignSettings(zero_stage=2, **chosen).zero_stage == 2
    with pytest.raises(ValueError, match=f"{next(iter(what))} is set, but no process has the whole drafter .* zero_stage 3"):
        AlignSettings(zero_stage=3, **chosen)
