"""CTranslate2, which decodes T5 in C++: it converts the same weights and is timed in processes of its own.

A process has one of its settings that are read from the environment, and its own thread pool, left as its makers set it. Only
the translation itself is timed, in there.
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
from typing import IO, Any

from tasks.decoding.decoder import Rows

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "its own choice of kernels": {},
    "packed matrices": {"CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
    "MKL": {"CT2_USE_MKL": "1"},
}
_OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
"""How threads wait is set for this project's way of working (`tasks/__init__.py`): not for a rival."""


def version() -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version("ctranslate2")
    except importlib.metadata.PackageNotFoundError:
        return None


def convert(model: Any, folder: Path) -> None:
    """Writes a T5 of `transformers` in float32; a token is called by its number, so no tokenizer is needed."""
    from ctranslate2.converters.transformers import T5Loader

    spec = T5Loader().get_model_spec(model)
    names = [str(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    start, end = str(model.config.decoder_start_token_id), str(model.generation_config.eos_token_id)
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token = end
    # It must have one; no text here is unknown to it.
    spec.config.unk_token = next(name for name in names if name not in (start, end))
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


class TranslatorProcess:
    """A process that translates, greedily, in float32."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, sources: Rows, limit: int, threads: int, *, batched: bool = False) -> tuple[float, Rows]:
        """Seconds and new tokens, the end token left out, of sources one after the other or as one batch."""
        asked = {"folder": str(folder), "sources": sources, "limit": limit, "threads": threads, "batched": batched}
        answered = self._ask(asked)
        return answered["seconds"], answered["texts"]

    def _ask(self, asked: dict[str, Any]) -> Any:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None  # noqa: S101 (both are pipes)
        to.write(json.dumps(asked) + "\n")
        to.flush()
        line = back.readline()
        if not line:
            raise RuntimeError(f"the process of CTranslate2 ended with status {self._process.wait()}")
        return json.loads(line)


@contextmanager
def translator_process(environment: dict[str, str]) -> Iterator[TranslatorProcess]:
    """Starts a process with these settings, and ends it afterwards."""
    command = [sys.executable, "-m", "tasks.bench.ctranslate"]
    settings = {name: value for name, value in os.environ.items() if name not in _OURS} | environment
    with subprocess.Popen(  # noqa: S603 (this module)
        command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield TranslatorProcess(process)
        finally:
            process.kill()


@contextmanager
def all_environments() -> Iterator[dict[str, TranslatorProcess]]:
    """A process for each of `ENVIRONMENTS`; none where CTranslate2 is not installed."""
    with ExitStack() as stack:
        wanted = ENVIRONMENTS.items() if version() else ()
        yield {name: stack.enter_context(translator_process(environment)) for name, environment in wanted}


def translate(translator: Any, sources: Rows, limit: int, *, batched: bool) -> tuple[float, Rows]:
    """In this process: what `Translating.run` gives."""
    named = [[str(token) for token in source] for source in sources]
    begun = time.perf_counter()
    results = []
    for batch in [named] if batched else [[one] for one in named]:
        results += translator.translate_batch(batch, beam_size=1, max_decoding_length=limit, max_input_length=0)
    seconds = time.perf_counter() - begun
    return seconds, [[int(token) for token in result.hypotheses[0]] for result in results]


def open_translator(folder: str, threads: int) -> Any:
    """A converted model on that many threads, one translation at a time."""
    import ctranslate2

    return ctranslate2.Translator(folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads)


def serve(asked: IO[str], answers: IO[str]) -> None:
    """Answers each line with a line; models stay open."""
    opened: dict[tuple[str, int], Any] = {}
    for line in asked:
        one = json.loads(line)
        key = (one["folder"], one["threads"])
        if key not in opened:
            opened[key] = open_translator(*key)
        seconds, texts = translate(opened[key], one["sources"], one["limit"], batched=one["batched"])
        answers.write(json.dumps({"seconds": seconds, "texts": texts}) + "\n")
        answers.flush()


if __name__ == "__main__":
    for name in _OURS:
        os.environ.pop(name, None)
    serve(sys.stdin, sys.stdout)
