"""A small and a large model with equal encoders: this is detected, and the encoder runs once."""

import copy
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

from tasks.decoding.decoder import AUTO, REFERENCE, Runtime
from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import SpeculativeBeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.decoding.runtimes.native import NativeEncoder
from tasks.errors import InputError
from tasks.models.layers import model_from_layers, shares_encoder
from tasks.models.pruned_head import prune_head
from tasks.models.settings import LayersSettings
from tests.architectures import models
from tests.toys import kept_weights, toy_sources, toy_t5

SOURCES = toy_sources(4)
DRAFTED: dict[str, Any] = {
    "speculative": SpeculativeSettings(draft_length=3),
    "bild": BildSettings(fallback_threshold=0.3),
    "speculative_beam": SpeculativeBeamSettings(beams=2, draft_beams=3),
}


def with_encoder_of(small: Any, large: Any) -> Any:
    """The small model with the large one's encoder weights, in tensors of its own."""
    twin = copy.deepcopy(small)
    twin.get_encoder().load_state_dict(large.get_encoder().state_dict())
    return twin


def pair_with_one_encoder(name: str) -> tuple[Any, Any]:
    if name == "t5":
        large = toy_t5(2, 1, 3)
        return with_encoder_of(toy_t5(1, 1, 1), large), large
    small, large = models(name)
    return with_encoder_of(small, large), large


def decoded(pair: Pair, method: str) -> tuple[list[Generation], list[int]]:
    """What a pair writes, and the number of rows of each run of its encoders."""
    small, large = (patch.object(decoder, "encode", wraps=decoder.encode) for decoder in (pair.small, pair.large))
    with small as of_small, large as of_large:
        outputs = decode(method, DRAFTED[method], pair, SOURCES, Request(10))
    return outputs, [len(run.args[0]) for run in (*of_small.call_args_list, *of_large.call_args_list)]


@pytest.mark.parametrize(
    ("name", "runtime", "method"),
    [
        *(("t5", AUTO, method) for method in DRAFTED),
        ("t5", REFERENCE, "speculative"),
        ("bart", AUTO, "bild"),
        ("fsmt", AUTO, "speculative"),
    ],
)
def test_a_shared_encoder_runs_once_and_changes_no_token(name: str, runtime: Runtime, method: str) -> None:
    pair = open_decoders(*pair_with_one_encoder(name), runtime=runtime)
    assert pair.shares_encoder
    outputs, runs = decoded(pair, method)
    assert runs == [len(SOURCES)]
    apart = copy.copy(pair)
    object.__setattr__(apart, "shares_encoder", False)
    assert outputs == decode(method, DRAFTED[method], apart, SOURCES, Request(10))
    pair = open_decoders(*models(name), runtime=runtime)
    assert not pair.shares_encoder
    assert decoded(pair, method)[1] == [len(SOURCES)] * 2
    assert len({tuple(one.tokens) for one in outputs}) > 1


@pytest.mark.parametrize("one_encoder", [True, False])
def test_a_drafter_in_8_bits_drafts_for_a_large_model_in_32(one_encoder: bool) -> None:
    """Also where both have one encoder and one head, which are packed in two formats."""
    small, large = made_of_layers(pruned=False) if one_encoder else models("t5")
    native = Runtime("native")
    plain = open_decoders(*copy.deepcopy((small, large)), runtime=native)
    pair = open_decoders(small, large, runtime=native, drafter_runtime=Runtime("native", int8=True))
    assert (
        pair.described == "native, float32; drafts native, int8" and pair.shares_encoder == plain.shares_encoder == one_encoder
    )
    drafted, expected = (decode("speculative", DRAFTED["speculative"], one, SOURCES, Request(10)) for one in (pair, plain))
    assert [one.tokens for one in drafted] == [one.tokens for one in expected], "the large model's own text"
    kept, of = (total(one) for one in (drafted, expected))
    assert of.accepted > 0 and abs(kept.accepted - of.accepted) <= 0.1 * of.drafted, "the same drafts but for rounding"


