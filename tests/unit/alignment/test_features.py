"""Training on the large model's states: the loss of a chain, and that a drafter learns to read them."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from tasks.alignment.features import ChainLoss, chain_logits
from tasks.alignment.spec import HeldOutAcceptance
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tasks.models.layers import model_from_layers
from tasks.models.pruned_head import prune_head
from tasks.models.settings import LayersSettings
from tasks.training.data import IGNORED, TokenDataset
from tasks.training.objective import CrossEntropyLoss, Objective
from tasks.training.settings import TrainingSettings
from tests.architectures import models
from tests.toys import START, VOCABULARY, toy_sources

CPU = torch.device("cpu")


def reading() -> Any:
    """A drafter of the large toy's first layer, which does not read its states yet, since its projection is new."""
    return model_from_layers(models("llama")[1], LayersSettings(layers=(0,), features=True))


def texts_of(large: Any, count: int) -> TokenDataset:
    sources, decoder = toy_sources(count, seed=1), open_decoder(large, "large")
    texts = decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), sources, Request(10))
    return TokenDataset(sources, [one.tokens for one in texts], START, decoder_only=True)


@pytest.mark.parametrize("pruned", [False, True])
def test_the_loss_weighs_the_tokens_of_a_chain(pruned: bool) -> None:
    small, large = reading(), models("llama")[1]
    torch.nn.init.normal_(small.feature_projection.weight)
    if pruned:
        prune_head(small, range(0, VOCABULARY, 2))
    batch = texts_of(large, 4).batch(range(4))
    objective = Objective(small, TrainingSettings(), ChainLoss(CrossEntropyLoss(), large)).eval()
    with torch.no_grad():
        inside = batch.labels != IGNORED if not pruned else (batch.labels != IGNORED) & (batch.labels % 2 == 0)
        weighted = dataclasses.replace(batch, weights=inside.float())
        each = [CrossEntropyLoss().of_logits(small, weighted, one) for one in chain_logits(small, large, weighted, 3)]
        [whole] = objective.sums(batch)
    assert whole.item() == pytest.approx((each[0] + 0.8 * each[1] + 0.64 * each[2]).item() / 2.44, rel=1e-5)
    assert len({round(one.item(), 3) for one in each}) == 3


def test_a_drafter_learns_to_read_the_states() -> None:
    small, large = reading(), models("llama")[1]
    texts, held_out = texts_of(large, 60), texts_of(large, 60)
    objective = Objective(small, TrainingSettings(), ChainLoss(CrossEntropyLoss(), large))
    optimizer, batch = torch.optim.Adam(small.parameters(), lr=1e-2), texts.batch(range(len(texts)))
    for _ in range(60):
        optimizer.zero_grad()
        objective.train()(batch, objective.counts([batch])).backward()
        optimizer.step()
    measure = HeldOutAcceptance(large, held_out, VOCABULARY, CPU)
    learned = measure(small)["acceptance_greedy"]
    blind = copy.deepcopy(small)
    torch.nn.init.zeros_(blind.feature_projection.weight)
    assert learned > measure(blind)["acceptance_greedy"] + 0.2
    # The large model only shows its states.
    assert all(weight.grad is None for weight in large.parameters())


def test_models_whose_states_cannot_be_read_are_refused() -> None:
    with pytest.raises(InputError, match="features reads the states of a llama, mistral, qwen2 or qwen3, but"):
        model_from_layers(models("gpt2")[1], LayersSettings(layers=(0,), features=True))
    with pytest.raises(ValueError, match="no projection of states"):
        next(chain_logits(models("llama")[0], models("llama")[1], texts_of(models("llama")[1], 2).batch([0, 1]), 1))
