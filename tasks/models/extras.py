"""Modules that are trained with a model: parallel heads, a classifier for early exits.

They are attributes of the model, so that they move, train and are checkpointed with it. Their weights are saved in separate
files, so that `transformers` still loads the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HEADS, _CLASSIFIER = "draft_heads", "exit_classifier"


class ParallelHeads(torch.nn.Module):
    """Blockwise parallel heads (Stern et al., 2018, section 6): k feed-forward layers, each with a residual connection.

    They lie between the decoder's last hidden state and the model's output head. The head predicts the next token from the
    hidden state itself, and the j-th token after that from the output of layer j.
    """

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.empty(count, width, inner))
        self.second = torch.nn.Parameter(torch.empty(count, inner, width))

    @property
    def count(self) -> int:
        """Number of heads: tokens predicted beyond the next one."""
        return self.first.shape[0]

    def initialise(self, seed: int) -> None:
        """Draw normal weights with the standard deviations of T5's feed-forward layers."""
        generator = torch.Generator().manual_seed(seed)
        for weight in (self.first, self.second):
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states of shape (..., width) to (..., count, width)."""
        inner = torch.relu(torch.einsum("...w,kwi->...ki", hidden, self.first))
        return hidden.unsqueeze(-2) + torch.einsum("...ki,kiw->...kw", inner, self.second)


class ExitClassifier(torch.nn.Module):
    """Predicts whether a layer already agrees with the last one, from the normed hidden state (CALM)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states of shape (..., width) to logits of the probability, (...)."""
        return hidden.to(self.weight.dtype) @ self.weight + self.bias


def heads_of(model: PreTrainedModel) -> ParallelHeads | None:
    """Return the draft heads of a model, or None."""
    return getattr(model, _HEADS, None)


def classifier_of(model: PreTrainedModel) -> ExitClassifier | None:
    """Return the exit classifier of a model, or None."""
    return getattr(model, _CLASSIFIER, None)


def add_heads(model: PreTrainedModel, count: int, seed: int) -> None:
    """Add `count` new draft heads to a T5-style model, unless it has that many already."""
    there = heads_of(model)
    if there is None or there.count != count:
        heads = ParallelHeads(count, model.config.d_model, model.config.d_ff)
        heads.initialise(seed)
        setattr(model, _HEADS, heads.to(model.device))


def add_classifier(model: PreTrainedModel) -> None:
    """Add a new exit classifier to a T5-style model, unless it has one."""
    if classifier_of(model) is None:
        setattr(model, _CLASSIFIER, ExitClassifier(model.config.d_model).to(model.device))


def own_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the state of a model without the modules of this file."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.partition(".")[0] not in _FILES}


def save_extras(model: PreTrainedModel, folder: Path) -> None:
    """Write one file each for the modules of this file that the model has."""
    from safetensors.torch import save_file

    for name, (file, _) in _FILES.items():
        extra = getattr(model, name, None)
        if extra is not None:
            save_file({key: tensor.contiguous() for key, tensor in extra.state_dict().items()}, folder / file)


def load_extras(model: PreTrainedModel, folder: Path) -> None:
    """Attach the modules that `save_extras` wrote to the folder, in the model's precision and on its device.

    Raises:
        InputError: a file is damaged or belongs to a model of another width.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name, (file, build) in _FILES.items():
        if not (folder / file).is_file():
            continue
        try:
            weights = load_file(folder / file)
            extra = build(model.config.get_text_config().hidden_size, weights)
            extra.load_state_dict(weights)
        except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"{folder / file} does not fit the model in that folder: {reason}; train it again") from None
        setattr(model, name, extra.to(device=model.device, dtype=model.dtype).eval())


_FILES: dict[str, tuple[str, Callable[[int, dict[str, Tensor]], torch.nn.Module]]] = {
    _HEADS: ("heads.safetensors", lambda width, found: ParallelHeads(len(found["first"]), width, found["first"].shape[2])),
    _CLASSIFIER: ("exit_classifier.safetensors", lambda width, _: ExitClassifier(width)),
}

FILES = tuple(file for file, _ in _FILES.values())
"""Files of a model's folder that hold them."""
