"""How many texts fit a device, where a setting leaves that open."""

from typing import Any

import pytest

from tasks import machine
from tasks.decoding import batches
from tasks.decoding.batches import MOST, batch_for, text_bytes
from tasks.errors import InputError
from tasks.models.settings import TextSettings
from tests.architectures import models

TEXT = TextSettings(max_source_tokens=24, max_target_tokens=16)


@pytest.fixture
def pair() -> list[Any]:
    return list(models("llama"))


def bytes_of(pair: list[Any], texts: int) -> int:
    """Of the weights and so many texts."""
    weights: int = sum(one.nbytes for model in pair for one in model.parameters())
    return weights + texts * sum(text_bytes(model.config, 24, 16) for model in pair)


def test_a_text_takes_keys_values_and_logits(pair: list[Any]) -> None:
    """Three layers with one head of width 8 for keys and values."""
    large = pair[1]
    assert text_bytes(large.config, 24, 16) == 4 * (2 * 3 * 8 * (24 + 16) + 2 * large.config.vocab_size)


def test_a_t5_also_takes_the_biases_of_its_encoder() -> None:
    """Encoding eight texts of 1,024 tokens on 16 heads took 2.05 (fused) and 2.2 times (reference) the bytes of a bias."""
    config = models("t5")[1].config
    longer = text_bytes(config, 1024, 16) - text_bytes(config, 512, 16)
    caches = 4 * 2 * config.num_decoder_layers * config.num_heads * config.d_kv * 512
    assert longer == caches + 4 * 2 * config.num_heads * (1024**2 - 512**2)


@pytest.mark.parametrize(("fitting", "sharing"), [(1, 1), (5, 1), (5, 2), (1000, 1)])
def test_a_batch_that_is_left_open_is_what_fits(
    pair: list[Any], fitting: int, sharing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: sharing * bytes_of(pair, fitting) / 0.9 + 10)
    assert batch_for(0, "quality", pair, TEXT, sharing) == min(fitting, MOST)
    assert batch_for(7, "quality", pair, TEXT, sharing) == 7, "what is set holds"


def test_a_device_without_room_for_a_text_is_one_line(pair: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: bytes_of(pair, 1))
    with pytest.raises(InputError, match=r"^quality: not one text fits \(.* of weights and .*; set machine\.dtype to bfloat16"):
        batch_for(0, "quality", pair, TEXT)
    monkeypatch.setattr(machine, "memory", lambda: 2 * bytes_of(pair, 1) / 0.9 - 10)
    with pytest.raises(InputError, match=r"GB for 2 processes\); set machine\.workers to 0, which is one process"):
        batch_for(0, "quality", pair, TEXT, 2)


def test_a_model_that_is_spread_is_in_one_process(pair: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: bytes_of(pair, 5) / 0.9 + 10)
    monkeypatch.setattr(batches, "places_of", lambda model: "1 GPU and the cpu" if model is pair[1] else "")
    assert batch_for(0, "quality", pair, TEXT, 2) == 5
