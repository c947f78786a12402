"""CALM equals a plain implementation without caches; its confidences by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import REFERENCE
from tasks.decoding.drafters.layers import EarlyExitDecoder, saturation, top_two_gap
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.registry import decode, decode_all
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.errors import InputError
from tasks.models.extras import add_classifier
from tests.architectures import models
from tests.toys import END, START, Toys, prefix_pair, says, toy_sources, toy_t5

LAYERS = 4
CONFIDENCES = ("softmax", "saturation", "classifier")


@pytest.fixture(scope="module")
def model() -> Any:
    """A T5 of four decoder layers with a classifier that is sometimes confident."""
    made = toy_t5(5, 1, LAYERS, "gated-gelu")
    add_classifier(made)
    with torch.no_grad():
        made.exit_classifier.weight.copy_(torch.randn(32, generator=torch.Generator().manual_seed(0)) / 3)
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def pair(model: Any) -> Pair:
    large = TransformersDecoder(model, "large")
    return Pair(large, large)


# A plain implementation that stores the input of each layer for each token instead of keys and values.


@torch.no_grad()
def calm(
    model: Any, source: list[int], sure: Callable[[Tensor, Tensor | None, Tensor], float], settings: CalmSettings, limit: int
) -> tuple[list[int], int]:
    """CALM as its paper describes it, token by token and layer by layer: the text, and how many layers ran."""
    encoder_output = model.encoder(input_ids=torch.tensor([source])).last_hidden_state
    stack, text, layers = model.decoder, [START], 0
    entering: list[list[Tensor]] = []
    """The input of each layer for each token; after an exit, the state at the exit."""
    while text[-1] != END and len(text) - 1 < limit:
        position = len(text) - 1
        threshold = 0.9 * settings.threshold + 0.1 * math.exp(-settings.decay * position / limit)
        bias = stack.block[0].layer[0].SelfAttention.compute_bias(position + 1, position + 1)
        hidden, states, done = stack.embed_tokens(torch.tensor([text[-1]])), [], False
        for depth, block in enumerate(stack.block, start=1):
            states.append(hidden)
            if done:
                continue
            below = torch.cat([earlier[depth - 1] for earlier in entering] + [hidden])
            # All tokens pass the layer again, from what entered it; the last one's output is new.
            before, hidden = hidden, block(below[None], None, bias, encoder_output)[0][0, -1:]
            layers += 1
            own = stack.final_layer_norm(hidden)
            if depth < LAYERS:
                done = sure(hidden, before if depth > 1 else None, own) > threshold
        entering.append(states)
        text.append(int(model.lm_head(own)[0].argmax()))
    return text[1:], layers


def sureness(model: Any, kind: str) -> Callable[[Tensor, Tensor | None, Tensor], float]:
    def softmax(hidden: Tensor, before: Tensor | None, own: Tensor) -> float:
        first, second = torch.softmax(model.lm_head(own)[0], -1).sort(descending=True).values[:2].tolist()
        return float(first - second)

    def cosine(hidden: Tensor, before: Tensor | None, own: Tensor) -> float:
        if before is None:
            return 0.0
        return float((hidden * before).sum() / hidden.norm() / before.norm())

    def classifier(hidden: Tensor, before: Tensor | None, own: Tensor) -> float:
        return 1 / (1 + math.exp(-float(own[0] @ model.exit_classifier.weight + model.exit_classifier.bias)))

    return {"softmax": softmax, "saturation": cosine, "classifier": classifier}[kind]


@pytest.mark.parametrize("settings", [{"threshold": 0.3}, {"threshold": 0.7, "decay": 1.0}, {"threshold": 0.95, "decay": 8.0}])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_decoder_equals_calm_without_caches(model: Any, pair: Pair, confidence: str, settings: dict[str, float]) -> None:
    chosen = CalmSettings(confidence=confidence, **settings)
    sources = toy_sources(4, seed=3)
    expected = [calm(model, source, sureness(model, confidence), chosen, 14) for source in sources]
    generations = decode("calm", chosen, pair, sources, Request(14))
    assert [(one.tokens, one.counts.layers) for one in generations] == expected


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=0.9)], ids=["greedy", "sampled"])
def test_rows_exit_as_they_do_alone(pair: Pair, confidence: str, sampling: SamplingSettings) -> None:
    settings, sources = CalmSettings(confidence=confidence, threshold=0.7), toy_sources(5, seed=9)
    request = Request(12, sampling)
    alone = [decode("calm", settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({one.counts.layers for one in alone}) > 2
    for batch_size in (3, 5):
        assert decode_all("calm", settings, pair, sources, request, batch_size) == alone


def test_confidences_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]))
    torch.testing.assert_close(top_two_gap(logits), torch.tensor([0.2, 0.7]))
    now, before = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]]), torch.tensor([[[4.0, 3.0]], [[-2.0, 0.0]]])
    torch.testing.assert_close(saturation(now, before), torch.tensor([0.96, -1.0]))
    assert saturation(now, None).tolist() == [0.0, 0.0]
    assert float(saturation(now, now).max()) <= 1.0


def test_only_one_token_per_run(pair: Pair) -> None:
    assert isinstance(pair.large, TransformersDecoder)
    decoder = EarlyExitDecoder(pair.large, "softmax", 0.9, 4.0, limit=5)
    decoder.start(decoder.encode(toy_sources(1)))
    with pytest.raises(ValueError, match="one token for each run"):
        decoder.forward([[START, 4]])


def test_unsupported_models_are_refused(toys: Toys) -> None:
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    shape = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 1, "num_decoder_layers": 2}
    umt5 = UMT5ForConditionalGeneration(UMT5Config(vocab_size=24, **shape)).eval()
    refused = [
        (prefix_pair(says([2]), says([2])).large, "calm needs the layers of a T5 or mT5, which the large model does not give"),
        (open_decoder(models("gpt2")[1], "large"), "calm takes T5 and mT5, but the model is of type gpt2"),
        (open_decoder(models("gpt2")[1], "large", runtime=REFERENCE), "calm takes T5 and mT5, but the model is of type gpt2"),
        (open_decoder(umt5, "large"), "calm takes T5 and mT5, but the model is of type umt5"),
    ]
    for large, message in refused:
        with pytest.raises(InputError, match=message):
            decode("calm", CalmSettings(), Pair(large, large), toy_sources(1), Request(5))
    with pytest.raises(InputError, match=r"confidence is classifier, but none was trained .* exit_classifier"):
        decode("calm", CalmSettings(confidence="classifier"), toys.cached, toy_sources(1), Request(5))
