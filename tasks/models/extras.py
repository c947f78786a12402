"""What can be trained beside a model: heads that draft, and a classifier that says when to exit early.

They are attached to the model, so that they move, train and are checkpointed with it, and lie in files of their own beside
its weights, so that the folder stays one that `transformers` loads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.errors import InputError

_HEADS, _CLASSIFIER = "draft_heads", "exit_classifier"


class ParallelHeads(torch.nn.Module):
    """Blockwise parallel heads (Stern et al., 2018, section 6): k feed-forward layers, each with a residual connection.

    They stand between the decoder's last hidden state and the model's own output head: where that predicts the next token,
    the output of layer j predicts the j-th token after it.
    """

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.empty(count, width, inner))
        self.second = torch.nn.Parameter(torch.empty(count, inner, width))

    @property
    def count(self) -> int:
        """Tokens that the heads predict past the next one."""
        return self.first.shape[0]

    def initialise(self, seed: int) -> None:
        """Draws weights of the size that T5 starts its feed-forward layers with."""
        generator = torch.Generator().manual_seed(seed)
        for weight in (self.first, self.second):
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) to (..., count, width)."""
        inner = torch.relu(torch.einsum("...w,kwi->...ki", hidden, self.first))
        return hidden.unsqueeze(-2) + torch.einsum("...ki,kiw->...kw", inner, self.second)


class ExitClassifier(torch.nn.Module):
    """Whether a layer's prediction is already the last layer's: linear in its normed hidden state (CALM)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) to the logit of that probability, (...)."""
        return hidden @ self.weight + self.bias


def heads_of(model: Any) -> ParallelHeads | None:
    """The drafting heads of a model; none where it has none."""
    return getattr(model, _HEADS, None)


def classifier_of(model: Any) -> ExitClassifier | None:
    """The early-exit classifier of a model; none where it has none."""
    return getattr(model, _CLASSIFIER, None)


def add_heads(model: Any, count: int, seed: int) -> None:
    """Gives a T5-style model `count` new heads, unless it has as many already."""
    there = heads_of(model)
    if there is None or there.count != count:
        heads = ParallelHeads(count, model.config.d_model, model.config.d_ff)
        heads.initialise(seed)
        setattr(model, _HEADS, heads.to(model.device))


def add_classifier(model: Any) -> None:
    """Gives a T5-style model a new early-exit classifier, unless it has one."""
    if classifier_of(model) is None:
        setattr(model, _CLASSIFIER, ExitClassifier(model.config.d_model).to(model.device))


def own_weights(model: Any) -> dict[str, Tensor]:
    """The state of a model without what is trained beside it."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.partition(".")[0] not in _FILES}


def save_extras(model: Any, folder: Path) -> None:
    """Writes a file for each thing trained beside the model."""
    from safetensors.torch import save_file

    for name, (file, _) in _FILES.items():
        extra = getattr(model, name, None)
        if extra is not None:
            save_file({key: tensor.contiguous() for key, tensor in extra.state_dict().items()}, folder / file)


def load_extras(model: Any, folder: Path) -> None:
    """Attaches what `save_extras` wrote into the folder, in the model's own precision and on its device.

    Raises:
        InputError: a file that is damaged or belongs to a model of another width.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name, (file, build) in _FILES.items():
        if not (folder / file).is_file():
            continue
        try:
            weights = load_file(folder / file)
            extra = build(model.config.d_model, weights)
            extra.load_state_dict(weights)
        except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"{folder / file} does not fit the model beside it: {reason}; train it again") from None
        setattr(model, name, extra.to(device=model.device, dtype=model.dtype).eval())


def _heads_like(width: int, weights: dict[str, Tensor]) -> torch.nn.Module:
    count, _, inner = weights["first"].shape
    return ParallelHeads(count, width, inner)


_FILES: dict[str, tuple[str, Callable[[int, dict[str, Tensor]], torch.nn.Module]]] = {
    _HEADS: ("heads.safetensors", _heads_like),
    _CLASSIFIER: ("exit_classifier.safetensors", lambda width, _: ExitClassifier(width)),
}
