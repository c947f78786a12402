"""Theory of cost: sizes and operations against PyTorch's own counter and by hand."""

import copy
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tasks.decoding.decoder import REFERENCE
from tasks.decoding.generation import total
from tasks.decoding.method import Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode_all
from tasks.decoding.runtimes.choose import open_decoders
from tasks.evaluation.operations import operations_of, relative_operations, sizes_of
from tasks.evaluation.results.pair import ModelSizes, PairSizes
from tasks.evaluation.results.rows import DecodingCounts, Operations
from tasks.loaded_pair import measure_pair
from tasks.machine import MachineSettings
from tasks.models.layers import model_from_layers
from tasks.models.settings import LayersSettings
from tests.architectures import models
from tests.theory import THEORY
from tests.toys import toy_sources

SOURCE = [5, 9, 14, 3, 8, 11, 1]
ONE = ModelSizes(
    parameters=1, encoder_parameters=0, memory_parameters=0, decoder_parameters=1, head_parameters=0, encoder_layers=1,
    layers=0, width=0, attention_width=0, cache_width=0, weight_bytes=1, cache_bytes=1,
)  # fmt: skip
"""One weight and nothing else: what the papers' formulas are about."""


def counted(tokens: int, small_steps: int = 0, **verified: int) -> DecodingCounts:
    """Counts as rows hold them; `_4=2` are two calls of four positions."""
    calls = {int(positions[1:]): number for positions, number in verified.items()}
    return DecodingCounts(tokens=tokens, small_steps=small_steps, verified=calls, layers=0)


@pytest.mark.parametrize("name", ["t5", "fsmt", "gpt2", "llama"])
def test_every_matrix_is_in_one_place(name: str) -> None:
    """All matrices of all parts together are those of the model, without the embeddings."""
    model = models(name)[1]
    sizes = sizes_of(model)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices = {id(one): one.numel() for one in model.parameters() if one.dim() == 2 and id(one) not in embeddings}
    assert sizes.encoder_parameters + sizes.memory_parameters + sizes.decoder_parameters == sum(matrices.values())
    assert {sizes.encoder_parameters > 0, sizes.memory_parameters > 0} == {model.config.is_encoder_decoder}
    assert json.loads(json.dumps(dataclasses.asdict(sizes))) == dataclasses.asdict(sizes)


def test_sizes_by_hand() -> None:
    """Llama of width 32: two heads of 8 for queries, one for keys and values; three layers; 24 tokens."""
    sizes = sizes_of(models("llama")[1])
    layer = 32 * 16 + 2 * 32 * 8 + 16 * 32 + 3 * 32 * 40
    assert sizes == dataclasses.replace(
        ONE,
        parameters=3 * (layer + 2 * 32) + 32 + 2 * 24 * 32,
        decoder_parameters=3 * layer + 24 * 32,
        head_parameters=24 * 32,
        encoder_layers=0,
        layers=3,
        width=32,
        attention_width=16,
        cache_width=16,
        weight_bytes=4,
        cache_bytes=4,
        feed_forward_width=40,
    )
    assert sizes_of(models("llama")[1], int8=True) == dataclasses.replace(sizes, weight_bytes=1)


def test_a_shared_encoder_is_counted_once() -> None:
    large = models("t5")[1]
    small = model_from_layers(large, LayersSettings(layers=(0,), share_encoder=True))
    encoder = sum(weight.numel() for weight in large.get_encoder().parameters())
    task: Any = SimpleNamespace(sweep=SimpleNamespace(seed=0, quality_batch=4, bootstrap_samples=10))
    for pair, shared in (((small, large), encoder), (models("t5"), 0)):
        both = dict(zip(("small", "large"), pair, strict=True))
        opened = SimpleNamespace(models=both)
        loaded: Any = SimpleNamespace(pair=open_decoders(*pair, runtime=REFERENCE), opened=opened)
        _, sizes = measure_pair(loaded, toy_sources(2), Request(4), task, MachineSettings(), grid=[], large_texts={})
        assert sizes.shares_encoder == bool(shared) and sizes.shared_parameters == shared


@pytest.mark.parametrize("method", ["vanilla_large", "vanilla_small"])
@pytest.mark.parametrize("name", ["bart", "t5", "gpt2", "llama"])
def test_operations_of_one_model_are_those_that_pytorch_counts(name: str, method: str) -> None:
    """To the last one."""
    pair = copy.deepcopy(models(name))
    for model in pair:
        model.set_attn_implementation("eager")  # which the counter sees
    small, large = map(sizes_of, pair)
    with FlopCounterMode(display=False) as counter:
        generations = decode_all(method, VanillaSettings(), open_decoders(*pair, runtime=REFERENCE), [SOURCE], Request(12), 1)
    found_counts = total(generations)
    counts = counted(found_counts.tokens, found_counts.small_steps)
    counts = dataclasses.replace(counts, verified=dict(found_counts.verified))
    found = operations_of(counts, 1, PairSizes(small=small, large=large, source_tokens=len(SOURCE)))
    hidden = 0.0
    if not large.encoder_layers:
        # Eager attention multiplies what the causal mask then hides: of the prompt, all but the lower triangle.
        sizes = large if method == "vanilla_large" else small
        hidden = 4 * sizes.layers * sizes.attention_width * len(SOURCE) * (len(SOURCE) - 1) / 2
    assert found.flops * counts.tokens == pytest.approx(counter.get_total_flops() - hidden, rel=1e-12)


