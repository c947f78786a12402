"""The head of each T5-style model, and the first layers of each architecture as a model of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.models.layers import decoder_layers, exit_layer_of, first_layers, normed, predict, require_layered
from tests.toys import toy_t5

_T5 = {
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 8,
    "num_heads": 2,
    "num_layers": 1,
    "num_decoder_layers": 3,
    "vocab_size": 24,
    "decoder_start_token_id": 0,
}
TOKENS = torch.tensor([[0, 7, 3, 9]])


def t5_like(kind: str, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**_T5, **changes)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()


def bart(layers: int = 3) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=24,
        d_model=16,
        encoder_layers=1,
        decoder_layers=layers,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
    )
    return BartForConditionalGeneration(config).eval()


def gpt2(layers: int = 3) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=16, n_head=2, n_layer=layers, n_positions=16)).eval()


def llama(layers: int = 3) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=24, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=layers)
    return LlamaForCausalLM(config).eval()


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
    whole = make()
    before = logits_of(whole)
    view = first_layers(whole, count)
    shallow = make(count)
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
            expected = predict(whole, normed(whole, states[count]))
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
    assert exit_layer_of(model) == 1
    model.config.exit_layer = 2
    assert exit_layer_of(model) == 2
    for wrong in (0, 3, 4):
        model.config.exit_layer = wrong
        with pytest.raises(InputError, match=f"exit_layer is {wrong}, but the decoder has 3 layers"):
            exit_layer_of(model)


def test_other_architectures_are_named() -> None:
    with pytest.raises(InputError, match="calm takes T5 and mT5, but the model is of type gpt2"):
        require_layered(gpt2(), "calm")
    with pytest.raises(InputError, match="the decoder layers of a model of type Linear cannot be located"):
        first_layers(torch.nn.Linear(1, 1), 1)
