"""What the machine gives, and what a step of the compiled runtime takes of it."""

from __future__ import annotations

import pytest

from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.layout import FORMATS
from tasks.decoding.runtimes.native import NativeDecoder
from tests.toys import toy_t5

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="needs a C++ compiler")


def test_a_cache_is_read_faster_than_memory() -> None:
    small, large = compiled.read_bandwidth(1 << 15), compiled.read_bandwidth(1 << 28)
    assert small is not None and large is not None
    assert small > 1.5 * large > 0


def test_every_format_has_a_rate() -> None:
    rates = compiled.multiply_rates()
    assert rates is not None and set(rates) == set(FORMATS)
    # Any processor multiplies more than one number in a nanosecond, and none ten thousand.
    assert all(1e9 < rate < 1e13 for rate in rates.values())


def test_a_share_is_bytes_over_time_over_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "read_bandwidth", lambda size: 2e9 if size == 1_000_000 else None)
    assert compiled.bandwidth_share(1_000_000, 0.001) == pytest.approx(0.5)
    assert compiled.bandwidth_share(0, 0.001) is None


def test_a_step_reads_the_decoder_and_its_head() -> None:
    model = toy_t5(0, 1, 2)
    step_bytes = open_decoder(model, "large").capabilities.step_bytes
    read_once = ("EncDecAttention.k.weight", "EncDecAttention.v.weight")
    matrices = [
        weight
        for name, weight in model.decoder.named_parameters()
        if name.startswith("block") and weight.dim() == 2 and "relative" not in name and not name.endswith(read_once)
    ]
    exact = 4 * (sum(weight.numel() for weight in matrices) + model.shared.weight.numel())
    # Outputs are padded to whole panels.
    assert exact <= step_bytes < 8 * exact


def test_the_runtime_knows_its_weights_and_the_caches_of_a_text() -> None:
    model = toy_t5(0, 1, 2)
    decoder = open_decoder(model, "large")
    assert isinstance(decoder, NativeDecoder)
    can = decoder.capabilities
    exact = sum(weight.nbytes for weight in model.parameters())
    # Outputs are padded to whole panels.
    assert exact - model.shared.weight.nbytes < can.weight_bytes < 8 * exact
    decoder.start(decoder.encode([list(range(2, 22)) * 4]))
    decoder.forward([[*decoder.start_tokens] * 60])
    allocated = decoder._cache._own.nbytes + decoder._cache._cross.nbytes
    assert can.cache_bytes is not None and can.cache_bytes(80, 60) == allocated
    assert can.cache_bytes(80, 70) > allocated
