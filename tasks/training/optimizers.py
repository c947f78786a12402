"""How weights are moved: AdamW, or Adafactor with the weights of one shape moved together, and the rate of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.settings import TrainingSettings

_TOGETHER = 1 << 18
"""Numbers that are stacked at most: what is moved at once stays in a processor's cache."""


def make_optimizer(model: Any, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Adafactor at the given rate, constant or scaled by each weight's root mean square, or AdamW."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    return Adafactor(weights, settings.learning_rate, relative=settings.relative_rate, weight_decay=settings.weight_decay)


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """The share of the peak rate that optimiser step `step`, counted from 0, uses."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return 1.0
    return max(0.0, (settings.steps - step) / (settings.steps - settings.warmup_steps))


class Adafactor(torch.optim.Optimizer):
    """Adafactor without a first moment (Shazeer and Stern, 2018, algorithms 4 and 5, the numbers of algorithm 6).

    The same as that of `transformers` but for rounding. A small model has a hundred weights of a few shapes, and a step on
    each by itself is mostly the overhead of a dozen calls: those of one shape are stacked and moved at once.
    """

    epsilon = 1e-30, 1e-3
    """Added to squared gradients, and the least root mean square that a weight counts as (epsilon 1 and 2)."""
    threshold = 1.0
    """The root mean square to which an update is clipped (d)."""

    def __init__(self, weights: Iterable[Tensor], rate: float, *, relative: bool = False, weight_decay: float = 0.0) -> None:
        """Takes float32 weights.

        Args:
            weights: Of any shapes.
            rate: The step size (alpha), or with `relative` the relative one (rho).
            relative: Whether a weight's step is scaled by its root mean square.
            weight_decay: Share of a weight that is taken off it at a step, times the step size.
        """
        super().__init__(weights, {"lr": rate, "relative": relative, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves every weight that has a gradient."""
        if closure is not None:
            raise ValueError("Adafactor evaluates no closure; run the model before the step")
        for group in self.param_groups:
            alike: dict[tuple[Any, ...], list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight]["step"] = self.state[weight].get("step", 0) + 1
                    alike.setdefault((weight.shape, weight.device, self.state[weight]["step"]), []).append(weight)
            for weights in alike.values():
                together = max(1, _TOGETHER // max(1, weights[0].numel()))
                for begin in range(0, len(weights), together):
                    self._move(weights[begin : begin + together], group)

    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Moves weights of one shape that have been moved as often."""
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
        """U = G / sqrt(V): V is the moving average of squared gradients, for a matrix the product of its rows' and columns'."""
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
        """The moving averages of these weights with what is seen now; each weight keeps its own."""
        if name in self.state[weights[0]]:
            seen = torch.stack([self.state[weight][name] for weight in weights]).lerp_(seen, share)
        for weight, average in zip(weights, seen.clone().unbind(), strict=True):
            self.state[weight][name] = average
        return seen


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One above the other; one alone as it is, without a copy."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
