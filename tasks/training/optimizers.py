"""AdamW, Adafactor with weights of equal shape updated together, and the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOGETHER = 1 << 18
"""Most numbers stacked into one update, so that the update fits the processor's cache."""


def make_optimizer(model: PreTrainedModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return AdamW, or Adafactor with a rate that is absolute or relative to each weight's root mean square."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    return Adafactor(weights, settings.learning_rate, relative=settings.relative_rate, weight_decay=settings.weight_decay)


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """Return the factor of the peak rate at optimiser step `step`, counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return 1.0
    return max(0.0, (settings.steps - step) / (settings.steps - settings.warmup_steps))


class Adafactor(torch.optim.Optimizer):
    """Adafactor without a first moment (Shazeer and Stern, 2018, algorithms 4 and 5, with the constants of algorithm 6).

    Equals that of `transformers` up to rounding. A small model has a hundred weights of few shapes, and updating each by itself
    is mostly the overhead of a dozen calls; weights of one shape are therefore stacked and updated together.
    """

    epsilon = 1e-30, 1e-3
    """Added to squared gradients, and lower bound of a weight's root mean square (epsilon 1 and 2)."""
    threshold = 1.0
    """Root mean square to which an update is clipped (d)."""

    def __init__(self, weights: Iterable[Tensor], rate: float, *, relative: bool = False, weight_decay: float = 0.0) -> None:
        """Take float32 weights.

        Args:
            weights: Tensors of any shape.
            rate: Step size (alpha), or with `relative` the relative step size (rho).
            relative: Whether a weight's step is scaled by its root mean square.
            weight_decay: Fraction of a weight that a step removes, times the step size.
        """
        super().__init__(weights, {"lr": rate, "relative": relative, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        if closure is not None:
            raise ValueError("Adafactor evaluates no closure; run the model before the step")
        for group in self.param_groups:
            alike: dict[tuple[torch.Size, torch.device, int], list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight]["step"] = self.state[weight].get("step", 0) + 1
                    alike.setdefault((weight.shape, weight.device, self.state[weight]["step"]), []).append(weight)
            for weights in alike.values():
                together = max(1, _TOGETHER // max(1, weights[0].numel()))
                for begin in range(0, len(weights), together):
                    self._move(weights[begin : begin + together], group)

    def _move(self, weights: list[Tensor], group: Mapping[str, float]) -> None:
        """Update weights of one shape and one step count."""
        gradients = _stacked([weight.grad for weight in weights if weight.grad is not None])
        update = self._normed(weights, gradients)
        size = weights[0].numel() ** 0.5
        rates = update.new_full((len(weights),), group["lr"])
        if group["relative"]:
            # alpha = max(epsilon 2, RMS(X)) rho
            rates *= torch.stack(torch._foreach_norm(weights)).div_(size).clamp_(min=self.epsilon[1])
        # U / max(1, RMS(U) / d)
        clipped = torch.linalg.vector_norm(update.view(len(weights), -1), dim=1).div_(size * self.threshold).clamp_(min=1.0)
        update *= (rates / clipped).view(-1, *(1,) * weights[0].dim())
        if group["weight_decay"]:
            torch._foreach_mul_(weights, (1 - group["weight_decay"] * rates).unbind())
        torch._foreach_sub_(weights, update.unbind())

    def _normed(self, weights: list[Tensor], gradients: Tensor) -> Tensor:
        """Return U = G / sqrt(V), where V averages squared gradients; for a matrix, V is factored into rows and columns."""
        # beta 2 = 1 - t^-0.8
        share = self.state[weights[0]]["step"] ** -0.8
        squares = gradients.square().add_(self.epsilon[0])
        if weights[0].dim() < 2:
            return self._averaged(weights, "square", squares, share).rsqrt_().mul_(gradients)
        rows = self._averaged(weights, "rows", squares.mean(-1), share)
        columns = self._averaged(weights, "columns", squares.mean(-2), share)
        rows = rows.div_(rows.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return torch.mul(rows, columns.rsqrt_().unsqueeze(-2), out=squares).mul_(gradients)

    def _averaged(self, weights: list[Tensor], name: str, seen: Tensor, share: float) -> Tensor:
        """Return the moving averages of these weights, updated with `seen`; each weight keeps its own state."""
        if name in self.state[weights[0]]:
            seen = torch.stack([self.state[weight][name] for weight in weights]).lerp_(seen, share)
        for weight, average in zip(weights, seen.clone().unbind(), strict=True):
            self.state[weight][name] = average
        return seen


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors; a single one is not copied."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