def test_a_weight_or_a_configuration_that_differs_is_noticed() -> None:
    small, large = pair_with_one_encoder("bart")
    assert shares_encoder(small, large)
    with torch.no_grad():
        small.get_encoder().layers[0].fc1.weight[3, 5] += 1e-3
    assert not shares_encoder(small, large)
    small, large = pair_with_one_encoder("bart")
    small.get_encoder().layers[0].activation_fn = torch.nn.SiLU()
    assert not shares_encoder(small, large)


def made_of_layers(pruned: bool, own_head: bool = False) -> tuple[Any, Any]:
    """A large model, and a drafter of its first layer on its encoder, moved away from it everywhere else."""
    large = toy_t5(2, 1, 3)
    if own_head:
        large.lm_head.weight = torch.nn.Parameter(large.lm_head.weight.detach().flip(1).clone())
    small = model_from_layers(large, LayersSettings(layers=(0,), share_encoder=True))
    kept = {weight.data_ptr() for weight in small.get_encoder().parameters()}
    with torch.no_grad():
        for weight in small.parameters():
            if weight.data_ptr() not in kept:
                weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    if pruned:
        prune_head(small, [*range(8), *range(10, 20)])
    return small, large


@pytest.mark.parametrize(
    ("number_format", "pruned", "own_head"),
    [
        *(("float32", pruned, own_head) for pruned, own_head in ((False, False), (True, False), (True, True))),
        *(("bfloat16", True, True), ("int8", False, False), ("int8", True, False)),
    ],
)
def test_a_drafter_of_the_large_model_s_encoder_decodes_alike_and_is_held_once(
    number_format: str, pruned: bool, own_head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the pair of two encoders: equal tokens and counts in the native loop, which encodes each source once."""
    dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
    runtime = Runtime("native", int8=number_format == "int8")
    small, large = (model.to(dtype) for model in made_of_layers(pruned, own_head))
    apart = [open_decoder(copy.deepcopy(model), name, runtime=runtime) for model, name in ((small, "small"), (large, "large"))]
    two_encoders = Pair(apart[0], apart[1])
    pair = open_decoders(small, large, runtime=runtime)
    assert pair.shares_encoder
    encode = MagicMock(side_effect=NativeEncoder.encode)
    monkeypatch.setattr(NativeEncoder, "encode", lambda *given: encode(*given))
    for method, settings in DRAFTED.items():
        for source in SOURCES[:6]:
            encode.reset_mock()
            found = decode(method, settings, pair, [source], Request(10))
            assert encode.call_count == 1
            assert found == decode(method, settings, two_encoders, [source], Request(10))
            assert encode.call_count == 3
    alone = decode("vanilla_small", VanillaSettings(), pair, SOURCES, Request(10))
    assert alone == decode("vanilla_small", VanillaSettings(), two_encoders, SOURCES, Request(10))
    ours, theirs, *others = (kept_weights(one) for one in (pair.small, pair.large, *apart))
    held = [sum(one.values()) for one in ({at: size for at, size in ours.items() if at not in theirs}, theirs, *others)]
    assert held[1] == held[3]
    rows, width = large.shared.weight.shape
    encoder = sum(weight.numel() for weight in large.encoder.parameters()) - rows * width
    bytes_of_a_number = {"float32": 4, "bfloat16": 2, "int8": 1}[number_format]
    # The embedding, which is float32 in every format, is the large model's where it has the large model's address.
    embedding = 4 * rows * width if number_format == "float32" else 0
    assert held[2] - held[0] >= encoder * bytes_of_a_number + embedding


def test_a_drafter_of_another_large_model_s_encoder_is_refused() -> None:
    small, _ = made_of_layers(pruned=False)
    with pytest.raises(InputError, match="encoder of this large model is another; name the large model that it was made of"):
        open_decoders(small, toy_t5(3, 1, 3))
