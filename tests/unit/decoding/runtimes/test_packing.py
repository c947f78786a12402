"""Packed matrices, written out: panels of outputs, the number format, one scale an output."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.runtimes import compiled, packed
from tasks.decoding.runtimes.blueprint import Linear, Norm, Stack
from tasks.decoding.runtimes.packed import PackedStack

_NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_INPUTS = 70


def head_of(stack: PackedStack, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The packed head, (panels, inputs, panel), and its scales. A word of 32 bits holds inputs of one output."""
    head: Any = stack.native.head
    panel = compiled.library().draftline_panel()  # type: ignore[union-attr]
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
    if functions is None:
        pytest.skip("needs a C++ compiler")
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
