"""The GPU benchmark on a CPU with tiny models: every part runs, and mismatches are found."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, cast

import pytest
import torch

from tasks.bench_gpu import __main__ as bench
from tasks.bench_gpu import timings
from tasks.bench_gpu.agreement import agreement
from tasks.bench_gpu.compiling import attempted
from tasks.bench_gpu.roofline import copy_bandwidth, step_bytes
from tasks.bench_gpu.shapes import END, QUICK, random_model, random_sources
from tasks.bench_gpu.timings import PACES, RATIOS, WithoutDeviceCheck
from tasks.decoding.decoder import REFERENCE, Decoder, Runtime
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.errors import InputError
from tasks.evaluation.mismatches import MARGIN_TOLERANCE
from tests.architectures import models
from tests.toys import toy_sources

CPU = torch.device("cpu")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench_gpu", *arguments])
    return bench.main()


def test_every_part_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(timings, "_STEPS", 4)
    monkeypatch.setattr(timings, "BATCH", 4)
    plain = [dataclasses.replace(shape, compiled=False) for shape in QUICK]
    monkeypatch.setattr(bench, "QUICK", plain)
    assert run(monkeypatch, "--device", "cpu", "--quick", "--rounds", "1") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*RATIOS, "device", "torch", "transformers", "copy_GB_per_s", "float32_wrong", "shapes"} <= {*result}
    assert [*result["shapes"]] == [shape.name for shape in QUICK]
    parts = {"left_out", "float32_tokens", "bfloat16_tokens", "steps", "beside_generate"}
    parts |= {"encoder_ms", "sync_policy_ms_per_token", "verification_ms_per_token", "peak_GiB"}
    for shape in QUICK:
        found = result["shapes"][shape.name]
        assert {*found} == parts
        assert found["left_out"] == []
        assert found["float32_tokens"]["texts"] == 12
        assert {*found["sync_policy_ms_per_token"]["bild"]} == {*PACES}
        assert all({*ways} == {"on the device", "by the loop"} for ways in found["verification_ms_per_token"].values())
        assert found["beside_generate"]["acceptance"]["bild"]["large_calls_per_token"] > 0


@pytest.mark.slow
def test_compiled_parts_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(timings, "_STEPS", 4)
    monkeypatch.setattr(bench, "QUICK", [shape for shape in QUICK if shape.compiled])
    assert run(monkeypatch, "--device", "cpu", "--quick", "--rounds", "1") == 0
    [found] = json.loads(capsys.readouterr().out.splitlines()[-1])["shapes"].values()
    assert not any("failed" in found[part] for part in ("static_generate", "compiled_layers"))


def test_parts_left_out_for_time_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert run(monkeypatch, "--device", "cpu", "--quick", "--minutes", "0") == 0
    assert time.monotonic() - begun < 60
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["shapes"]["tiny llama"] == {
        "left_out": [
            *("float32_tokens", "bfloat16_tokens", "steps", "beside_generate", "encoder_ms"),
            *("sync_policy_ms_per_token", "verification_ms_per_token", "peak_GiB"),
        ]
    }


def test_a_failure_is_a_result() -> None:
    def work() -> dict[str, Any]:
        raise RuntimeError("no compiler\nand more")

    assert attempted(work) == {"failed": "RuntimeError: no compiler"}


def test_a_missing_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="bench-gpu times a CUDA GPU, and torch finds none"):
        run(monkeypatch)


def test_mismatches_are_found_with_their_margins() -> None:
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
def test_random_pairs_generate_varied_texts_that_never_end(shape: Any) -> None:
    small, large = (random_model(one, CPU, seed) for seed, one in enumerate((shape.small, shape.large)))
    pair = open_pair(small, large)
    sources = random_sources(shape.large.vocabulary, 6, 12)
    assert all(source[-1] == END and 6 <= len(source) <= 12 for source in sources)
    texts = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, Request(20))]
    assert all(len(text) == 20 and END not in text and len({*text}) > 8 for text in texts)


def test_drafts_checked_by_the_loop_give_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = open_pair(*models("t5"), runtime=Runtime("fused"))
    checks = []
    check = FusedDecoder.check_draft

    def counted(decoder: FusedDecoder, *arguments: Any) -> Any:
        checks.append(arguments)
        return check(decoder, *arguments)

    monkeypatch.setattr(FusedDecoder, "check_draft", counted)
    other = dataclasses.replace(pair, large=cast(Decoder, WithoutDeviceCheck(pair.large)))
    texts = []
    for judged_on_the_device, one in ((True, pair), (False, other)):
        checks.clear()
        texts.append([decode("bild", BildSettings(), one, [source], Request(20))[0] for source in toy_sources(4)])
        assert bool(checks) == judged_on_the_device
    assert texts[0] == texts[1]


def test_bytes_of_a_step() -> None:
    """By hand for a float32 T5 of width 64, 3 layers, feed-forward 96 and 96 tokens."""
    model = random_model(QUICK[0].large, CPU, 0)
    layer = (3 + 1 + 1 + 1) * 64 * 64 + 2 * 64 * 96
    caches = 2 * 64 * (5 + 7)
    assert step_bytes(model, 1, 5, 7) == 4 * (3 * layer + 96 * 64 + 3 * caches)
    assert step_bytes(model, 4, 5, 7) - step_bytes(model, 1, 5, 7) == 4 * 3 * 3 * caches


def test_bandwidth_counts_reading_and_writing() -> None:
    ticks = iter(range(100))
    assert copy_bandwidth(CPU, 1000, lambda: float(next(ticks))) == 2000
