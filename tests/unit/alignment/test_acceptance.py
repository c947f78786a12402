"""Held-out acceptance: by hand on hand-made logits, and by whole forward passes of real models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment import acceptance
from tasks.alignment.acceptance import HeldOutAcceptance, overlap
from tasks.training.data import TokenDataset
from tests.architectures import gpt2
from tests.toys import toy_t5

CPU = torch.device("cpu")


class Says(torch.nn.Module):
    """A model that predicts the same distribution everywhere."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(probabilities).log()
        self.config = SimpleNamespace(is_encoder_decoder=True)
        self.runs = 0

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return labels

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, use_cache: bool) -> Any:
        self.runs += 1
        return SimpleNamespace(logits=self.logits.expand(*decoder_input_ids.shape, -1))


def texts_of(targets: list[list[int]], decoder_only: bool = False) -> TokenDataset:
    """Targets given as ids, with sources of one to three tokens."""
    return TokenDataset([[5, 6, 1][: 1 + index % 3] for index in range(len(targets))], targets, 0, decoder_only=decoder_only)


def measured(large: Any, drafter: Any, texts: TokenDataset, vocabulary: int) -> dict[str, float]:
    return HeldOutAcceptance(large, texts, vocabulary, CPU)(drafter)


def test_the_overlap_of_two_distributions_is_the_mass_that_they_share() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.5, 0.25], [0.0, 0.5, 0.5]])
    assert overlap(p, q).tolist() == [0.75, 0.0]


def test_acceptance_is_the_mean_over_positions_not_over_texts() -> None:
    texts = texts_of([[3, 1], [3, 4, 5, 1], [1]])
    found = measured(Says([0.5, 0.3, 0.2]), Says([0.2, 0.5, 0.3]), texts, 3)
    assert found == {"acceptance_rate": pytest.approx(0.2 + 0.3 + 0.2), "acceptance_greedy": 0.0}
    assert measured(Says([0.5, 0.3, 0.2]), Says([0.4, 0.3, 0.3]), texts, 3) == {
        "acceptance_rate": pytest.approx(0.9),
        "acceptance_greedy": 1.0,
    }


def test_predictions_past_the_vocabulary_are_cut_before_the_softmax() -> None:
    padded = Says([0.25, 0.15, 0.1, 0.5])
    assert measured(padded, Says([0.5, 0.3, 0.2]), texts_of([[1]]), 3)["acceptance_rate"] == pytest.approx(1.0)


@pytest.mark.parametrize("kept", [True, False])
def test_the_large_model_runs_once_where_its_distributions_fit(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "_MOST_KEPT", 4 * 3 * 300 if kept else 4 * 3 * 300 - 1)
    large, drafter = Says([0.5, 0.3, 0.2]), Says([0.2, 0.5, 0.3])
    measure = HeldOutAcceptance(large, texts_of([[3, 4, 1]] * 100), 3, CPU)
    found = [measure(drafter) for _ in range(3)]
    assert found[0] == found[2] == {"acceptance_rate": pytest.approx(0.7), "acceptance_greedy": 0.0}
    assert (large.runs, drafter.runs) == (2 if kept else 6, 6)


def by_single_steps(model: Any, source: list[int], target: list[int], decoder_only: bool) -> list[Tensor]:
    """The distribution before each token of the target, each from a forward pass of its own over what precedes it."""
    found = []
    for place in range(len(target)):
        if decoder_only:
            logits = model(input_ids=torch.tensor([source + target[:place]])).logits
        else:
            begun = torch.tensor([[model.config.decoder_start_token_id, *target[:place]]])
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=begun).logits
        found.append(logits[0, -1].softmax(-1))
    return found


@pytest.mark.parametrize("decoder_only", [False, True], ids=["encoder-decoder", "decoder-only"])
@torch.inference_mode()
def test_batches_give_what_whole_forward_passes_give_token_by_token(decoder_only: bool) -> None:
    if decoder_only:
        large, drafter = gpt2(2).eval(), gpt2(1).eval()
    else:
        large, drafter = toy_t5(0, 1, 2).eval(), toy_t5(1, 1, 1).eval()
    texts = texts_of([[3, 4, 5, 1], [7, 1], [2, 2, 6, 4, 1]], decoder_only)
    vocabulary = large.config.vocab_size
    shared, agreed = [], []
    for source, target in zip(texts.sources, texts.targets, strict=True):
        ps, qs = (by_single_steps(model, source, target, decoder_only) for model in (large, drafter))
        shared += [float(torch.minimum(p, q).sum()) for p, q in zip(ps, qs, strict=True)]
        agreed += [float(p.argmax() == q.argmax()) for p, q in zip(ps, qs, strict=True)]
    found = measured(large, drafter, texts, vocabulary)
    assert found["acceptance_rate"] == pytest.approx(sum(shared) / 11, abs=1e-5)
    assert found["acceptance_greedy"] == pytest.approx(sum(agreed) / 11)
    assert measured(large, large, texts, vocabulary)["acceptance_rate"] == pytest.approx(1.0, abs=1e-5)
