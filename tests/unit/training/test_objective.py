"""What is trained, on which loss: against runs of the model, of its first layers, of heads written out, and by hand."""

import copy
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model
from tasks.models.layers import first_layers
from tasks.models.settings import ModelSettings
from tasks.training import objective as objective_module
from tasks.training.data import IGNORED, Batch, TokenDataset
from tasks.training.objective import AuxiliaryLoss, CrossEntropyLoss, Objective, check_model, head_loss_sums
from tasks.training.settings import TrainingSettings
from tests.architectures import bart, gpt2, llama
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


@pytest.mark.parametrize(("heads", "trunk"), [(2, "trained"), (3, "frozen")])
def test_heads_share_the_mean_with_a_trained_trunk_alone(heads: int, trunk: str) -> None:
    objective = objective_of(draft_heads=heads, trunk=trunk)
    with torch.no_grad():
        parts = [plain(objective.model)] * (trunk == "trained") + heads_by_hand(objective.model, heads)
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


EVERY = {"exit_loss": "weighted", "draft_heads": 2, "exit_classifier": True}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "extras"),
    [(partial(toy_t5, 3, 2), {}), (partial(toy_t5, 3, 2), EVERY), *((one, {}) for one in (bart, gpt2, llama))],
)
def test_activation_checkpointing_keeps_less_and_gives_the_same_gradients(make: Any, extras: Any, precision: str) -> None:
    begun, kept, found = make(LAYERS), list[int](), []

    def count(saved: Tensor) -> Tensor:
        kept[-1] += saved.nbytes
        return saved

    texts = TokenDataset([[5, 6, 7, END], [8, 9, END]], [[4, 3, 2, 9, END], [7, END]], 0)
    texts.decoder_only = not begun.config.is_encoder_decoder
    batch = texts.batch([0, 1])
    for checkpointed in (False, True):
        settings = TrainingSettings(**extras, precision=precision, activation_checkpointing=checkpointed)
        objective = Objective(copy.deepcopy(begun), settings).train()
        kept.append(0)
        torch.manual_seed(1)  # of dropout
        with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
            loss = objective(batch, objective.counts([batch]))
        torch.autograd.backward(loss)
        found.append([loss, *(weight.grad for weight in objective.parameters())])
    torch.testing.assert_close(found[1], found[0])
    assert kept[1] < kept[0]


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


def refused(model: Any, words: str, device: str = "cpu", *, random_start: bool = False, **settings: Any) -> None:
    with pytest.raises(InputError, match=f"the small model.* {words}"):
        check_model(model, "small", TrainingSettings(**settings), torch.device(device), random_start=random_start)


def of_type(kind: str, **config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(model_type=kind, **config))


def test_models_too_shallow_or_of_another_kind_are_refused() -> None:
    deep, flat, other = toy_t5(3, 1, 3), toy_t5(3, 1, 1), of_type("gpt2")
    refused(deep, "exit_layer is 3, but the decoder has 3 layers; it must be less", exit_loss="first_last", exit_layer=3)
    refused(flat, "exit_classifier is set, but the decoder has one layer", exit_classifier=True)
    for settings in ({"exit_loss": "weighted"}, {"draft_heads": 1}, {"exit_classifier": True}):
        refused(
            other, "exit_loss, draft_heads and exit_classifier need the layers of a t5, but the model is a gpt2", **settings
        )
    check_model(other, "small", TrainingSettings(), torch.device("cpu"))
    refused(deep, "trunk is frozen, but the model starts from random", random_start=True, trunk="frozen", draft_heads=1)
    check_model(deep, "small", TrainingSettings(trunk="frozen", draft_heads=1), torch.device("cpu"))
    unable = SimpleNamespace(config=other.config, supports_gradient_checkpointing=False)
    refused(
        unable, "activation_checkpointing is true, but transformers cannot do that for a gpt2", activation_checkpointing=True
    )
    refused(of_type("fsmt"), "is of type fsmt, which transformers trains on its source")


def test_float16_is_refused_where_it_cannot_train() -> None:
    for kind in ("t5", "mt5", "umt5", "longt5"):
        refused(of_type(kind), "precision is float16, in which the activations of a", "cuda", precision="float16")
    refused(of_type("gpt2"), "precision is float16, which needs a GPU, but training runs on the CPU", precision="float16")
    encoder = of_type("bart", shares_encoder=True)
    with pytest.raises(InputError, match="the small model's encoder stays the large model's; set precision to"):
        check_model(encoder, "small", TrainingSettings(precision="float16"), torch.device("cuda"))
    for precision, device in (("float16", "cuda"), ("float32", "cpu"), ("bfloat16", "cpu")):
        check_model(of_type("gpt2"), "small", TrainingSettings(precision=precision), torch.device(device))


