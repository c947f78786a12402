"""The CTranslate2 baseline: T5 decoded in C++ from the same weights, timed in processes of its own.

Each process has one of the settings that CTranslate2 reads from the environment, and CTranslate2's own thread pool with its
default waiting policy. Only the translation itself is timed, inside that process.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tasks import supervisor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:  # the translating processes need no torch
    from tasks.decoding.decoder import Rows

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "its own choice of kernels": {},
    "packed matrices": {"CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
    "MKL": {"CT2_USE_MKL": "1"},
}
OUR_THREAD_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
"""Variables that `tasks/__init__.py` sets for this project's threads; a baseline runs without them."""


def version() -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return importlib.metadata.version("ctranslate2")
    except importlib.metadata.PackageNotFoundError:
        return None


def convert(model: PreTrainedModel, folder: Path) -> None:
    """Convert a T5 of `transformers` to float32 files. Tokens are named by their numbers, so no tokenizer is needed."""
    from ctranslate2.converters.transformers import T5Loader

    spec = T5Loader().get_model_spec(model)
    names = [str(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    start, end = str(model.config.decoder_start_token_id), str(model.generation_config.eos_token_id)
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token = end
    # CTranslate2 requires an unknown token; no text here contains one.
    spec.config.unk_token = next(name for name in names if name not in (start, end))
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def compute_types() -> frozenset[str]:
    """The number formats that CTranslate2 decodes in on this processor; none where it is not installed."""
    if version() is None:
        return frozenset()
    import ctranslate2

    return frozenset(ctranslate2.get_supported_compute_types("cpu"))


class TranslatorProcess:
    """A process that translates greedily."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(
        self, folder: Path, sources: Rows, limit: int, threads: int, *, batched: bool = False, number_format: str = "float32"
    ) -> tuple[float, Rows]:
        """Translate the sources one after the other, or as one batch, in one of `compute_types`.

        Returns:
            Seconds, and the new tokens of each source without the end token.

        Raises:
            RuntimeError: the process ended.
        """
        opened = {"folder": str(folder), "threads": threads, "number_format": number_format}
        answered = self._ask({**opened, "sources": sources, "limit": limit, "batched": batched})
        return answered["seconds"], answered["texts"]

    def _ask(self, asked: dict[str, Any]) -> Any:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None  # noqa: S101 (both are pipes)
        to.write(json.dumps(asked).encode() + b"\n")
        to.flush()
        line = back.readline()
        if not line:
            raise RuntimeError(f"the process of CTranslate2 ended with status {self._process.wait()}")
        return json.loads(line)


@contextmanager
def translator_process(environment: dict[str, str]) -> Iterator[TranslatorProcess]:
    """Start a process with these environment variables, and end it on exit."""
    command = [sys.executable, "-m", "tasks.bench.ctranslate"]
    settings = {name: value for name, value in os.environ.items() if name not in OUR_THREAD_VARIABLES} | environment
    pipe = subprocess.PIPE
    with supervisor.running(command, env=settings, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        yield TranslatorProcess(process)


@contextmanager
def all_environments() -> Iterator[dict[str, TranslatorProcess]]:
    """One process for each of `ENVIRONMENTS`; an empty dictionary where CTranslate2 is not installed."""
    with ExitStack() as stack:
        wanted = ENVIRONMENTS.items() if version() else ()
        yield {name: stack.enter_context(translator_process(environment)) for name, environment in wanted}


def translate(translator: Any, sources: Rows, limit: int, *, batched: bool) -> tuple[float, Rows]:
    """Translate in this process; see `TranslatorProcess.run`."""
    named = [[str(token) for token in source] for source in sources]
    begun = time.perf_counter()
    results = []
    for batch in [named] if batched else [[one] for one in named]:
        results += translator.translate_batch(batch, beam_size=1, max_decoding_length=limit, max_input_length=0)
    seconds = time.perf_counter() - begun
    return seconds, [[int(token) for token in result.hypotheses[0]] for result in results]


def open_translator(folder: str, threads: int, number_format: str = "float32") -> Any:
    """Open a converted model that does one translation at a time on `threads` threads."""
    import ctranslate2

    return ctranslate2.Translator(folder, device="cpu", compute_type=number_format, inter_threads=1, intra_threads=threads)


def serve(asked: IO[str], answers: IO[str]) -> None:
    """Answer each request line with a result line; models stay open between requests."""
    opened: dict[tuple[str, int, str], Any] = {}
    for line in asked:
        one = json.loads(line)
        key = (one["folder"], one["threads"], one["number_format"])
        if key not in opened:
            opened[key] = open_translator(*key)
        seconds, texts = translate(opened[key], one["sources"], one["limit"], batched=one["batched"])
        answers.write(json.dumps({"seconds": seconds, "texts": texts}) + "\n")
        answers.flush()


if __name__ == "__main__":
    for name in OUR_THREAD_VARIABLES:
        os.environ.pop(name, None)
    serve(sys.stdin, sys.stdout)
