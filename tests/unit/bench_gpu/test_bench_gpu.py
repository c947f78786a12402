"""The GPU benchmark goes through all of it on a CPU, and finds what it is there to find."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, cast

import pytest
import torch

from tasks.bench.mismatches import MARGIN_TOLERANCE
from tasks.bench_gpu import __main__ as bench
from tasks.bench_gpu.agreement import agreement
from tasks.bench_gpu.compiling import attempted
from tasks.bench_gpu.roofline import copy_bandwidth, step_bytes
from tasks.bench_gpu.shapes import END, QUICK, random_model, random_sources
from tasks.bench_gpu.timings import PACES, RATIOS, WithoutDeviceCheck
from tasks.decoding.decoder import Decoder
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.runtimes.opened import REFERENCE, Runtime
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.decoding.strategies import Pair, Request, decode
from tasks.errors import InputError
from tests.architectures import models
from tests.toys import toy_sources

CPU = torch.device("cpu")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench_gpu", *arguments])
    return bench.main()


def test_every_part_of_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--device", "cpu", "--quick", "--rounds", "1") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*RATIOS, "device", "torch", "transformers", "copy_GB_per_s", "float32_wrong", "shapes"} <= {*result}
    assert [*result["shapes"]] == [shape.name for shape in QUICK]
    parts = {"left_out", "float32_tokens", "bfloat16_tokens", "steps", "beside_generate"}
    parts |= {"encoder_ms", "paces_ms_per_token", "judging_ms_per_token", "peak_GiB"}
    for shape in QUICK:
        found = result["shapes"][shape.name]
        assert {*found} == parts | ({"static_generate", "compiled_layers"} if shape.compiled else set())
        assert found["left_out"] == []
        assert not any("failed" in found.get(part, {}) for part in ("static_generate", "compiled_layers"))
        assert found["float32_tokens"]["texts"] == 12
        assert {*found["paces_ms_per_token"]["bild"]} == {*PACES}
        assert all({*ways} == {"on the device", "by the loop"} for ways in found["judging_ms_per_token"].values())
        assert found["beside_generate"]["acceptance"]["bild"]["large_calls_per_token"] > 0


def test_what_there_is_no_time_for_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert run(monkeypatch, "--device", "cpu", "--quick", "--minutes", "0") == 0
    assert time.monotonic() - begun < 60
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["shapes"]["tiny llama"] == {
        "left_out": [
            *("float32_tokens", "bfloat16_tokens", "steps", "beside_generate", "encoder_ms"),
            *("paces_ms_per_token", "judging_ms_per_token", "peak_GiB"),
        ]
    }


def test_what_fails_says_of_what() -> None:
    def work() -> dict[str, Any]:
        raise RuntimeError("no compiler\nand more")

    assert attempted(work) == {"failed": "RuntimeError: no compiler"}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="bench-gpu times a CUDA GPU, and torch finds none here"):
        run(monkeypatch)


def test_other_tokens_are_found_with_their_margins() -> None:
    small, large = models("llama")
    other = models("llama")[0]
    ours = open_pair(small, other, runtime=REFERENCE)
    found = agreement(ours, open_pair(small, large, runtime=REFERENCE), toy_sources(4), 10)
    assert found.texts == 24
    assert found.margins
    assert max(found.margins) > MARGIN_TOLERANCE
    same = open_pair(small, large, runtime=REFERENCE)
    assert agreement(same, Pair(same.small, same.large), toy_sources(4), 10).as_json() == {
        "texts": 24,
        "different": 0,
        "widest_margin": 0.0,
    }


@pytest.mark.parametrize("shape", QUICK, ids=[shape.name for shape in QUICK])
def test_random_pairs_write_varied_texts_that_never_end(shape: Any) -> None:
    small, large = (random_model(one, CPU, seed) for seed, one in enumerate((shape.small, shape.large)))
    pair = open_pair(small, large)
    sources = random_sources(shape.large.vocabulary, 6, 12)
    assert all(source[-1] == END and 6 <= len(source) <= 12 for source in sources)
    texts = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, Request(20))]
    assert all(len(text) == 20 and END not in text and len({*text}) > 8 for text in texts)


def test_who_leaves_drafts_to_the_loop_gives_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = open_pair(*models("t5"), runtime=Runtime("fused"))
    checks = []
    check = FusedDecoder.check

    def counted(decoder: FusedDecoder, *arguments: Any) -> Any:
        checks.append(arguments)
        return check(decoder, *arguments)

    monkeypatch.setattr(FusedDecoder, "check", counted)
    other = dataclasses.replace(pair, large=cast(Decoder, WithoutDeviceCheck(pair.large)))
    texts = []
    for judged_on_the_device, one in ((True, pair), (False, other)):
        checks.clear()
        texts.append([decode("bild", BildSettings(), one, [source], Request(20))[0] for source in toy_sources(4)])
        assert bool(checks) == judged_on_the_device
    assert texts[0] == texts[1]


def test_bytes_of_a_step() -> None:
    """Worked out by hand: a T5 of width 64 with 3 layers, 96 inside, 96 tokens, in float32."""
    model = random_model(QUICK[0].large, CPU, 0)
    layer = (3 + 1 + 1 + 1) * 64 * 64 + 2 * 64 * 96
    caches = 2 * 64 * (5 + 7)
    assert step_bytes(model, 1, 5, 7) == 4 * (3 * layer + 96 * 64 + 3 * caches)
    assert step_bytes(model, 4, 5, 7) - step_bytes(model, 1, 5, 7) == 4 * 3 * 3 * caches


def test_bandwidth_counts_reading_and_writing() -> None:
    ticks = iter(range(100))
    assert copy_bandwidth(CPU, 1000, lambda: float(next(ticks))) == 2000