@pytest.mark.parametrize(
    ("native", "precision", "half"), [(True, "auto", True), (False, "auto", False), (True, "float32", False)]
)
def test_auto_is_bfloat16_where_it_is_fast(native: bool, precision: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective_module, "multiplies_bfloat16", lambda _device: native)
    objective = objective_of(precision=precision)
    expected = plain(objective.model)
    assert (loss_of(objective).item() != pytest.approx(expected, abs=1e-6)) is half
    assert loss_of(objective).item() == pytest.approx(expected, rel=2e-2)
    assert objective.model.config._attn_implementation == ("eager" if half else "sdpa")


@pytest.mark.parametrize(("capabilities", "found"), [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({}, False)])
def test_native_bfloat16_is_the_processors(capabilities: dict[str, bool], found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert objective_module.multiplies_bfloat16(torch.device("cpu")) is found


def logits_of(probabilities: list[float], positions: int) -> Tensor:
    """(1, positions, vocabulary): the same prediction everywhere."""
    return torch.tensor(probabilities).log().expand(1, positions, -1)


def labelled(*labels: int, weights: list[float] | None = None) -> Batch:
    """One example; its source does not matter."""
    weighed = None if weights is None else torch.tensor([weights])
    return Batch(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long), torch.tensor([labels]), weighed)


def test_a_head_uses_the_weights_of_the_labels_that_it_predicts() -> None:
    logits = logits_of([0.5, 0.25, 0.25], 3)[:, :, None]
    (head,) = head_loss_sums(logits, labelled(0, 1, 2, weights=[5.0, 1.0, 0.5]))
    assert head.item() == pytest.approx(1.5 * math.log(4))


def test_heads_that_look_past_every_text_lose_nothing() -> None:
    logits = torch.zeros(2, 1, 3, 5, requires_grad=True)
    batch = Batch(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[1], [1]]))
    losses = head_loss_sums(logits, batch)
    assert [loss.item() for loss in losses] == [0, 0, 0]
    [gradient] = torch.autograd.grad(torch.stack(losses).sum(), [logits])
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_terms_and_counts_of_a_trunk_two_heads_and_a_classifier() -> None:
    loss = AuxiliaryLoss(TrainingSettings(draft_heads=2, exit_classifier=True))
    assert loss.term_weights() == [1 / 3, 1 / 3, 1 / 3, 1.0]
    assert loss.counts(labelled(3, 4, 5, IGNORED)) == [3, 2, 1, 3]
    frozen = AuxiliaryLoss(TrainingSettings(draft_heads=2, trunk="frozen"))
    assert frozen.term_weights() == [1 / 2, 1 / 2]
    assert frozen.counts(labelled(3, 4, 5, IGNORED)) == [2, 1]


ROWS = [[5, 6, END], [7, END], [8, 9, 4, 5, END], [6, END]]


def model_and_texts(architecture: str) -> tuple[Any, TokenDataset]:
    shape = ModelSettings(architecture=architecture, d_model=16, d_ff=24, d_kv=8, heads=2, decoder_layers=2, encoder_layers=1)
    texts = TokenDataset(ROWS, ROWS[::-1], 0, decoder_only=architecture != "t5")
    return initial_model(shape, 64, 0, END).eval(), texts


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_loss_of_a_decoder_only_model_is_the_targets_alone(architecture: str) -> None:
    """Σ -log p(target token | all before it) over the target tokens, the end token among them."""
    model, examples = model_and_texts(architecture)
    batch = examples.batch([0, 1, 2, 3])
    with torch.inference_mode():
        loss = CrossEntropyLoss().sums(model, batch)[0] / CrossEntropyLoss().counts(batch)[0]
        each = []
        for source, target in zip(examples.sources, examples.targets, strict=True):
            for place, token in enumerate(target):
                logits = model(input_ids=torch.tensor([source + target[:place]])).logits[0, -1]
                each.append(-torch.log_softmax(logits, -1)[token])
    assert float(loss) == pytest.approx(float(torch.stack(each).mean()), abs=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "t5"])
def test_the_head_of_a_decoder_only_model_skips_prompts(architecture: str) -> None:
    model, examples = model_and_texts(architecture)
    multiplied: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: multiplied.append(output.shape[:-1].numel()))
    batch = examples.batch([0, 1, 2, 3])
    CrossEntropyLoss().sums(model, batch)
    targets = int((batch.labels != IGNORED).sum())
    assert multiplied == [batch.labels.numel() if architecture == "t5" else targets]
    if architecture != "t5":
        assert model(input_ids=batch.source).logits.shape[:2] == batch.source.shape
