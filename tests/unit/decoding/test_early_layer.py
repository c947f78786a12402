"""The large model's first layers as drafter: BiLD's early exit (4.4); exact methods keep their output."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters.layers import early_layer_drafter
from tasks.decoding.generation import total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.errors import InputError
from tasks.models.layers import first_layers
from tests.toys import END, START, prefix_pair, says, toy_sources, toy_t5

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)


def deep_t5(exit_layer: int = 1) -> Any:
    model = toy_t5(5, 2, 4, "gated-gelu")
    model.config.exit_layer = exit_layer
    return model


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("architecture", ["t5", "bart", "gpt2"])
def test_it_equals_a_small_model_made_of_those_layers(architecture: str, sampling: SamplingSettings) -> None:
    model = {"t5": deep_t5, "bart": bart, "gpt2": gpt2}[architecture]()
    sources, request = toy_sources(12, seed=4), Request(10, sampling, seed=3)
    large = open_decoder(model, "large")
    pair = Pair(open_decoder(first_layers(model, 1), "small"), large)
    drafted = [
        decode("speculative", SpeculativeSettings(drafter=drafter, draft_length=3), pair, sources, request)
        for drafter in ("small", "early_layer")
    ]
    assert drafted[0] == drafted[1]
    assert total(drafted[0]).accepted > 0


def test_the_source_is_encoded_once() -> None:
    class Counting(TransformersDecoder):
        encoded = 0

        def encode(self, sources: Rows) -> EncoderOutput:
            type(self).encoded += 1
            return super().encode(sources)

    large = Counting(deep_t5(), "large")
    model, runs = large.model, []
    handle = model.encoder.register_forward_hook(lambda *_: runs.append(1))
    decode("speculative", SpeculativeSettings(drafter="early_layer"), Pair(large, large), toy_sources(4), Request(8))
    handle.remove()
    assert len(runs) == Counting.encoded == 1


def test_models_with_too_few_layers_are_refused() -> None:
    sampling, source = SamplingSettings(), TokenSource(0)
    with pytest.raises(InputError, match="needs the layers of a transformers model, which the large one is not"):
        early_layer_drafter(prefix_pair(says([2]), says([2])).large, sampling, source)
    with pytest.raises(InputError, match="exit_layer is 1, but the decoder has 1 layers"):
        early_layer_drafter(open_decoder(toy_t5(1, 2, 1), "large"), sampling, source)


def bart() -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(3)
    sizes = {"encoder_layers": 1, "decoder_layers": 3, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": START, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    config = BartConfig(vocab_size=24, d_model=16, init_std=0.5, forced_eos_token_id=None, **sizes, **heads, **tokens)
    return BartForConditionalGeneration(config).eval()


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    tokens = {"pad_token_id": START, "bos_token_id": START, "eos_token_id": END}
    config = GPT2Config(vocab_size=24, n_embd=16, n_head=2, n_layer=3, n_positions=32, initializer_range=0.3, **tokens)
    return GPT2LMHeadModel(config).eval()