@pytest.mark.parametrize(("alpha", "draft_length", "operations", "speedup"), THEORY)
def test_speculative_decoding_by_its_theorem(alpha: float, draft_length: int, operations: float, speedup: float) -> None:
    """SD, Theorem 3.11 and Table 1, with a drafter that costs nothing; memory accesses shrink by the tokens a run gives."""
    runs = 1_000_000
    tokens = round(runs * (1 - alpha ** (draft_length + 1)) / (1 - alpha))
    counts = counted(tokens, **{f"_{draft_length + 1}": runs})
    found = relative_operations(counts, 1000, PairSizes(large=ONE, source_tokens=0))
    assert found.flops == pytest.approx(operations, abs=0.005)
    assert 1 / found.bytes == pytest.approx(speedup, abs=0.005)
    assert found.intensity == pytest.approx(draft_length + 1)
    # A small model of a tenth of the weights: ĉ γ operations and γ reads more a run.
    tenth = dataclasses.replace(ONE, decoder_parameters=10)
    drafted = relative_operations(
        dataclasses.replace(counts, small_steps=draft_length * runs), 1000, PairSizes(small=ONE, large=tenth, source_tokens=0)
    )
    assert drafted.flops == pytest.approx((0.1 * draft_length + draft_length + 1) * runs / tokens)
    assert drafted.bytes == pytest.approx((0.1 * draft_length + 1) * runs / tokens)


ENCODED = ModelSizes(
    parameters=0, encoder_parameters=100, memory_parameters=30, decoder_parameters=50, head_parameters=7, encoder_layers=2,
    layers=3, width=0, attention_width=4, cache_width=8, weight_bytes=2, cache_bytes=1,
)  # fmt: skip
BOTH = PairSizes(small=ENCODED, large=ENCODED, source_tokens=7)


def test_operations_by_hand() -> None:
    """Two texts of five tokens with sources of six: a position sees nine, 6 of the source and half of its text."""
    counts = counted(10, small_steps=8, _1=1, _4=3)
    source = 2 * 130 * 6 + 4 * 2 * 4 * 36
    large = 13 * (2 * 50 + 4 * 3 * 4 * 9) + 2 * source
    small = 8 * (2 * 50 + 4 * 3 * 4 * 9) + 2 * source
    large_bytes = 4 * (2 * 50 + 3 * 8 * 9) + 2 * 2 * 130
    small_bytes = 8 * (2 * 50 + 3 * 8 * 9) + 2 * 2 * 130
    found = operations_of(counts, 2, dataclasses.replace(BOTH, source_tokens=6))
    assert found.flops == pytest.approx((large + small) / 10)
    assert found.bytes == pytest.approx((large_bytes + small_bytes) / 10)
    assert found.intensity == pytest.approx((large + small) / (large_bytes + small_bytes))
    shared = operations_of(counts, 2, dataclasses.replace(BOTH, source_tokens=6, shares_encoder=True))
    assert (found.flops - shared.flops) * 10 == pytest.approx(2 * (2 * 100 * 6 + 4 * 2 * 4 * 36))
    assert (found.bytes - shared.bytes) * 10 == pytest.approx(2 * 2 * 100)


def test_a_prompt_is_read_with_the_first_token() -> None:
    """Decoder-only: two texts of three tokens after prompts of five, whose four first positions run without the head."""
    alone = dataclasses.replace(ENCODED, encoder_parameters=0, memory_parameters=0, encoder_layers=0)
    found = operations_of(counted(6, _1=6), 2, PairSizes(large=alone, source_tokens=5))
    assert found.flops * 6 == pytest.approx(6 * (2 * 50 + 4 * 3 * 4 * 6) + 2 * (2 * 43 * 4 + 4 * 3 * 4 * 10))
    assert found.bytes * 6 == pytest.approx(6 * (2 * 50 + 3 * 8 * 6))


def test_the_large_model_alone_is_one_and_a_model_that_never_runs_costs_nothing() -> None:
    """The small model alone, with an encoder that it shares and that therefore runs for it."""
    assert relative_operations(counted(12, _1=12), 3, BOTH) == Operations(flops=1.0, bytes=1.0, intensity=1.0)
    tenth = dataclasses.replace(ENCODED, decoder_parameters=5, encoder_parameters=10, memory_parameters=3)
    for shares_encoder in (False, True):
        sizes = dataclasses.replace(BOTH, small=tenth, shares_encoder=shares_encoder)
        found = operations_of(counted(12, small_steps=12), 3, sizes)
        assert found == operations_of(counted(12, _1=12), 3, PairSizes(large=tenth, source_tokens=7))


def test_operations_are_none_where_counts_or_sizes_are_missing() -> None:
    """Runs of a drafter whose size is not known, and a model that leaves layers out."""
    for relative in (operations_of, relative_operations):
        assert relative(counted(12, small_steps=9, _4=3), 3, dataclasses.replace(BOTH, small=None)) is None
        assert relative(dataclasses.replace(counted(12, _1=12), layers=20), 3, BOTH) is None
