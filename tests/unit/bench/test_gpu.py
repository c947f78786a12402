"""The GPU benchmark on a CPU with tiny models: every part runs, and mismatches are found."""

import contextlib
import ctypes
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.bench import gpu
from tasks.bench.contenders import random_model
from tasks.bench.gpu import (
    METHODS,
    PARTS,
    QUICK,
    RATIOS,
    SWEEP,
    TimeUpError,
    claims,
    copy_bandwidth,
    energy,
    static_generate,
    step_bytes,
    time_limit,
)
from tasks.errors import InputError

CPU = torch.device("cpu")
UNSWEPT = [part for part in PARTS if part != "sweep"]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    monkeypatch.setattr(gpu, "STEPS", 4)
    monkeypatch.setattr(gpu, "BATCH", 4)
    gpu.main(["--device", "cpu", "--quick", "--rounds", "1", *options])
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_every_part_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(monkeypatch, capsys)
    assert {*RATIOS, "device", "versions", "copy_GB_per_s", "float32_wrong", "shapes"} <= {*result}
    # Tiny models on a CPU show nothing about a GPU.
    assert [*result][-1] == "claims" and result["claims"] == []
    assert [*result["shapes"]] == [shape.name for shape in QUICK]
    for shape in QUICK:
        found = result["shapes"][shape.name]
        assert {*found} == {"left_out", *(PARTS if shape.swept else UNSWEPT)}
        assert found["left_out"] == []
        assert "failed" in found["energy"]
        assert found["sampled"]["ms_per_token"]["assisted"] > 0
        assert found["sampled"]["acceptance"]["large_calls_per_token"] > 0
        assert found["float32_tokens"]["texts"] == 12
        assert found["compared"]["acceptance"]["bild"]["large_calls_per_token"] > 0
    swept = result["shapes"]["tiny t5"]["sweep"]
    assert {*swept} == {*SWEEP} and all(0 <= one["equal_texts"] <= 1 for one in swept.values())


def test_what_does_not_fit_is_a_result_and_the_next_pair_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(pair: gpu.PairRun, _: float) -> None:
        if pair.shape.name == "tiny t5":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")
        pair.found = {"left_out": []}

    monkeypatch.setattr(gpu.PairRun, "_measure", measured)
    shapes = run(monkeypatch, capsys)["shapes"]
    assert shapes["tiny t5"] == {"left_out": [*PARTS], "failed": "CUDA out of memory. Tried to allocate"}
    assert shapes["tiny llama"] == {"left_out": []}


def test_it_stops_in_the_middle_of_a_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(gpu, "sweep", interrupted)
    monkeypatch.setattr(gpu.PairRun, "_agreement", lambda *_: {"texts": 1})
    shapes = run(monkeypatch, capsys)["shapes"]
    assert shapes["tiny t5"]["left_out"] == [*PARTS[2:]] and shapes["tiny t5"]["bfloat16_tokens"] == {"texts": 1}
    assert shapes["tiny llama"] == {"left_out": UNSWEPT}


def test_the_end_of_time_is_raised_again_where_it_was_swallowed() -> None:
    with pytest.raises(TimeUpError), time_limit(0.001):
        with contextlib.suppress(TimeUpError):
            time.sleep(5)
        time.sleep(5)
    time.sleep(1.1)  # nothing is raised behind it


