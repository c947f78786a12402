"""Peak memory of one way of decoding a case, in a process of its own that has done nothing else before."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tasks.bench import ctranslate
from tasks.bench.cases import Case, LoadedCase
from tasks.decoding.settings import SpeculativeSettings

_MIB = 1024
_OF_TWO = ("speculative", "assisted", "bild")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peaks(case: Case, contenders: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each contender, in MiB: `whole`, its peak over an idle process, and `above_model`, over what it had loaded.

    Here, opening a model belongs to the work: what is packed anew counts as above the model. Two processes run at a time.
    """
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(contenders, pool.map(lambda name: _measured(case, name), contenders), strict=True))


def _measured(case: Case, contender: str) -> dict[str, float]:
    asked = json.dumps({"case": case.as_json(), "contender": contender})
    done = subprocess.run(
        [sys.executable, "-m", "tasks.bench.memory"], input=asked, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {contender} failed: {done.stderr.strip()[-300:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def work_of(opened: LoadedCase, contender: str) -> Callable[[], object]:
    """Loads what a contender needs and gives its work, which `measure` times nothing of."""
    case = opened.case
    one, many = case.window(0, 1), case.window(0, case.batch)
    if contender.endswith("ctranslate2"):
        translator = ctranslate.open_translator(str(case.converted), 1)
        batched = contender.startswith("batched")
        sources, limit = (many, case.batch_limit) if batched else (one, case.limit)
        return lambda: ctranslate.translate(translator, sources, limit, batched=batched)
    works: dict[str, Callable[[], object]] = {
        "vanilla": lambda: opened.vanilla(one, case.limit),
        "generate": lambda: opened.generated(one, case.limit),
        "speculative": lambda: opened.here("speculative", SpeculativeSettings(), one, case.limit),
        "assisted": lambda: opened.assisted(one[0], case.limit),
        "bild": lambda: opened.bild(one, case.limit),
        "batched": lambda: opened.vanilla(many, case.batch_limit),
        "batched by generate": lambda: opened.generated(many, case.batch_limit),
    }
    _ = opened.large, opened.small
    return works[contender]


def measure(case: Case, contender: str) -> dict[str, float]:
    """In this process, MiB; see `peaks`."""
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
    """KiB in memory now; where /proc is missing, the most that ever was."""
    return _field("VmRSS")


def peak_kib() -> int:
    """The most that this process ever had in memory."""
    return _field("VmHWM")


def _field(name: str) -> int:
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    """Loading may have needed more than decoding does; Linux lets the mark be set back."""
    if os.access(_RESET, os.W_OK):
        _RESET.write_text("5")


def main() -> None:
    """Reads what to measure from standard input."""
    import torch

    torch.set_num_threads(1)
    asked: dict[str, Any] = json.loads(sys.stdin.read())
    case = Case.from_json(asked["case"])
    if asked["contender"].endswith("ctranslate2"):
        import ctranslate2  # noqa: F401 (an idle process has what it will need)
    from transformers import AutoModelForSeq2SeqLM, DynamicCache, T5ForConditionalGeneration  # noqa: F401 (as above)
    from transformers.utils import logging

    logging.set_verbosity_error()
    print(json.dumps(measure(case, asked["contender"])))


if __name__ == "__main__":
    main()
