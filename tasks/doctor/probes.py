"""What runs in a child process of the doctor: `python -m tasks.doctor.probes NAME ARGUMENT ...`.

A probe yields values, each printed as a line of JSON, `{"value": …}`. An exception is the last line, `{"error": …}`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, cast

from tasks.doctor.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


def imports(*modules: str) -> Iterator[dict[str, str]]:
    """Import each module and yield its name and why that failed, empty if it did not."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a broken installation may raise anything)
            yield {"module": module, "failure": one_line(error)}
        else:
            yield {"module": module, "failure": ""}


def torch_build() -> Iterator[dict[str, Any]]:
    """Yield torch's version and build, what it sees of the processor, and each GPU after a product on it."""
    import torch

    _multiply(torch.device("cpu"))
    driver, gpus = "", []
    if torch.cuda.is_available():
        gpus = [_gpu(index) for index in range(torch.cuda.device_count())]
    elif torch.version.cuda or torch.version.hip:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # raises what says why
        except (RuntimeError, AssertionError) as error:
            driver = one_line(error)
    yield {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "driver": driver,
        "gpus": gpus,
    }


def _gpu(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    found = {"name": properties.name, "bytes": properties.total_memory, "failure": ""}
    try:
        _multiply(torch.device("cuda", index))
    except RuntimeError as error:  # a build without code for this GPU, a GPU that others have filled
        found["failure"] = one_line(error)
    return found


def _multiply(device: torch.device) -> None:
    import torch

    ones = torch.ones(32, 32, device=device)
    if not bool(((ones @ ones) == 32).all()):
        raise ArithmeticError(f"a product of matrices of ones is wrong on {device}")


def training_step(device: str) -> Iterator[str]:
    """Take one optimiser step with the engine that the stages train with; yield DeepSpeed's version."""
    import torch

    from tasks.training.engine import backward, create_engine
    from tasks.training.settings import TrainingSettings

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = TrainingSettings(optimizer="adamw")
    model = cast("Any", torch.nn.Linear(2, 1))
    engine = create_engine(model.to(device), settings, torch.device(device))
    before = model.weight.detach().clone()
    backward(engine, engine(torch.ones(1, 2, device=device)).sum(), settings)
    engine.step()
    if torch.equal(before, model.weight):
        raise ArithmeticError("an optimiser step changed no weight")
    import deepspeed

    yield str(deepspeed.__version__)


def repository() -> Iterator[dict[str, Any]]:
    """Open the DVC repository of this folder with its graph; yield DVC's version and the number of stages."""
    import dvc
    from dvc.repo import Repo

    yield {"version": str(dvc.__version__), "stages": len(Repo(".").index.stages)}


def compiled_code(path: str) -> Iterator[dict[str, Any]]:
    """Load the library that `tasks.doctor.compiling` has built and call its functions."""
    functions = ctypes.CDLL(path)
    functions.doctor_extensions.restype = ctypes.c_char_p
    yield {"lanes": functions.doctor_lanes(), "extensions": functions.doctor_extensions().decode().split()}


PROBES: dict[str, Callable[..., Iterator[Any]]] = {
    probe.__name__: probe for probe in (imports, torch_build, training_step, repository, compiled_code)
}


def main(name: str, *arguments: str) -> int:
    """Run a probe; libraries that print go to standard error, so that standard output holds answers alone."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            for value in PROBES[name](*arguments):
                print(json.dumps({"value": value}), file=answers, flush=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (as above)
            print(json.dumps({"error": one_line(error)}), file=answers, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