def test_energy_and_memory_are_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 200 W with 3 GiB in use, and texts of 8 tokens that take half a second."""
    time_of_day = itertools.count()

    def find(uuid: bytes, gpu: Any) -> int:
        gpu.contents.value = 7
        return 0 if uuid == b"GPU-abc" else 1

    def count(gpu: Any, millijoules: Any) -> int:
        millijoules.contents.value = 200_000 * next(time_of_day)
        return 0 if gpu.value == 7 else 1

    def memory(_: object, total_free_used: Any) -> int:
        total_free_used[2] = 3 * 2**30
        return 0

    names = ("nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMemoryInfo")
    driver = SimpleNamespace(**dict(zip(names, (lambda: 0, find, count, memory), strict=True)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="abc"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 2**30)
    ticks = itertools.count(0.0, 0.5)

    def nothing(*_: object) -> Callable[[int], int]:
        return lambda index: index

    works: Any = SimpleNamespace(models=(None, None), limit=8, clock=ticks.__next__, decoded=nothing, generated=nothing)
    found = energy(works, CPU)
    assert [*found] == [*METHODS, "generate"]
    # 200 J between two readings, in which six texts end before the third second.
    assert found["generate"]["joules_per_token"] == 200 / (5 * 8)
    assert found["generate"]["watts"] == 200 / 3.0
    assert (found["generate"]["allocated_gib"], found["generate"]["device_gib"]) == (1.0, 3.0)


def test_claims_are_ratios_whose_interval_is_above_one() -> None:
    sure, open_, slower = ({"ratio": 1.5, "interval": one} for one in ([1.2, 1.9], [0.9, 1.9], [1.2, 1.4]))
    found = {
        "float32_tokens": {"texts": 48},
        "compared": {
            "ratios": {"vanilla_over_generate": sure, "bild_over_vanilla": open_, "few_rounds": sure | {"interval": None}}
        },
        "sampled": {"ratios": {"speculative_over_vanilla": sure}},
        "sweep": {
            "speculative, 5 drafted": {"over_vanilla": slower, "equal_texts": 1.0},
            "bild": {"over_vanilla": {"ratio": 9.0, "interval": [8.0, 9.5]}, "equal_texts": 0.9},
        },
        "energy": {"speculative": {"joules_per_token": 0.5}},
    }
    result = {
        "hardware": {"gpu": "H200"},
        "float32_wrong": 0,
        "shapes": {"t5-large": found, "t5-base": {"energy": {"failed": ""}}},
    }
    on = "on H200, random weights of t5-large's shape, bfloat16"
    assert claims(result) == [
        "All 48 float32 texts of the fused runtime are the reference's (t5-large).",
        f"vanilla over generate (greedy): 1.50 [1.20, 1.90] times as fast ({on}).",
        f"speculative over vanilla (temperature 1): 1.50 [1.20, 1.90] times as fast ({on}).",
        f"speculative, 5 drafted over vanilla, the fastest of 2 settings: 1.50 [1.20, 1.40] times as fast ({on}).",
        f"joules a token: speculative 0.5 ({on}).",
    ]
    assert claims(result | {"float32_wrong": 1})[0].startswith("vanilla")


@pytest.mark.slow
def test_a_compiled_generate_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "QUICK", [shape for shape in QUICK if shape.compiled])
    [found] = run(monkeypatch, capsys, "--compiled")["shapes"].values()
    assert found["static_generate"]["ms_per_token"] > 0


def test_a_failure_of_the_compiler_is_a_result() -> None:
    class Failing:
        models = (None, None)

        def generated(self, _model: object, **_: object) -> object:
            raise RuntimeError("no compiler\nand more")

    assert static_generate(Failing()) == {"failed": "RuntimeError: no compiler"}  # type: ignore[arg-type]


def test_a_missing_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="times a CUDA GPU, and torch finds none"):
        gpu.main([])


@pytest.mark.parametrize("minutes", ["nan", "inf", "-1"])
def test_a_time_that_is_none_is_one_line(minutes: str) -> None:
    with pytest.raises(InputError, match=f"--minutes is {minutes}; it must be a number, at least 0"):
        gpu.main(["--device", "cpu", "--minutes", minutes])


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


def test_it_needs_torch_and_transformers_alone_and_names_parts_left_out_for_time() -> None:
    """On a machine with a GPU there may be no other package of this project."""
    others = ["pydantic", "scipy", "psutil", "datasets", "pyarrow", "sacrebleu", "sentencepiece", "deepspeed", "mlflow"]
    code = "import runpy, sys\n"
    code += f"sys.modules.update(dict.fromkeys({others!r}))\n"  # an import of these raises
    code += "sys.argv = ['bench', 'gpu', '--device', 'cpu', '--quick', '--minutes', '0']\n"
    code += "runpy.run_module('tasks.bench', run_name='__main__')\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["float32_wrong"] == 0 and result["shapes"]["tiny llama"] == {"left_out": [*UNSWEPT]}
