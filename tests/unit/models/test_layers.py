"""Single layers of a model, small models of the large one's layers, and drafters that read the large model's encoder."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.models import layers
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.layers import decoder_layers, first_layers, model_from_layers, predict, reads_large_encoder
from tasks.models.pruned_head import prune_head
from tasks.models.settings import LayersSettings, ModelSettings
from tasks.training.data import Batch
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.architectures import bart, gpt2, llama, mt5
from tests.toys import toy_t5
from tests.training import same_weights

_T5 = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 1, "num_decoder_layers": 3}
TOKENS = torch.tensor([[0, 7, 3, 9]])


def t5_like(kind: str, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**_T5 | changes, vocab_size=24, decoder_start_token_id=0)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()


def logits_of(model: Any) -> torch.Tensor:
    inputs = {"input_ids": TOKENS, "decoder_input_ids": TOKENS} if model.config.is_encoder_decoder else {"input_ids": TOKENS}
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits
    return logits


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("T5", {"tie_word_embeddings": True}),
        ("T5", {"tie_word_embeddings": False}),
        ("MT5", {}),
        ("UMT5", {"tie_word_embeddings": True}),
        ("UMT5", {"tie_word_embeddings": False}),
        ("LongT5", {"tie_word_embeddings": True}),
    ],
)
def test_the_shared_head_is_the_model_s_own(kind: str, changes: dict[str, bool]) -> None:
    model = t5_like(kind, **changes)
    with torch.no_grad():
        run = model(input_ids=TOKENS, decoder_input_ids=TOKENS, output_hidden_states=True)
        torch.testing.assert_close(predict(model, run.decoder_hidden_states[-1]), run.logits)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("make", [bart, gpt2, llama])
def test_first_layers_are_a_shallow_model_with_the_same_weights(make: Any, count: int) -> None:
    whole = make(3).eval()
    before = logits_of(whole)
    view = first_layers(whole, count)
    shallow = make(count).eval()
    shallow.load_state_dict(whole.state_dict(), strict=False)
    torch.testing.assert_close(logits_of(view), logits_of(shallow))
    assert not torch.allclose(logits_of(view), before)
    assert torch.equal(logits_of(whole), before)
    assert len(decoder_layers(whole)) == 3
    assert len(decoder_layers(view)) == count


def test_first_layers_of_a_t5_end_in_its_norm_and_head() -> None:
    whole = toy_t5(2, 1, 3, "gated-gelu")
    with torch.no_grad():
        states = whole(input_ids=TOKENS, decoder_input_ids=TOKENS, output_hidden_states=True).decoder_hidden_states
        for count in (1, 2):
            expected = predict(whole, layers.normed(whole, states[count]))
            torch.testing.assert_close(logits_of(first_layers(whole, count)), expected)


def test_a_view_shares_every_weight() -> None:
    whole = toy_t5(2, 1, 3)
    view = first_layers(whole, 1)
    ours = {parameter.data_ptr() for parameter in view.parameters()}
    assert ours < {parameter.data_ptr() for parameter in whole.parameters()}
    before = logits_of(view)
    with torch.no_grad():
        whole.decoder.block[0].layer[0].SelfAttention.v.weight.add_(1)
    assert not torch.allclose(logits_of(view), before)


def test_the_exit_layer_is_read_from_the_configuration() -> None:
    model = toy_t5(2, 1, 3)
    assert layers.exit_layer_of(model) == 1
    model.config.exit_layer = 2
    assert layers.exit_layer_of(model) == 2
    for wrong in (0, 3, 4):
        model.config.exit_layer = wrong
        with pytest.raises(InputError, match=f"exit_layer is {wrong}, but the decoder has 3 layers"):
            layers.exit_layer_of(model)


def test_a_model_without_layers_is_named() -> None:
    with pytest.raises(InputError, match="the decoder layers of a model of type Linear cannot be located"):
        first_layers(torch.nn.Linear(1, 1), 1)


BUILD: dict[str, Any] = {
    "llama": lambda: llama(4, tie_word_embeddings=True),
    "gpt2": lambda: gpt2(4),
    "t5": lambda: mt5(4, "t5"),
    "bart": lambda: bart(4),
}
every_kind = pytest.mark.parametrize("name", BUILD)


def whole_model(name: str) -> Any:
    torch.manual_seed(0)
    return BUILD[name]().eval()


@every_kind
def test_all_layers_are_the_large_model(name: str) -> None:
    model = whole_model(name)
    small = model_from_layers(model, LayersSettings(layers=(0, 1, 2, 3)))
    assert torch.equal(logits_of(small), logits_of(model))
    assert not any(one.data_ptr() == two.data_ptr() for one, two in zip(small.parameters(), model.parameters(), strict=True))


@every_kind
def test_layers_left_out_are_skipped(name: str) -> None:
    """The large model without its first and third layer is the small one, though T5 keeps its position biases in the first."""
    model = whole_model(name)
    small = model_from_layers(model, LayersSettings(layers=(1, 3)))
    skipped = copy.deepcopy(model)
    layers: Any = decoder_layers(skipped)
    kept = [layers[index] for index in (1, 3)]
    if name == "t5":
        bias = layers[0].layer[0].SelfAttention.relative_attention_bias
        kept[0].layer[0].SelfAttention.relative_attention_bias = bias
        kept[0].layer[0].SelfAttention.has_relative_attention_bias = True
    del layers[:]
    layers.extend(kept)
    assert len(decoder_layers(small)) == 2
    torch.testing.assert_close(logits_of(small), logits_of(skipped), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_it_generates_with_a_cache(name: str) -> None:
    small = model_from_layers(whole_model(name), LayersSettings(layers=(0, 2)))
    asked = {"input_ids": torch.tensor([[5, 7, 3]]), "max_new_tokens": 5, "do_sample": False}
    assert small.generate(**asked).tolist() == small.generate(**asked, use_cache=False).tolist()


def test_encoder_layers_are_chosen_too() -> None:
    model = t5_like("T5", num_layers=3, decoder_layers=3)
    small = model_from_layers(model, LayersSettings(layers=(1,), encoder_layers=(0, 2)))
    assert (small.config.num_layers, small.config.num_decoder_layers, small.config.decoder_layers) == (2, 1, 1)
    assert same_weights(small.encoder.block[1], model.encoder.block[2])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama", LayersSettings(layers=(0, 4)), "layers names 4, but the large model has 4 decoder layers, 0 to 3"),
        ("t5", LayersSettings(layers=(0,), encoder_layers=(1,)), "encoder_layers names 1, but the large model has 1 encoder"),
        ("gpt2", LayersSettings(layers=(0,), share_encoder=True), "names share_encoder, but the large model, a gpt2, has no"),
        ("gpt2", LayersSettings(layers=(0,), encoder_layers=(0,)), "encoder_layers, but the large model, a gpt2, has no"),
    ],
)
def test_layers_that_do_not_exist_are_one_line(name: str, settings: LayersSettings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers.check_layers(whole_model(name), settings)


def test_settings_that_make_no_sense_are_refused() -> None:
    for chosen in ((), (2, 1), (1, 1)):
        with pytest.raises(ValueError, match="at least one layer, each once, in ascending order"):
            LayersSettings(layers=chosen)
    with pytest.raises(ValueError, match="pretrained and from_large both say where the model starts"):
        ModelSettings(pretrained="a", from_large=LayersSettings(layers=(0,)))
    with pytest.raises(ValueError, match="share_encoder takes the whole encoder; leave encoder_layers out"):
        LayersSettings(layers=(0,), encoder_layers=(0,), share_encoder=True)


def test_a_start_reads_the_large_model_s_folder(tokenizer: Any, tmp_path: Path) -> None:
    model = whole_model("llama")
    save_model(model, tokenizer, tmp_path / "large")
    settings = ModelSettings(from_large=LayersSettings(layers=(3,)))
    small = initial_model(settings, 24, 0, 1, tmp_path / "large")
    assert torch.equal(small.model.layers[0].mlp.up_proj.weight, model.model.layers[3].mlp.up_proj.weight)
    assert small.lm_head.weight is small.model.embed_tokens.weight
    with pytest.raises(InputError, match="set it for models"):
        initial_model(settings, 24, 0, 1)


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
def test_the_folder_says_so(name: str, tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = large(name)
    small = model_from_layers(model, SHARED)
    trained(small)
    save_model(small, tokenizer, tmp_path / "small")
    loaded = load_model(tmp_path / "small")
    assert reads_large_encoder(loaded)
    assert same_weights(loaded, small)
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
    assert layers.shared_parameters(small, model) == 0
    before = {name: weight.clone() for name, weight in small.state_dict().items()}
    layers.keep_encoder_once(small, model)
    encoder = sum(weight.numel() for weight in model.get_encoder().parameters())
    assert layers.shared_parameters(small, model) == encoder >= model.shared.weight.numel()
    assert small.decoder.embed_tokens.weight.data_ptr() == model.shared.weight.data_ptr()
    assert all(torch.equal(weight, before[name]) for name, weight in small.state_dict().items())
