"""Peak memory of each contender on a case, measured in a fresh process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks import supervisor
from tasks.bench import ctranslate
from tasks.bench.cases import Case, LoadedCase
from tasks.bench.timing import Found
from tasks.decoding.settings import SpeculativeSettings

_MIB = 1024
_OF_TWO = ("speculative", "assisted", "bild")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peaks(case: Case, contenders: Sequence[str]) -> dict[str, dict[str, float]]:
    """Peak memory of each contender in MiB: `whole`, above an idle process, and `above_model`, above its loaded models.

    For this project, opening a model is part of the work, so weights that a runtime repacks count as above the model. Two
    processes run at a time.
    """
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(contenders, pool.map(lambda name: _measured(case, name), contenders), strict=True))


def _measured(case: Case, contender: str) -> dict[str, float]:
    request = json.dumps({"case": case.as_json(), "contender": contender})
    done = supervisor.run([sys.executable, "-m", "tasks.bench.memory"], text=request)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {contender} failed: {done.stderr.strip()[-300:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def work_of(loaded: LoadedCase, contender: str) -> Callable[[], object]:
    """Load the models of a contender and return its work as a function, so that the two can be measured apart."""
    case = loaded.case
    one, many = case.window(0, 1), case.window(0, case.batch)
    if contender.endswith("ctranslate2"):
        translator = ctranslate.open_translator(str(case.converted), 1)
        batched = contender.startswith("batched")
        sources, limit = (many, case.batch_limit) if batched else (one, case.limit)
        return lambda: ctranslate.translate(translator, sources, limit, batched=batched)
    works: dict[str, Callable[[], object]] = {
        "vanilla": lambda: loaded.vanilla(one, case.limit),
        "generate": lambda: loaded.generated(one, case.limit),
        "speculative": lambda: loaded.here("speculative", SpeculativeSettings(), one, case.limit),
        "assisted": lambda: loaded.assisted(one[0], case.limit),
        "bild": lambda: loaded.bild(one, case.limit),
        "batched": lambda: loaded.vanilla(many, case.batch_limit),
        "batched by generate": lambda: loaded.generated(many, case.batch_limit),
    }
    _ = loaded.large, loaded.small
    return works[contender]


def measure(case: Case, contender: str) -> dict[str, float]:
    """Measure a contender in this process, in MiB; see `peaks`."""
    if contender not in _OF_TWO:
        case = dataclasses.replace(case, small=None)
    idle = _resident()
    work = work_of(LoadedCase(case), contender)
    loaded = _resident()
    _reset_peak()
    work()
    peak = peak_kib()
    return {"whole": round((peak - idle) / _MIB, 1), "above_model": round((peak - loaded) / _MIB, 1)}


def _resident() -> int:
    """Resident memory in KiB; without /proc, the peak."""
    return _field("VmRSS")


def peak_kib() -> int:
    """Peak resident memory of this process in KiB."""
    return _field("VmHWM")


def _field(name: str) -> int:
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    """Reset the peak on Linux, since loading may need more memory than decoding."""
    if os.access(_RESET, os.W_OK):
        _RESET.write_text("5")


def main() -> None:
    """Read the case and the contender from standard input, and print the measurement as JSON."""
    import torch

    torch.set_num_threads(1)
    request: Found = json.loads(sys.stdin.read())
    case = Case.from_json(request["case"])
    if request["contender"].endswith("ctranslate2"):
        import ctranslate2  # noqa: F401 (imported before the idle measurement)
    from transformers import AutoModelForSeq2SeqLM, DynamicCache, T5ForConditionalGeneration  # noqa: F401 (as above)
    from transformers.utils import logging

    logging.set_verbosity_error()
    print(json.dumps(measure(case, request["contender"])))


if __name__ == "__main__":
    main()
