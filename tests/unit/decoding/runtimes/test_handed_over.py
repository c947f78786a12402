"""A native decoder opens in another process from what is saved of it, without its model, and predicts the same to the bit."""

import copy
import io
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Decoder
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.choose import open_decoders
from tasks.models.pruned_head import prune_head
from tests.architectures import FAST, models, pair_of
from tests.toys import toy_sources
from tests.unit.decoding.runtimes.test_shared_encoder import pair_with_one_encoder

SOURCES = toy_sources(4)
BILD = BildSettings(fallback_threshold=0.3)
POSITIONS = (1, 5, 60, 400)


def handed_over(pairs: list[Pair]) -> list[Pair]:
    written = io.BytesIO()
    torch.save(pairs, written)
    written.seek(0)
    found: list[Pair] = torch.load(written, weights_only=False)
    return found


def again(pair: Pair) -> Pair:
    [found] = handed_over([pair])
    assert found.small.capabilities.transformers_model is found.large.capabilities.transformers_model is None
    return found


def logits(decoder: Decoder) -> torch.Tensor:
    encoded = decoder.encode(SOURCES)
    return decoder.forward(decoder.start(encoded)).logits


def require_equal(pair: Pair) -> None:
    other = again(pair)
    assert other.described == pair.described
    for name in ("small", "large"):
        here, there = getattr(pair, name), getattr(other, name)
        assert logits(there).equal(logits(here))
        for fact in ("name", "vocabulary", "end_token", "end_tokens", "pad_token", "start_tokens", "specials", "runtime"):
            assert getattr(there, fact) == getattr(here, fact), fact
    assert decode("bild", BILD, other, SOURCES, Request(12)) == decode("bild", BILD, pair, SOURCES, Request(12))


@pytest.mark.parametrize("name", FAST)
def test_a_pair_of_every_architecture_is_the_same(name: str) -> None:
    require_equal(pair_of(name))


def test_a_shared_encoder_and_a_draft_vocabulary_stay() -> None:
    small, large = pair_with_one_encoder("t5")
    prune_head(small, range(0, 24, 2))
    pair = open_decoders(small, large)
    assert pair.shares_encoder
    require_equal(pair)


def test_pairs_of_one_large_model_still_have_one() -> None:
    one, large = pair_of("t5"), pair_of("t5").large
    first, second = handed_over([one, Pair(one.small, large)])
    assert first.large is second.large


def test_a_copy_runs_on_the_same_weights() -> None:
    decoder: Any = pair_of("t5").large
    other = copy.copy(decoder)
    other.end_token = -1
    assert decoder.end_token != -1
    assert logits(other).equal(logits(decoder))


@pytest.mark.parametrize("name", [name for name in FAST if "t5" in name])
def test_position_biases_are_those_of_the_model(name: str) -> None:
    model: Any = models(name)[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None and blueprint.encoder is not None
    for stack, ours in ((model.encoder, blueprint.encoder), (model.decoder, blueprint.decoder)):
        for longest in POSITIONS:
            # One query in the middle of the keys has every distance.
            bias = stack.block[0].layer[0].SelfAttention.compute_bias(1, 2 * longest + 1, past_seen_tokens=longest)
            assert ours.position_bias is not None and ours.position_bias(longest).equal(bias[0, :, 0])


@pytest.mark.parametrize("name", [name for name in FAST if name.split()[0] in ("llama", "gemma2", "gemma3", "qwen2", "qwen3")])
def test_rotary_angles_are_those_of_the_model(name: str) -> None:
    model: Any = models(name)[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    tables = {"full_attention": blueprint.decoder.rotary, "sliding_attention": blueprint.decoder.window_rotary}
    for kind, table in tables.items():
        for positions in POSITIONS if table is not None else ():
            which = [kind] if name == "gemma3" else []
            angles = model.model.rotary_emb(torch.empty(0), torch.arange(positions)[None], *which)
            assert table is not None and table(positions).equal(torch.cat(angles))
