"""Memory that mirrors a file is given back, and nothing else: no number is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.decoding.decoder import Runtime
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.packed import FilePages
from tasks.models.checkpoints import load_model

_COUNT = 1 << 20
_LEAST_MAPPED = 10
"""Pages of 4 KiB that a read tensor takes at least, in KiB."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mapped memory")


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


def test_pages_of_a_file_leave_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    tensor = mapped(path)
    half = tensor[: _COUNT // 2]
    assert FilePages().release(half)
    assert resident(path) <= _COUNT * 4 // 1024 // 2
    assert FilePages().release(tensor)
    assert resident(path) < _LEAST_MAPPED
    assert tensor.sum() == _COUNT


def test_a_number_that_was_changed_stays(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "weights")
    tensor[5] = 7
    assert not FilePages().release(tensor)
    assert tensor[5] == 7


def test_other_memory_is_left_alone() -> None:
    tensor = torch.ones(_COUNT)
    assert not FilePages().release(tensor)
    assert tensor.sum() == _COUNT


@pytest.mark.parametrize("tied", [False, True])
def test_an_opened_checkpoint_is_in_memory_once_and_still_computes(tied: bool, tmp_path: Path) -> None:
    if compiled.library() is None:
        pytest.skip("needs a C++ compiler")
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=1,
        tie_word_embeddings=tied,
    )
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
