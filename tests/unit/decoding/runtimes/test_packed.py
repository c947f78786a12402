"""Packed matrices and the memory that they lie in, and their products as they are compiled for several processors."""

import ctypes
import functools
import mmap
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.decoding.decoder import Runtime
from tasks.decoding.runtimes import compiled, packed
from tasks.decoding.runtimes.blueprint import Linear, Norm, Stack
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.layout import FORMATS
from tasks.decoding.runtimes.packed import FilePages, HugePages, PackedStack, aligned
from tasks.models.checkpoints import load_model

_NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_INPUTS = 70


def head_of(stack: PackedStack, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The packed head, (panels, inputs, panel), and its scales. A word of 32 bits holds inputs of one output."""
    head: Any = stack.native.head
    panel = compiled.library().draftline_panel()
    outputs = -(-head.outputs // panel) * panel
    each = 4 // dtype.itemsize
    words = -(-head.inputs // each)
    size = outputs * words * 4
    numbers = torch.frombuffer(bytearray(ctypes.string_at(head.weight, size)), dtype=dtype)
    scale = None
    if head.scale:
        scale = torch.frombuffer(bytearray(ctypes.string_at(head.scale, 4 * outputs)), dtype=torch.float32)
    whole = numbers.view(-1, words, panel, each).transpose(2, 3).reshape(-1, words * each, panel)
    assert not whole[:, head.inputs :].any()
    return whole[:, : head.inputs], scale


def pack(parts: list[Tensor], number_format: str) -> PackedStack:
    functions = compiled.library()
    assert functions is not None
    shape: dict[str, Any] = {"heads": 1, "key_value_heads": 1, "head_width": _INPUTS, "epsilon": 0.0, "activation": "silu"}
    flags: dict[str, Any] = {"gated": True, "causal": True, "score_scale": 1.0, "embedding": torch.zeros(1, _INPUTS)}
    head = Linear(parts[0], None, tuple(parts[1:]))
    stack = Stack(**shape, **flags, layers=(), norm=Norm(torch.ones(_INPUTS)), head=head)
    return PackedStack(stack, number_format, functions)


@pytest.mark.parametrize("number_format", list(_NUMBERS))
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_panels_hold_the_rows_of_all_parts(source: torch.dtype, number_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_BLOCK_BYTES", 30 * _INPUTS * source.itemsize)  # blocks that end inside a panel
    torch.manual_seed(3)
    parts = [torch.randn(rows, _INPUTS).to(source) for rows in (100, 1, 41)]
    parts[0] = parts[0].T.contiguous().T
    parts[2][7] = 0
    whole = torch.cat(parts).float()
    expected, scales = whole.to(_NUMBERS[number_format]), None
    if number_format == "int8":
        scales = whole.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        expected = (whole / scales[:, None]).round().to(torch.int8)
    panels, found = head_of(pack(parts, number_format), _NUMBERS[number_format])
    rows = panels.transpose(1, 2).reshape(-1, _INPUTS)
    assert torch.equal(rows[: len(whole)], expected)
    assert not rows[len(whole) :].any()
    if scales is not None and found is not None:
        torch.testing.assert_close(found[: len(whole)], scales, rtol=1e-6, atol=0)


def test_ties_are_rounded_to_even() -> None:
    numbers = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, float("inf"), float("-inf"), -0.0]).repeat(14)[None]
    panels, _ = head_of(pack([numbers], "bfloat16"), torch.bfloat16)
    assert torch.equal(panels[0, :, 0].view(torch.int16), numbers[0].bfloat16().view(torch.int16))
    # The row's scale is 1, so that halves lie between two integers.
    halves = torch.tensor([127.0, 0.5, 1.5, -2.5, 126.5]).repeat(14)[None]
    panels, _ = head_of(pack([halves], "int8"), torch.int8)
    assert panels[0, :5, 0].tolist() == [127, 0, 2, -2, 126]


@pytest.mark.parametrize("number_format", list(_NUMBERS))
def test_a_broken_weight_stays_broken(number_format: str) -> None:
    weights = torch.ones(3, _INPUTS)
    weights[1, 3] = torch.nan
    panels, scales = head_of(pack([weights], number_format), _NUMBERS[number_format])
    shown = panels.float().isnan().any(1)[0] if scales is None else scales.isnan()
    assert shown[:3].tolist() == [False, True, False]


_PRODUCTS = """
#include "products.h"

template <Format format>
void multiply(const float* w, int64_t inputs, int64_t outputs, const float* bias, const float* x, int64_t tokens, float* y,
              bool add) {
    const int64_t all = padded(outputs);
    std::vector<Word> packed(all * words(format, inputs));
    std::vector<float> scales(all), padded_bias(all), sums(tokens * all);
    std::vector<int32_t> offsets(all);
    pack_rows<format, float>(w, 0, outputs, inputs, packed.data(), scales.data(), offsets.data(), 1);
    std::copy(bias, bias + outputs, padded_bias.begin());
    for (int64_t t = 0; t < tokens; t++) std::copy(y + t * outputs, y + (t + 1) * outputs, sums.begin() + t * all);
    const Linear linear{packed.data(), scales.data(), offsets.data(), padded_bias.data(), inputs, outputs};
    product<format>(linear, x, inputs, sums.data(), all, tokens, add, 1);
    for (int64_t t = 0; t < tokens; t++) std::copy(sums.begin() + t * all, sums.begin() + t * all + outputs, y + t * outputs);
}

extern "C" void multiply_as(int format, const float* w, int64_t inputs, int64_t outputs, const float* bias, const float* x,
                            int64_t tokens, float* y, bool add) {
    if (format == kFloat32) multiply<kFloat32>(w, inputs, outputs, bias, x, tokens, y, add);
    if (format == kBfloat16) multiply<kBfloat16>(w, inputs, outputs, bias, x, tokens, y, add);
    if (format == kInt8) multiply<kInt8>(w, inputs, outputs, bias, x, tokens, y, add);
}
"""
_WIDTH_IN, _WIDTH_OUT, _TOKENS = 203, 100, 13
"""Several blocks of inputs, panels, and groups of tokens; none divides evenly."""
_X86 = {"avx2": ["-march=haswell"], "avx512_bf16": ["-march=cooperlake"], "sse2": ["-march=x86-64"]}
_PROCESSORS = {"this": ["-march=native"], **(_X86 if platform.machine() == "x86_64" else {})}


@pytest.fixture(scope="module", params=list(_PROCESSORS))
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = compiled.compiler_command()
    assert compiler is not None
    if request.param != "this" and not torch.cpu.get_capabilities().get(request.param, False):
        pytest.skip(f"needs a processor with {request.param}")
    folder = tmp_path_factory.mktemp("products")
    source, library = folder / "products.cpp", folder / "products.so"
    source.write_text(_PRODUCTS)
    flags = [*compiled.FLAGS, *_PROCESSORS[request.param], "-O0", f"-I{compiled.KERNEL}"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def product(functions: ctypes.CDLL, form: str, weight: Tensor, bias: Tensor, x: Tensor, before: Tensor | None = None) -> Tensor:
    y = torch.zeros(len(x), len(weight)) if before is None else before.clone()
    matrix, biases, rows, to = (ctypes.c_void_p(one.data_ptr()) for one in (weight, bias, x, y))
    inputs, outputs, tokens = (ctypes.c_int64(size) for size in (x.shape[1], len(weight), len(x)))
    add = ctypes.c_bool(before is not None)
    functions.multiply_as(FORMATS.index(form), matrix, inputs, outputs, biases, rows, tokens, to, add)
    return y


@functools.cache
def numbers() -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(_WIDTH_OUT, _WIDTH_IN, generator=rng), torch.randn(_WIDTH_OUT, generator=rng)
    return weight, bias, torch.randn(_TOKENS, _WIDTH_IN, generator=rng) * 3


def as_integers(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Integers up to 127 with the scale of each row."""
    scale = rows.abs().amax(1, keepdim=True) / 127
    return (rows / scale).round().double(), scale.double()


@pytest.mark.parametrize("form", FORMATS)
def test_a_product_is_that_of_rounded_numbers(functions: ctypes.CDLL, form: str) -> None:
    weight, bias, x = numbers()
    if form == "int8":
        (w, w_scale), (a, a_scale) = as_integers(weight), as_integers(x)
        expected = a @ w.T * w_scale.T * a_scale
    else:
        dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
        expected = x.to(dtype).double() @ weight.to(dtype).double().T
    expected += bias
    found = product(functions, form, weight, bias, x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-4)
    added = product(functions, form, weight, bias, x, before=torch.full((_TOKENS, _WIDTH_OUT), 5.0))
    torch.testing.assert_close(added, found + 5, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("form", FORMATS)
def test_tokens_change_no_bit_of_each_other(functions: ctypes.CDLL, form: str) -> None:
    weight, bias, x = numbers()
    together = product(functions, form, weight, bias, x)
    for count in range(1, 7):
        assert torch.equal(product(functions, form, weight, bias, x[:count].clone()), together[:count])
    assert torch.equal(product(functions, form, weight, bias, x[-1:].clone()), together[-1:])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_number_breaks_its_token_alone(functions: ctypes.CDLL, form: str, broken: float) -> None:
    weight, bias, x = numbers()
    spoiled = x.clone()
    spoiled[2, 7] = broken
    found = product(functions, form, weight, bias, spoiled)
    assert not found[2].isfinite().any()
    whole = torch.arange(_TOKENS) != 2
    assert torch.equal(found[whole], product(functions, form, weight, bias, x)[whole])


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    pages = HugePages(aligned(3 * 5 * 4) + aligned(7) + aligned(8 * 2))
    first = pages.take((3, 5), torch.float32).fill_(1.0)
    second = pages.take((7,), torch.int8).fill_(2)
    third = pages.take((2, 4), torch.bfloat16).fill_(3.0)
    assert first.data_ptr() % 2**21 == 0
    assert all(one.data_ptr() % 64 == 0 for one in (second, third))
    assert bool((first == 1).all()) and bool((second == 2).all()) and bool((third == 3).all())
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        pages.take((16,), torch.float32)


def test_a_system_without_huge_pages_has_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert packed.HugePages(64).take((16,), torch.float32).fill_(2.0).sum() == 32


_COUNT = 1 << 20
_LEAST_MAPPED = 10
"""Pages of 4 KiB that a read tensor takes at least, in KiB."""

linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mapped memory")


def mapped(path: Path) -> Tensor:
    """Ones in a file, mapped as `transformers` maps weights, and read."""
    torch.ones(_COUNT).numpy().tofile(path)
    tensor = torch.from_file(str(path), shared=False, size=_COUNT)
    assert tensor.sum() == _COUNT
    return tensor


def resident(path: Path) -> int:
    """KiB of a file that are in this process's memory."""
    regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    ours = [one for one in regions if str(path) in one]
    assert ours
    return sum(int(found) for one in ours for found in re.findall(r"^Rss:\s+(\d+)", one, flags=re.MULTILINE))


@linux
def test_pages_of_a_file_leave_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    tensor = mapped(path)
    half = tensor[: _COUNT // 2]
    FilePages().release(half)
    assert resident(path) <= _COUNT * 4 // 1024 // 2
    FilePages().release(tensor)
    assert resident(path) < _LEAST_MAPPED
    assert tensor.sum() == _COUNT


@linux
def test_a_number_that_was_changed_stays(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "weights")
    tensor[5] = 7
    FilePages().release(tensor)
    assert tensor[5] == 7


def test_other_memory_is_left_alone() -> None:
    tensor = torch.ones(_COUNT)
    FilePages().release(tensor)
    assert tensor.sum() == _COUNT


@linux
@pytest.mark.parametrize("tied", [False, True])
def test_an_opened_checkpoint_is_in_memory_once_and_still_computes(tied: bool, tmp_path: Path) -> None:
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=4096, **shape, eos_token_id=1, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    ids = torch.tensor([[3, 5, 7]])
    with torch.inference_mode():
        expected = model(ids).logits
    weights = tmp_path / "model.safetensors"
    assert resident(weights) > 1800
    decoder = open_decoder(model, "large", runtime=Runtime("native"))
    assert resident(weights) < _LEAST_MAPPED
    step = decoder.forward(decoder.start(decoder.encode(ids.tolist())))
    # A tied embedding is read from the packed head.
    assert (resident(weights) < _LEAST_MAPPED) == tied
    torch.testing.assert_close(step.last([1])[0, 0], expected[0, -1])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, expected)
