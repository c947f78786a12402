"""What a drafter learns, put together from the settings: the text of each step, the loss, and what it is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.alignment.acceptance import HeldOutAcceptance
from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.divergences import divergence
from tasks.alignment.replaying import rejection_weights
from tasks.alignment.rollout_buffer import GenerateRollouts, RolloutBuffer, Rollouts
from tasks.alignment.rollout_generator import RolloutGenerator, on_policy_method, speculative
from tasks.alignment.schedule import DataSource, Schedule
from tasks.alignment.settings import AlignSettings
from tasks.alignment.stored import StoredTopLogits
from tasks.decoding.decoder import Rows
from tasks.errors import InputError
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_pair, vocabulary_size
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.training.context import TrainingContext
from tasks.training.data import Batch
from tasks.training.loop import EvaluationData
from tasks.training.losses import Loss
from tasks.training.sources import BatchSource, DatasetSource
from tasks.training.stage import TrainingSpec


def start_model(settings: AlignSettings, small: ModelSettings, fine_tuned: Path) -> ModelSettings:
    """What alignment begins with: the small model's own start, or what fine-tuning made of it.

    Raises:
        InputError: the fine-tuned model is wanted and missing.
    """
    if settings.start == "pretrained":
        return small
    if not fine_tuned.is_dir():
        raise InputError(
            f"align.start is fine_tuned, but there is no model at {fine_tuned}; run the stage finetune (dvc repro)"
        )
    return dataclasses.replace(small, pretrained=str(fine_tuned))


def alignment_spec(opened: TrainingContext, settings: AlignSettings, large_folder: Path) -> TrainingSpec:
    """The lesson of `settings` for the drafter that was opened.

    Raises:
        InputError: the two models make no pair, or predictions are to be read that nobody stored for these texts.
    """
    large = load_model(large_folder, opened.device)
    check_pair(opened.tokenizer, load_tokenizer(large_folder), "the drafter", str(large_folder))
    check_architectures(opened.model, large)
    vocabulary = vocabulary_size(opened.tokenizer, opened.model, large)
    if settings.reads_stored:
        folder = opened.job.paths.calibration
        for texts, which in ((opened.examples, "calibration"), (opened.held_out, "validation")):
            stored = StoredTopLogits.open(folder, which)
            stored.require_matching(texts.targets, folder)
            texts.stored = stored
    acceptance = HeldOutAcceptance(large, opened.held_out, vocabulary, opened.device)
    source: BatchSource = DatasetSource(opened.examples, settings)
    if settings.on_policy or settings.replay_rounds:
        writer = RolloutGenerator(opened.model, large, vocabulary, opened.job.text.max_target_tokens, settings)
        source = _scheduled(opened, settings, source, writer)
    return TrainingSpec(
        source=source,
        held=EvaluationData(opened.held_out, acceptance),
        loss=_loss(settings, large, vocabulary),
    )


class ScheduledSource:
    """A `BatchSource` that takes the text of each step from the source that its schedule names."""

    def __init__(self, schedule: Schedule, sources: Mapping[DataSource, BatchSource]) -> None:
        self._schedule, self._sources = schedule, sources

    def microbatches(self, step: int) -> list[Batch]:
        return self._sources[self._schedule.source_at(step)].microbatches(step)


def _scheduled(opened: TrainingContext, settings: AlignSettings, fixed: BatchSource, writer: RolloutGenerator) -> BatchSource:
    """The calibration set, what is written anew, and what is replayed: the inputs of a step are the same in each."""
    schedule = Schedule(settings)

    def pooled(write: GenerateRollouts) -> RolloutBuffer:
        return RolloutBuffer(opened.examples, settings, schedule.window, write, opened.resume)

    def on_policy(sources: Rows, numbers: Sequence[int], seed: int) -> Rollouts:
        return Rollouts([one.tokens for one in writer.generate(on_policy_method(settings), sources, numbers, seed)])

    def replayed(sources: Rows, numbers: Sequence[int], seed: int) -> Rollouts:
        found = writer.generate(speculative, sources, numbers, seed)
        return Rollouts([one.tokens for one in found], [rejection_weights(one, settings.replay_kept) for one in found])

    return ScheduledSource(
        schedule,
        {
            DataSource.CALIBRATION: fixed,
            DataSource.ON_POLICY: pooled(on_policy),
            DataSource.REPLAY: pooled(replayed),
        },
    )


def _loss(settings: AlignSettings, large: Any, vocabulary: int) -> Loss | None:
    if settings.loss == "sequence":
        return None
    beside = large if settings.reference == "live" else None
    return DivergenceLoss(divergence(settings.loss, settings.beta), vocabulary, beside)
