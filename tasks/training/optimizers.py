"""The optimisers and the learning-rate schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EPSILON = 1e-15, 1e-3
"""Of Adafactor. torch squares the first, which gives the 1e-30 of the paper (Shazeer and Stern, 2018, algorithm 6)."""


def make_optimizer(model: PreTrainedModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return AdamW, or Adafactor without a first moment (Shazeer and Stern, 2018, algorithms 4 and 5).

    torch's Adafactor updates many weights in one call, but its rate is always relative to each weight's root mean square and
    at most 1/sqrt(step), as in the paper. The slower one of `transformers` takes an absolute rate.
    """
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)
    if settings.relative_rate:
        return torch.optim.Adafactor(weights, lr=rate, eps=_EPSILON, weight_decay=decay, foreach=True)
    from transformers.optimization import Adafactor

    absolute: torch.optim.Optimizer = Adafactor(
        weights, lr=rate, weight_decay=decay, scale_parameter=False, relative_step=False
    )
    return absolute


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """Return the factor of the peak rate at optimiser step `step`, counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return 1.0
    return max(0.0, (settings.steps - step) / (settings.steps - settings.warmup_steps))
