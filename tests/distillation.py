"""A drafter, a large model and short texts, with the predictions of both at each position: what losses are tested on."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.training.data import Batch, TokenDataset, TopLogitsSource
from tests.architectures import gpt2
from tests.toys import toy_t5

SOURCES = [[5, 6, 1], [7, 1], [8, 9, 4, 1]]
TARGETS = [[3, 4, 5, 1], [7, 1], [2, 2, 6, 4, 1]]
WEIGHTS = [[1.0, 0.1, 0.1, 1.0], [0.5, 0.0], [0.2, 0.2, 1.0, 0.3, 0.3]]
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["encoder-decoder", "decoder-only"])


class Stored:
    """A calibration set's top predictions, made of the distributions themselves."""

    def __init__(self, predicted: list[Tensor], k: int) -> None:
        self._top = [rows.topk(k) for rows in predicted]

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        return self._top[example].indices, self._top[example].values


def pair(causal: bool) -> tuple[Any, Any]:
    """A drafter and a large model."""
    if causal:
        torch.manual_seed(0)
        return gpt2(1).eval(), gpt2(2).eval()
    return toy_t5(1, 1, 1), toy_t5(0, 1, 2)


@torch.inference_mode()
def by_single_steps(model: Any, causal: bool) -> list[Tensor]:
    """log softmax (target positions, vocabulary) of each example, each position from a forward pass of its own."""
    found = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        rows = []
        for place in range(len(target)):
            if causal:
                logits = model(input_ids=torch.tensor([source + target[:place]])).logits
            else:
                begun = torch.tensor([[model.config.decoder_start_token_id, *target[:place]]])
                logits = model(input_ids=torch.tensor([source]), decoder_input_ids=begun).logits
            rows.append(logits[0, -1].log_softmax(-1))
        found.append(torch.stack(rows))
    return found


def whole(causal: bool) -> TokenDataset:
    return TokenDataset(SOURCES, TARGETS, 0, decoder_only=causal)


def whole_batch(causal: bool, *, weighted: bool = False, stored: TopLogitsSource | None = None) -> Batch:
    """All texts in one batch, with `WEIGHTS` at their targets or without."""
    texts = whole(causal)
    texts.stored = stored
    batch = texts.batch(range(3))
    if not weighted:
        return batch
    weights = torch.zeros(batch.labels.shape)
    for row, (source, given) in enumerate(zip(SOURCES, WEIGHTS, strict=True)):
        begin = len(source) if causal else 0
        weights[row, begin : begin + len(given)] = torch.tensor(given)
    return dataclasses.replace(batch, weights=weights)


DRAFTED = [1, 2, 3, 5, 6, 9, 14, 20]
"""A draft vocabulary without two of the labels: 4 and 7."""
