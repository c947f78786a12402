"""The native runtime decides as the reference with every method, and in fewer bits as the reference with rounded numbers."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks import machine
from tasks.decoding.decoder import REFERENCE, Decoder
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.runtimes.native import NativeDecoder
from tasks.errors import InputError
from tasks.models.extras import add_heads
from tests.architectures import FAST, pair_of, slow_but
from tests.methods import LAYERED, SETTINGS
from tests.toys import toy_sources, toy_t5
from tests.unit.decoding.runtimes.odd import FEW, KINDS, begin, model_of, native, random_rows, reference

SOURCES = toy_sources(5, seed=2)
REQUEST = Request(12)


def what_was_decided(generations: list[Generation]) -> list[tuple[object, ...]]:
    """Tokens, the proposer of each, and all counts."""
    return [(one.tokens, one.proposers, one.counts) for one in generations]


# Every method on an encoder-decoder, each kind of method on a decoder-only model, and one on others; `test_fast_runtimes`
# compares the numbers of every architecture.
UNLAYERED = sorted(METHODS.keys() - LAYERED)
PROMPTED = {"bild", "sequence_cascade", "token_cascade", "speculative_beam", "speculative_cascade"}
"""Of each kind of method one: that is enough on prompts."""
OTHERS = ("bart", "gpt2", "gemma2")
MORE = [name for name in FAST if name not in ("t5", "llama", *OTHERS)]
COVERING = [
    *(("t5", method) for method in UNLAYERED),
    *(pytest.param("llama", method, marks=[] if method in PROMPTED else pytest.mark.slow) for method in UNLAYERED),
    *((name, "bild") for name in OTHERS),
    *(pytest.param(name, "bild", marks=pytest.mark.slow) for name in MORE),
    *(pytest.param(name, "speculative_beam", marks=pytest.mark.slow) for name in (*OTHERS, *MORE)),
]


@pytest.mark.parametrize(("name", "method"), COVERING)
def test_every_method_decides_as_on_the_reference(name: str, method: str) -> None:
    """Both models native, in a batch and one text at a time; and only the small model native, for fewer texts: it is slow."""
    native, reference = pair_of(name), pair_of(name, REFERENCE)
    assert isinstance(native.small, NativeDecoder)
    assert not isinstance(reference.small, NativeDecoder)
    mixed = Pair(native.small, reference.large)
    for settings in SETTINGS[method]:
        expected = what_was_decided(decode(method, settings, reference, SOURCES, REQUEST))
        assert what_was_decided(decode(method, settings, native, SOURCES, REQUEST)) == expected
        assert what_was_decided(decode_all(method, settings, native, SOURCES, REQUEST, 1)) == expected
        assert what_was_decided(decode_all(method, settings, mixed, SOURCES[:3], REQUEST, 1)) == expected[:3]


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_native_large_model_checks_a_reference_drafter(name: str) -> None:
    native, reference = pair_of(name), pair_of(name, REFERENCE)
    settings = SpeculativeSettings(draft_length=4)
    expected = decode("speculative", settings, reference, SOURCES, REQUEST)
    mixed = decode("speculative", settings, Pair(reference.small, native.large), SOURCES, REQUEST)
    assert what_was_decided(mixed) == what_was_decided(expected)


TOLERANCE = 0.25
"""Of the error that the format itself makes. Sums in another order let some inputs round to the neighbouring number."""


def rounded_to_int8(rows: Tensor) -> Tensor:
    """Round each row to 255 levels; its largest number is level 127."""
    step = rows.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (rows / step).round() * step


def rounded_to_bfloat16(rows: Tensor) -> Tensor:
    return rows.bfloat16().float()


ROUNDED = {"bfloat16": rounded_to_bfloat16, "int8": rounded_to_int8}


@torch.no_grad()
def with_rounding(model: Any, form: str, *, inputs: bool) -> Any:
    """The model with matrices rounded, and the inputs of their products; embeddings, norms and biases are unchanged."""
    from transformers.pytorch_utils import Conv1D

    rounded, number = copy.deepcopy(model).float(), ROUNDED[form]
    head = rounded.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())  # its own, where it is also the embedding
    for module in rounded.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            by_output = module.weight.T if isinstance(module, Conv1D) else module.weight
            by_output.copy_(number(by_output))
            if inputs:
                module.register_forward_pre_hook(lambda _, given: (number(given[0]), *given[1:]))
    return rounded


def logits_of(decoder: Decoder) -> Tensor:
    """Logits of some blocks of three rows, with rewinds between them."""
    rng = random.Random(6)
    starts = begin(decoder, random_rows(rng, [4, 11, 70]))
    found = [decoder.forward(starts)]
    for counts in ([1, 1, 1], [6, 0, 13], [3, 2, 70]):
        found.append(decoder.forward(random_rows(rng, counts)))
        decoder.rewind([length - length // 3 for length in decoder.lengths])
    return torch.cat([step.logits[row, :count] for step in found for row, count in enumerate(step.lengths)])


@pytest.mark.parametrize("form", list(ROUNDED))
@pytest.mark.parametrize("kind", slow_but(FEW, KINDS))
def test_a_format_is_the_reference_with_rounded_numbers(kind: str, form: str) -> None:
    model = model_of(kind)
    if form == "bfloat16":
        model = copy.deepcopy(model).bfloat16()
    ours = logits_of(native(model, int8=form == "int8"))
    equal, exact = (logits_of(reference(with_rounding(model, form, inputs=inputs))) for inputs in (True, False))
    makes, found = (exact - equal).square().mean().sqrt(), (ours - equal).square().mean().sqrt()
    assert found < TOLERANCE * makes


def test_hidden_states_in_bfloat16_have_its_dtype() -> None:
    decoder = native(copy.deepcopy(model_of("t5 relu")).bfloat16())
    step = decoder.forward(begin(decoder, [[4, 5]]))
    assert step.hidden.dtype == torch.bfloat16


IN_BFLOAT16 = ("vanilla_large", "bild", "token_cascade", "sequence_cascade", "speculative_beam")


@pytest.mark.parametrize(("method", "form"), [("bild", "int8"), *((method, "bfloat16") for method in IN_BFLOAT16)])
def test_methods_run_in_fewer_bits(method: str, form: str) -> None:
    """A batch equals single rows: a row's logits do not depend on the other rows."""
    small, large = toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    if form == "bfloat16":
        small, large = small.bfloat16(), large.bfloat16()
    pair = Pair(native(small, int8=form == "int8"), native(large, int8=form == "int8"))
    sources, request = toy_sources(6), Request(10)
    for settings in SETTINGS[method]:
        together = decode(method, settings, pair, sources, request)
        alone = [decode(method, settings, pair, [source], request, [example])[0] for example, source in enumerate(sources)]
        assert [one.tokens for one in together] == [one.tokens for one in alone]


@pytest.mark.parametrize("drafter", ["heads", "early_layer"])
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_drafters_that_read_the_large_model_run_in_fewer_bits(drafter: str, form: str) -> None:
    large = toy_t5(2, 1, 3, "gated-gelu")
    add_heads(large, 3, seed=0)
    large = large.bfloat16() if form == "bfloat16" else large
    decoder = native(large, int8=form == "int8")
    pair, sources = Pair(decoder, decoder), toy_sources(6)
    drafted = decode("speculative", SpeculativeSettings(drafter=drafter, draft_length=3), pair, sources, Request(10))
    vanilla = decode("vanilla_large", SETTINGS["vanilla_large"][0], pair, sources, Request(10))
    assert [one.tokens for one in drafted] == [one.tokens for one in vanilla]


def test_a_batch_whose_keys_and_values_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, rows = native(model_of("llama")), [[3, 4]] * 8
    monkeypatch.setattr(machine, "memory", lambda: 10_000)
    with pytest.raises(InputError, match=r"the keys and values of a batch of 8 texts take .* GB"):
        begin(decoder, rows)
