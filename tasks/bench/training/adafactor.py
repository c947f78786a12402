"""Compares this project's Adafactor with `torch.optim.Adafactor(foreach=True)` on whole training steps.

Why it exists: an optimiser of our own must be worth its code. `tasks.training.optimizers.Adafactor` stays as long as a whole
step, forward and backward passes and DeepSpeed included, is at least 1.1 times as fast with it.

The two also differ in what they compute: torch's rate is always relative to the weights and at most 1/sqrt(step).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tasks.bench.alignment.timing import training_clock
from tasks.bench.training.recipes import Recipe, load_recipe
from tasks.training.engine import backward, create_engine
from tasks.training.objective import Objective
from tasks.training.optimizers import make_optimizer
from tasks.training.settings import TrainingSettings
from tasks.training.sources import DatasetSource

_WARM_UP_ROUNDS = 2
_EPSILON = 1e-15
"""torch adds its square, which is 1e-30 as in the paper. The square of 1e-30 would be 0, and rows without gradient NaN."""


def torch_adafactor(model: torch.nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return torch's optimiser for the same settings."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    return torch.optim.Adafactor(weights, lr=rate, eps=(_EPSILON, 1e-3), weight_decay=decay, foreach=True)


class Steps:
    """Whole training steps of a fresh model."""

    def __init__(self, recipe: Recipe, optimizer: Callable[[torch.nn.Module, TrainingSettings], torch.optim.Optimizer]) -> None:
        loaded = load_recipe(recipe)
        self._settings, self._device = loaded.settings, loaded.device
        self._objective = Objective(loaded.model, loaded.settings)
        self._engine = create_engine(self._objective, loaded.settings, loaded.device, optimizer)
        self._engine.train()
        self._source, self._step = DatasetSource(loaded.examples, loaded.settings), 0
        self._clock = training_clock(loaded.device)

    def seconds(self, steps: int) -> float:
        """Run the next steps and return their seconds."""
        started = self._clock()
        for step in range(self._step, self._step + steps):
            parts = [part.to(self._device) for part in self._source.microbatches(step)]
            counts = self._objective.counts(parts)
            for part in parts:
                backward(self._engine, self._engine(part, counts), self._settings)
                self._engine.step()
        self._step += steps
        return self._clock() - started


@dataclass(frozen=True, kw_only=True)
class AdafactorComparison:
    """Times of both implementations."""

    ratio: float
    """Median over rounds of torch's seconds over ours."""
    quartiles: tuple[float, float]
    """Of the ratios."""
    rounds: int
    ours_ms: float
    """Median milliseconds of a step."""
    torch_ms: float


def compare_adafactor(recipe: Recipe, steps: int, rounds: int) -> AdafactorComparison:
    """Time both in this process, on the same batches, in an order drawn anew for each round; one thread by processor time."""
    contenders = {"ours": Steps(recipe, make_optimizer), "torch": Steps(recipe, torch_adafactor)}
    order, seconds = random.Random(0), {name: list[float]() for name in contenders}  # noqa: S311 (an order, not a secret)
    for _ in range(_WARM_UP_ROUNDS + rounds):
        for name in order.sample(list(contenders), len(contenders)):
            seconds[name].append(contenders[name].seconds(steps))
    timed = {name: values[_WARM_UP_ROUNDS:] for name, values in seconds.items()}
    ratios = sorted(theirs / ours for ours, theirs in zip(timed["ours"], timed["torch"], strict=True))
    low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    step_ms = {name: round(1000 * statistics.median(values) / steps, 2) for name, values in timed.items()}
    return AdafactorComparison(
        ratio=round(statistics.median(ratios), 3),
        quartiles=(round(low, 3), round(high, 3)),
        rounds=rounds,
        ours_ms=step_ms["ours"],
        torch_ms=step_ms["torch"],
    )
