"""A small model from layers of the large one: which weights it has, and layers that do not exist."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.layers import check_layers, decoder_layers, model_from_layers
from tasks.models.settings import LayersSettings, ModelSettings
from tests.architectures import bart, gpt2, llama, mt5

BUILD: dict[str, Any] = {
    "llama": lambda: llama(4, tie_word_embeddings=True),
    "gpt2": lambda: gpt2(4),
    "t5": lambda: mt5(4, "t5"),
    "bart": lambda: bart(4),
}
every = pytest.mark.parametrize("name", BUILD)


def large(name: str) -> Any:
    torch.manual_seed(0)
    return BUILD[name]().eval()


def logits(model: Any) -> torch.Tensor:
    tokens = torch.tensor([[5, 7, 3, 9], [8, 2, 6, 4]])
    more = {"decoder_input_ids": tokens.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=tokens, **more).logits
    return found


@every
def test_all_layers_are_the_large_model(name: str) -> None:
    model = large(name)
    small = model_from_layers(model, LayersSettings(layers=(0, 1, 2, 3)))
    assert torch.equal(logits(small), logits(model))
    assert not any(
        one.data_ptr() == other.data_ptr() for one, other in zip(small.parameters(), model.parameters(), strict=True)
    )


@every
def test_layers_left_out_are_skipped(name: str) -> None:
    """The large model without its first and third layer is the small one, though T5 keeps its position biases in the first."""
    model = large(name)
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
    torch.testing.assert_close(logits(small), logits(skipped), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_it_generates_with_a_cache(name: str) -> None:
    small = model_from_layers(large(name), LayersSettings(layers=(0, 2)))
    asked = {"input_ids": torch.tensor([[5, 7, 3]]), "max_new_tokens": 5, "do_sample": False}
    assert small.generate(**asked).tolist() == small.generate(**asked, use_cache=False).tolist()


def test_encoder_layers_are_chosen_too() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    shape = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 3, "num_decoder_layers": 2, "vocab_size": 24}
    model = T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0, decoder_layers=2)).eval()
    small = model_from_layers(model, LayersSettings(layers=(1,), encoder_layers=(0, 2)))
    assert (small.config.num_layers, small.config.num_decoder_layers, small.config.decoder_layers) == (2, 1, 1)
    ours, theirs = small.encoder.block[1].state_dict(), model.encoder.block[2].state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama", LayersSettings(layers=(0, 4)), "layers names 4, but the large model has 4 decoder layers, 0 to 3"),
        ("t5", LayersSettings(layers=(0,), encoder_layers=(1,)), "encoder_layers names 1, but the large model has 1 encoder"),
        (
            "gpt2",
            LayersSettings(layers=(0,), encoder_layers=(0,)),
            "encoder_layers, but the large model, a gpt2, has no encoder",
        ),
    ],
)
def test_layers_that_do_not_exist_are_one_line(name: str, settings: LayersSettings, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_layers(large(name), settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layers", [(), (2, 1), (1, 1)])
def test_layers_are_named_once_and_in_order(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one layer, each once, in ascending order"):
        LayersSettings(layers=layers)


def test_a_model_starts_in_one_way() -> None:
    with pytest.raises(ValueError, match="pretrained and from_large both say where the model starts"):
        ModelSettings(pretrained="a", from_large=LayersSettings(layers=(0,)))


def test_a_start_reads_the_large_model_s_folder(tmp_path: Any) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = large("llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    save_model(model, tokenizer, tmp_path / "large")
    settings = ModelSettings(from_large=LayersSettings(layers=(3,)))
    small = initial_model(settings, 24, 0, 1, tmp_path / "large")
    assert torch.equal(small.model.layers[0].mlp.up_proj.weight, model.model.layers[3].mlp.up_proj.weight)
    assert small.lm_head.weight is small.model.embed_tokens.weight
    with pytest.raises(InputError, match="set it for models"):
        initial_model(settings, 24, 0, 1)
