"""A drafter that reads the large model's encoder: what is frozen, what its folder says, what is in memory once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.models.checkpoints import load_model, save_model
from tasks.models.layers import check_layers, keep_encoder_once, model_from_layers, reads_large_encoder, shared_parameters
from tasks.models.pruned_head import prune_head
from tasks.models.settings import LayersSettings
from tasks.training.data import Batch
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.architectures import bart, gpt2, mt5

SHARED = LayersSettings(layers=(1,), share_encoder=True)
T5_EMBEDDING = {"shared.weight", "decoder.embed_tokens.weight"}
BATCH = Batch(torch.tensor([[5, 7, 3, 9]]), torch.ones(1, 4, dtype=torch.long), torch.tensor([[8, 2, 6, 4]]))


def tied_bart() -> Any:
    """With one embedding for encoder, decoder and head, as BART's checkpoints have it."""
    model = bart(3)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    return model


def large(name: str) -> Any:
    torch.manual_seed(0)
    model = tied_bart() if name == "bart" else mt5(3, "t5")
    if name == "own head":
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model.eval()


def trained(model: Any) -> set[str]:
    """Names of the weights that change in a step of training with weight decay."""
    objective = Objective(model, TrainingSettings())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.1, weight_decay=0.1)
    torch.autograd.backward(objective.train()(BATCH, objective.counts([BATCH])))
    optimizer.step()
    return {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}


@pytest.mark.parametrize(
    ("name", "pruned", "frozen"),
    [
        ("t5", False, T5_EMBEDDING),
        ("t5", True, T5_EMBEDDING),
        ("own head", True, T5_EMBEDDING),
        ("bart", False, {"model.shared.weight", "model.decoder.embed_tokens.weight"}),
    ],
)
def test_the_encoder_and_what_is_tied_to_it_are_frozen(name: str, pruned: bool, frozen: set[str]) -> None:
    model = large(name)
    small = model_from_layers(model, SHARED)
    if pruned:
        prune_head(small, range(16))
    changed = trained(small)
    assert not changed & frozen
    assert not any(weight.startswith(("encoder.", "model.encoder.")) for weight in changed)
    assert "lm_head.weight" in changed
    assert sum("decoder" in weight for weight in changed) > 10
    ours, theirs = small.get_encoder().state_dict(), model.get_encoder().state_dict()
    assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)


def test_without_the_setting_all_is_trained() -> None:
    small = model_from_layers(large("t5"), LayersSettings(layers=(1,)))
    assert not reads_large_encoder(small)
    assert "shared.weight" in trained(small)


def test_a_frozen_encoder_has_no_dropout() -> None:
    objective = Objective(model_from_layers(large("t5"), SHARED), TrainingSettings()).train()
    assert not any(module.training for module in objective.model.get_encoder().modules())
    assert all(module.training for module in objective.model.get_decoder().modules() if isinstance(module, torch.nn.Dropout))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_folder_says_so(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    model = large(name)
    small = model_from_layers(model, SHARED)
    trained(small)
    save_model(small, tokenizer, tmp_path / "small")
    loaded = load_model(tmp_path / "small")
    assert reads_large_encoder(loaded)
    assert loaded.state_dict().keys() == small.state_dict().keys()
    assert all(torch.equal(weight, small.state_dict()[key]) for key, weight in loaded.state_dict().items())
    assert loaded.lm_head.weight is not loaded.get_input_embeddings().weight is loaded.get_encoder().embed_tokens.weight
    assert not caplog.records
    assert not reads_large_encoder(model)


def test_layers_of_a_model_with_a_head_of_its_own_keep_it_and_the_embedding() -> None:
    """`transformers` ties the two in every new T5, so that copying the one would overwrite the other."""
    model = large("own head")
    small = model_from_layers(model, LayersSettings(layers=(0, 1, 2)))
    assert torch.equal(small.lm_head.weight, model.lm_head.weight)
    assert torch.equal(small.shared.weight, model.shared.weight)
    tied = model_from_layers(large("t5"), LayersSettings(layers=(0,)))
    assert tied.lm_head.weight is tied.shared.weight


def test_an_encoder_is_kept_in_memory_once() -> None:
    model = large("own head")
    small = copy.deepcopy(model_from_layers(model, SHARED))
    assert shared_parameters(small, model) == 0
    before = {name: weight.clone() for name, weight in small.state_dict().items()}
    keep_encoder_once(small, model)
    encoder = sum(weight.numel() for weight in model.get_encoder().parameters())
    assert shared_parameters(small, model) == encoder >= model.shared.weight.numel()
    assert small.decoder.embed_tokens.weight.data_ptr() == model.shared.weight.data_ptr()
    assert all(torch.equal(weight, before[name]) for name, weight in small.state_dict().items())


def test_settings_that_cannot_share_an_encoder_are_refused() -> None:
    with pytest.raises(ValueError, match="share_encoder takes the whole encoder; leave encoder_layers out"):
        LayersSettings(layers=(0,), encoder_layers=(0,), share_encoder=True)
    with pytest.raises(InputError, match="names share_encoder, but the large model, a gpt2, has no encoder; leave it out"):
        check_layers(gpt2(4), SHARED)
