"""The GPU benchmark on a CPU with tiny models: every part runs, and mismatches are found."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bench import gpu
from tasks.bench.contenders import random_model
from tasks.bench.gpu import QUICK, RATIOS, copy_bandwidth, static_generate, step_bytes
from tasks.errors import InputError

CPU = torch.device("cpu")
PARTS = ("float32_tokens", "bfloat16_tokens", "steps", "compared")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    monkeypatch.setattr(gpu, "STEPS", 4)
    monkeypatch.setattr(gpu, "BATCH", 4)
    gpu.main(["--device", "cpu", "--quick", "--rounds", "1"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_every_part_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "QUICK", [dataclasses.replace(shape, compiled=False) for shape in QUICK])
    result = run(monkeypatch, capsys)
    assert {*RATIOS, "device", "versions", "copy_GB_per_s", "float32_wrong", "shapes"} <= {*result}
    assert [*result["shapes"]] == [shape.name for shape in QUICK]
    for shape in QUICK:
        found = result["shapes"][shape.name]
        assert {*found} == {"left_out", *PARTS}
        assert found["left_out"] == []
        assert found["float32_tokens"]["texts"] == 12
        assert found["compared"]["acceptance"]["bild"]["large_calls_per_token"] > 0


@pytest.mark.slow
def test_a_compiled_generate_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "QUICK", [shape for shape in QUICK if shape.compiled])
    [found] = run(monkeypatch, capsys)["shapes"].values()
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
    assert result["float32_wrong"] == 0 and result["shapes"]["tiny llama"] == {"left_out": [*PARTS]}
