"""Matrix products of the kernel, written out in torch, as they are compiled for several kinds of processors."""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess

import pytest
import torch
from torch import Tensor

from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.layout import FORMATS

_SOURCE = """
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
_INPUTS, _OUTPUTS, _TOKENS = 203, 100, 13
"""Several blocks of inputs, panels, and groups of tokens; none divides evenly."""
_X86 = {"AVX2": ["-march=haswell"], "SSE2": ["-march=x86-64"]} if platform.machine() == "x86_64" else {}
_PROCESSORS = {"this": ["-march=native"], **_X86}


@pytest.fixture(scope="module", params=list(_PROCESSORS))
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = compiled.compiler_command()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    if request.param == "AVX2" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs a processor with AVX2")
    folder = tmp_path_factory.mktemp("products")
    source, library = folder / "products.cpp", folder / "products.so"
    source.write_text(_SOURCE)
    flags = [*compiled.FLAGS, *_PROCESSORS[request.param], "-O1", f"-I{compiled.KERNEL}"]
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
    weight, bias = torch.randn(_OUTPUTS, _INPUTS, generator=rng), torch.randn(_OUTPUTS, generator=rng)
    return weight, bias, torch.randn(_TOKENS, _INPUTS, generator=rng) * 3


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
    added = product(functions, form, weight, bias, x, before=torch.full((_TOKENS, _OUTPUTS), 5.0))
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
