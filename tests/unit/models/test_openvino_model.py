"""The network written for OpenVINO computes what `transformers` computes: padded rows, with a past that rows exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.models.checkpoints import save_model
from tasks.models.openvino_model import NETWORK, write_openvino_model
from tests.architectures import FAMILIES, VARIANTS, realistic
from tests.pair_folders import letter_tokenizer


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama llama3"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    import openvino

    model = realistic({**FAMILIES, **VARIANTS}[name], 2).eval()
    save_model(model, letter_tokenizer(), tmp_path / "model")
    write_openvino_model(tmp_path / "model", tmp_path / "out")
    options = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    request = openvino.Core().compile_model(tmp_path / "out" / NETWORK, "CPU", options).create_infer_request()

    tokens = torch.tensor([[0, 0, 5, 7, 9, 4, 11], [6, 3, 8, 8, 2, 10, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    read = _read(request, tokens[:, :4], mask[:, :4], [0, 1])
    torch.testing.assert_close(read[mask[:, :4] == 1], _expected(model, tokens[:, :4], mask[:, :4]))
    # From here on, each row continues what the other one has read.
    crossed = torch.cat([tokens[[1, 0], :4], tokens[:, 4:]], dim=1)
    crossed_mask = torch.cat([mask[[1, 0], :4], mask[:, 4:]], dim=1)
    expected = _whole(model, crossed, crossed_mask)[:, 4:]
    torch.testing.assert_close(_read(request, crossed[:, 4:], crossed_mask, [1, 0]), expected, rtol=1e-4, atol=1e-4)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def _read(request: Any, tokens: torch.Tensor, mask: torch.Tensor, rows: list[int]) -> torch.Tensor:
    positions = _positions(mask)[:, -tokens.shape[1] :]
    named = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    given = {**{key: np.ascontiguousarray(value.numpy()) for key, value in named.items()}, "beam_idx": np.array(rows, np.int32)}
    return torch.from_numpy(np.array(request.infer(given)["logits"]))


@torch.no_grad()
def _whole(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=tokens, attention_mask=mask, position_ids=_positions(mask)).logits
    return logits


def _expected(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _whole(model, tokens, mask)[mask == 1]
