"""Builds the training spec of an alignment from its settings: batches, loss and evaluation data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.alignment.acceptance import HeldOutAcceptance
from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.divergences import divergence
from tasks.alignment.draft_vocabulary import prune_drafter
from tasks.alignment.gatekeeper import GatekeeperLoss
from tasks.alignment.position_weights import DecayedSource, ReachedCrossEntropyLoss
from tasks.alignment.progress import ProgressSource
from tasks.alignment.rollout_buffer import GenerateRollouts, RolloutBuffer, Rollouts
from tasks.alignment.rollout_generator import RolloutGenerator, on_policy_method, rejection_weights, speculative
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

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def start_model(settings: AlignSettings, small: ModelSettings, fine_tuned: Path) -> ModelSettings:
    """Return the model that alignment starts from: the small model's own start, or the fine-tuned small model.

    Raises:
        InputError: the settings name the fine-tuned model, which is missing.
    """
    if settings.start == "pretrained":
        return small
    if not fine_tuned.is_dir():
        raise InputError(
            f"align.start is fine_tuned, but there is no model at {fine_tuned}; run the stage finetune (dvc repro)"
        )
    return dataclasses.replace(small, pretrained=str(fine_tuned))


def alignment_spec(context: TrainingContext, settings: AlignSettings, large_folder: Path) -> TrainingSpec:
    """Return batches, loss and evaluation data for the drafter of `context`.

    Raises:
        InputError: the two models do not make a pair, or stored predictions are missing for these texts.
    """
    large = load_model(large_folder, context.device)
    if context.job.model.own_tokenizer:
        return _sequence_spec(context, settings, large)
    check_pair(context.tokenizer, load_tokenizer(large_folder), "the drafter", str(large_folder))
    check_architectures(context.model, large)
    vocabulary = vocabulary_size(context.tokenizer, context.model, large)
    if settings.draft_vocabulary:
        prune_drafter(context, settings.draft_vocabulary, vocabulary)
    if settings.reads_stored:
        _attach_stored_logits(context)
    source: BatchSource = DatasetSource(context.examples, settings)
    if settings.on_policy or settings.replay_rounds:
        generator = RolloutGenerator(context.model, large, vocabulary, context.job.text.max_target_tokens, settings)
        source = _scheduled_source(context, settings, source, generator)
    if settings.position_weights == "decay":
        source = DecayedSource(source, settings.position_window, settings.position_decay)
    if settings.reads_progress:
        source = ProgressSource(source, settings.steps)
    return TrainingSpec(
        source=source,
        evaluation=EvaluationData(context.held_out, HeldOutAcceptance(large, context.held_out, vocabulary, context.device)),
        loss=_loss(settings, large, vocabulary),
    )


def _sequence_spec(context: TrainingContext, settings: AlignSettings, large: PreTrainedModel) -> TrainingSpec:
    """Return the alignment of a drafter with a tokenizer of its own, which learns from text alone."""
    check_architectures(context.model, large)
    source: BatchSource = DatasetSource(context.examples, settings)
    if settings.position_weights == "decay":
        source = DecayedSource(source, settings.position_window, settings.position_decay)
    if settings.reads_progress:
        source = ProgressSource(source, settings.steps)
    return TrainingSpec(source, EvaluationData(context.held_out), _loss(settings, large, len(context.tokenizer)))


def _attach_stored_logits(context: TrainingContext) -> None:
    """Give both datasets the large model's stored predictions."""
    folder = context.job.paths.calibration
    for dataset, name in ((context.examples, "calibration"), (context.held_out, "validation")):
        stored = StoredTopLogits.open(folder, name)
        stored.require_matching(dataset.targets, folder)
        dataset.stored = stored


class ScheduledSource:
    """A `BatchSource` that reads each step from the source that the schedule names."""

    def __init__(self, schedule: Schedule, sources: Mapping[DataSource, BatchSource]) -> None:
        self._schedule, self._sources = schedule, sources

    def microbatches(self, step: int) -> list[Batch]:
        return self._sources[self._schedule.source_at(step)].microbatches(step)


def _scheduled_source(
    context: TrainingContext, settings: AlignSettings, calibration: BatchSource, generator: RolloutGenerator
) -> BatchSource:
    """Return the calibration set, on-policy texts and replay; the inputs of a step are the same in each."""
    schedule = Schedule(settings)

    def on_policy(sources: Rows, numbers: Sequence[int], seed: int) -> Rollouts:
        found = generator.generate(on_policy_method(settings), sources, numbers, seed)
        return Rollouts([one.tokens for one in found])

    def replay(sources: Rows, numbers: Sequence[int], seed: int) -> Rollouts:
        found = generator.generate(speculative, sources, numbers, seed)
        return Rollouts([one.tokens for one in found], [rejection_weights(one, settings.replay_kept) for one in found])

    def buffer(generate: GenerateRollouts) -> RolloutBuffer:
        return RolloutBuffer(context.examples, settings, schedule.window, generate, context.resume)

    return ScheduledSource(
        schedule,
        {
            DataSource.CALIBRATION: calibration,
            DataSource.ON_POLICY: buffer(on_policy),
            DataSource.REPLAY: buffer(replay),
        },
    )


def _loss(settings: AlignSettings, large: PreTrainedModel, vocabulary: int) -> Loss | None:
    window = settings.position_window if settings.position_weights == "acceptance" else 0
    if settings.loss == "sequence":
        return ReachedCrossEntropyLoss(window) if window else None
    if settings.loss == "gatekeeper":
        return GatekeeperLoss(vocabulary, settings.sure_weight)
    live = large if settings.reference == "live" else None
    apart = divergence(settings.loss, settings.beta)
    return DivergenceLoss(apart, vocabulary, live, settings.label_weight, kl_until=settings.kl_until, window=window)
