"""What is trained, and on which loss: against runs of the model, of its first layers, and of heads written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.layers import first_layers
from tasks.training import objective as objective_module
from tasks.training.data import IGNORED, Batch
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.toys import END, toy_t5

LAYERS = 3
BATCH = Batch(
    torch.tensor([[5, 6, 7, END], [8, 9, END, 0]]),
    torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    torch.tensor([[4, 3, 2, 9, END], [7, 8, END, IGNORED, IGNORED]]),
)


def objective_of(dropout: float = 0.0, **settings: Any) -> Objective:
    model = toy_t5(3, 1, LAYERS)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return Objective(model, TrainingSettings(**settings))


def loss_of(objective: Objective) -> Tensor:
    loss: Tensor = objective(BATCH, objective.counts([BATCH]))
    return loss


def plain(model: Any) -> float:
    loss: Tensor = model(input_ids=BATCH.source, attention_mask=BATCH.mask, labels=BATCH.labels).loss
    return loss.item()


def shallow(model: Any, layers: int) -> float:
    return plain(model if layers == LAYERS else first_layers(model, layers))


def test_without_anything_else_it_is_the_model_s_loss() -> None:
    objective = objective_of()
    assert loss_of(objective).item() == pytest.approx(plain(objective.model), abs=1e-6)


@pytest.mark.parametrize("exit_layer", [1, 2])
def test_first_and_last(exit_layer: int) -> None:
    """½(L_first + L_last), each the loss of the model that ends there (BiLD, 7.2.1)."""
    objective = objective_of(exit_loss="first_last", exit_layer=exit_layer)
    expected = (shallow(objective.model, exit_layer) + plain(objective.model)) / 2
    assert loss_of(objective).item() == pytest.approx(expected, abs=1e-5)
    assert objective.model.config.exit_layer == exit_layer


def test_all_layers_weighted() -> None:
    objective = objective_of(exit_loss="weighted")
    expected = sum(layer * shallow(objective.model, layer) for layer in (1, 2, 3)) / 6
    assert loss_of(objective).item() == pytest.approx(expected, abs=1e-5)


def heads_by_hand(model: Any, count: int) -> list[float]:
    """Token by token: what each head makes of the last hidden state, against the label that far on."""
    run = model(input_ids=BATCH.source, attention_mask=BATCH.mask, labels=BATCH.labels, output_hidden_states=True)
    losses = []
    for head in range(count):
        found = []
        for row, labels in enumerate(BATCH.labels.tolist()):
            for place in range(len(labels) - head - 1):
                wanted = labels[place + head + 1]
                if wanted == IGNORED:
                    continue
                hidden = run.decoder_hidden_states[-1][row, place]
                inner = torch.relu(hidden @ model.draft_heads.first[head])
                logits = model.lm_head(hidden + inner @ model.draft_heads.second[head])
                found.append(-float(torch.log_softmax(logits, -1)[wanted]))
        losses.append(sum(found) / len(found))
    return losses


def test_heads_of_a_trained_trunk_share_the_mean_with_it() -> None:
    objective = objective_of(draft_heads=2)
    with torch.no_grad():
        parts = [plain(objective.model), *heads_by_hand(objective.model, 2)]
        assert loss_of(objective).item() == pytest.approx(sum(parts) / 3, abs=1e-5)


def test_heads_on_a_frozen_trunk_have_the_mean_alone() -> None:
    objective = objective_of(draft_heads=3, trunk="frozen")
    with torch.no_grad():
        parts = heads_by_hand(objective.model, 3)
        assert loss_of(objective).item() == pytest.approx(sum(parts) / 3, abs=1e-5)


def test_the_classifier_learns_where_layers_agree_and_does_not_train_the_model() -> None:
    objective = objective_of(exit_classifier=True, trunk="trained")
    model = objective.model
    # It starts from even odds, whatever layers agree on.
    assert loss_of(objective).item() == pytest.approx(plain(model) + torch.log(torch.tensor(2.0)).item(), abs=1e-5)
    torch.autograd.backward(loss_of(objective))
    together = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    alone = objective_of()
    torch.autograd.backward(loss_of(alone))
    for name, weight in alone.model.named_parameters():
        torch.testing.assert_close(together.pop(name), weight.grad)
    assert sorted(together) == ["exit_classifier.bias", "exit_classifier.weight"]
    run = model(input_ids=BATCH.source, attention_mask=BATCH.mask, labels=BATCH.labels)
    last, real = run.logits.argmax(-1), BATCH.labels != IGNORED
    agreed = []
    for layers in (1, 2):
        early = first_layers(model, layers)(input_ids=BATCH.source, attention_mask=BATCH.mask, labels=BATCH.labels)
        agreed.append((early.logits.argmax(-1) == last)[real].float().mean())
    # Of the mean cross-entropy at even odds, the slope in the bias is ½ - the share of agreement.
    torch.testing.assert_close(together["exit_classifier.bias"][0], 0.5 - torch.stack(agreed).mean())


@pytest.mark.parametrize("extras", [{"draft_heads": 2}, {"exit_classifier": True}, {"draft_heads": 1, "exit_classifier": True}])
def test_a_frozen_trunk_does_not_change(extras: dict[str, Any]) -> None:
    objective = objective_of(trunk="frozen", dropout=0.5, **extras)
    before = {name: tensor.clone() for name, tensor in objective.model.state_dict().items()}
    optimizer = torch.optim.SGD([weight for weight in objective.parameters() if weight.requires_grad], lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(objective.train())
        losses.append(loss.item())
        torch.autograd.backward(loss)
        optimizer.step()
    assert losses[2] < losses[1] < losses[0], "dropout in a frozen trunk would shake the loss"
    for name, tensor in objective.model.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith(("draft_heads", "exit_classifier")), name


def test_a_trained_trunk_has_dropout() -> None:
    objective = objective_of(dropout=0.5, exit_loss="weighted", draft_heads=1)
    assert loss_of(objective.train()).item() != loss_of(objective).item()
    assert loss_of(objective.eval()).item() == loss_of(objective).item()


def test_extras_without_settings_are_kept() -> None:
    """Heads trained before are kept while a classifier is trained on the same frozen trunk."""
    first = objective_of(draft_heads=2, trunk="frozen")
    heads = first.model.draft_heads.first
    second = Objective(first.model, TrainingSettings(exit_classifier=True, trunk="frozen"))
    assert second.model.draft_heads.first is heads
    assert not heads.requires_grad
    assert {name for name, weight in second.named_parameters() if weight.requires_grad} == {
        "model.exit_classifier.bias",
        "model.exit_classifier.weight",
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"exit_loss": "first_last", "exit_layer": 3}, "exit_layer is 3, but the decoder has 3 layers; it must be less"),
        ({"exit_loss": "first_last", "exit_layer": 7}, "exit_layer is 7"),
    ],
)
def test_a_model_too_shallow(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        objective_of(**settings)


def test_a_single_layer_cannot_exit_early() -> None:
    with pytest.raises(InputError, match="exit_classifier is set, but the decoder has one layer"):
        Objective(toy_t5(3, 1, 1), TrainingSettings(exit_classifier=True))


def test_other_architectures_train_without_extras_alone() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=16, n_head=2, n_layer=2, n_positions=16))
    Objective(model, TrainingSettings())
    refused: list[dict[str, Any]] = [{"exit_loss": "weighted"}, {"draft_heads": 1}, {"exit_classifier": True}]
    for settings in refused:
        with pytest.raises(InputError, match="takes T5 and mT5, but the model is of type gpt2"):
            Objective(model, TrainingSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trunk": "frozen"}, "trunk is frozen, so nothing is trained; set draft_heads or exit_classifier"),
        ({"trunk": "frozen", "draft_heads": 1, "exit_loss": "weighted"}, "exit_loss is weighted, which trains the trunk"),
        ({"exit_loss": "all"}, "exit_loss is 'all'; it must be one of none, first_last, weighted"),
        ({"draft_heads": -1}, "draft_heads is -1; it must be at least 0"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingSettings(**settings)


@pytest.mark.parametrize(
    ("native", "precision", "half"), [(True, "auto", True), (False, "auto", False), (True, "float32", False)]
)
def test_auto_takes_bfloat16_where_the_processor_multiplies_it(
    native: bool, precision: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective_module, "multiplies_bfloat16", lambda _device: native)
    objective = objective_of(precision=precision)
    expected = plain(objective.model)
    assert (loss_of(objective).item() != pytest.approx(expected, abs=1e-6)) is half
    assert loss_of(objective).item() == pytest.approx(expected, rel=2e-2)
    assert objective.model.config._attn_implementation == ("eager" if half else "sdpa")


@pytest.mark.parametrize(("capabilities", "found"), [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({}, False)])
def test_native_bfloat16_is_read_from_the_processor(
    capabilities: dict[str, bool], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert objective_module.multiplies_bfloat16(torch.device("cpu")) is found
