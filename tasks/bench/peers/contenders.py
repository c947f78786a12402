"""The contenders of a number format: what each needs to be installed, its settings, and the process that it runs in."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tasks import supervisor
from tasks.bench.contenders import label
from tasks.bench.ctranslate import OUR_THREAD_VARIABLES
from tasks.bench.timing import Found
from tasks.errors import InputError

DRAFT_LENGTHS = (2, 4, 8)
LOOKED_UP = (3, 10)
"""Tokens that `generate` copies from the prompt at a time."""
_LLAMA_WORKER = Path(__file__).with_name("llama_worker.py")
_INSTALL_LLAMA = "make an environment, run `pip install llama-cpp-python gguf` in it, and name its interpreter"


@dataclass(frozen=True)
class Contender:
    """A way to decode, and the settings that it is tried at, by label."""

    name: str
    kind: str
    """Which process runs it: here, transformers, ctranslate2 or llama.cpp."""
    settings: dict[str, Found]
    drafts: bool = False
    """Whether a peer decodes faster than one token a run of the model."""


def contenders_of(counts: list[int], bild: Found | None = None) -> list[Contender]:
    """All contenders, each tried with these numbers of threads.

    Args:
        counts: Numbers of threads.
        bild: Settings of BiLD with a small model; None where there is none, which leaves out all that draft with one.
    """
    caches = ("dynamic cache", "static cache", "static cache, compiled")
    growing = {"cache": caches[0]}
    drafters = {"copy": "copying from the text"} | ({} if bild is None else {"small": "the small model"})
    found = [
        Contender("vanilla", "here", _threaded({"": {}}, counts)),
        Contender("speculative", "here", _threaded(_speculative(drafters), counts)),
        Contender("generate", "transformers", _threaded({one: {"cache": one} for one in caches}, counts)),
        Contender(
            "prompt look-up",
            "transformers",
            _threaded({f"{one} tokens": {**growing, "look_up": one} for one in LOOKED_UP}, counts),
            drafts=True,
        ),
        Contender("ctranslate2", "ctranslate2", _threaded({"": {}}, counts)),
        Contender("llama.cpp", "llama.cpp", _threaded({"flash attention": {"flash": True}, "plain": {"flash": False}}, counts)),
    ]
    if bild is not None:
        lengths = {"draft length by its rules": None} | {f"draft length {one}": one for one in DRAFT_LENGTHS}
        assisted = {name: {**growing, "assisted": one} for name, one in lengths.items()}
        found.insert(2, Contender("bild", "here", _threaded({"": {"method": "bild", "settings": bild}}, counts)))
        found.append(Contender("assisted", "transformers", _threaded(assisted, counts), drafts=True))
    return found


def _speculative(drafters: dict[str, str]) -> dict[str, Found]:
    return {
        f"{words}, draft length {one}": {"method": "speculative", "settings": {"drafter": drafter, "draft_length": one}}
        for drafter, words in drafters.items()
        for one in DRAFT_LENGTHS
    }


def _threaded(settings: dict[str, Found], counts: list[int]) -> dict[str, Found]:
    return {label(name, count): {**setting, "threads": count} for name, setting in settings.items() for count in counts}


class ContenderProcess:
    """A process that answers as `worker.serve` does."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes], first: Found) -> None:
        """Send the first line and wait until the process has opened its model.

        Args:
            process: It answers on standard output.
            errors: The file that it writes standard error to.
            first: The first line.

        Raises:
            RuntimeError: the process ended.
        """
        self._process, self._errors = process, errors
        self.opened = self.ask(first)
        """`seconds` of opening, and whatever else the process says of itself."""

    def ask(self, line: Found) -> Found:
        """Send a line and return its answer."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None  # noqa: S101 (both are pipes)
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            to.write(json.dumps(line).encode() + b"\n")
            to.flush()
            answer = back.readline()
        if not answer:
            raise RuntimeError(f"the process ended with status {self._process.wait()}: {self._last_words()}")
        answered: Found = json.loads(answer)
        return answered

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@dataclass(frozen=True)
class Checkpoint:
    """A model that all contenders open."""

    folder: Path
    ends: list[int]
    """Tokens that end a text."""
    scratch: Path
    """Folder for the forms that other programs read."""
    llama_python: Path | None
    """Interpreter of an environment with llama-cpp-python and gguf."""
    small: Path | None = None
    """A model that drafts for it."""


@contextmanager
def all_processes(model: Checkpoint, number_format: str, say: Callable[[str], None]) -> Iterator[dict[str, ContenderProcess]]:
    """Start a process for each kind of contender; those that cannot run are left out with one line that says why."""
    starts: dict[str, Callable[[], tuple[list[str], Path]]] = {
        "here": lambda: (_here("here"), model.folder),
        "transformers": lambda: (_here("transformers"), model.folder),
        "ctranslate2": lambda: (_here("ctranslate2"), _for_ctranslate2(model, number_format)),
        "llama.cpp": lambda: (_llama_command(model), model.folder),
    }
    with ExitStack() as stack:
        running = {}
        for kind, start in starts.items():
            if kind == "transformers" and number_format == "int8":
                say("  transformers: left out, since it has no int8 for CPUs of its own")
                continue
            try:
                command, folder = start()
                running[kind] = stack.enter_context(_process(command, kind, folder, model, number_format))
            except (RuntimeError, ValueError, ImportError) as error:
                say(f"  {kind}: left out: {' '.join(str(error).split())[:200]}")
        yield running


@contextmanager
def _process(command: list[str], kind: str, folder: Path, model: Checkpoint, number_format: str) -> Iterator[ContenderProcess]:
    first: Found = {"kind": kind, "folder": str(folder), "format": number_format, "ends": model.ends}
    first["small"] = None if model.small is None else str(model.small)
    first["converted"] = str(model.scratch / f"{number_format}.gguf")
    inherited = {name: value for name, value in os.environ.items() if kind == "here" or name not in OUR_THREAD_VARIABLES}
    pipe, environment = subprocess.PIPE, {**inherited, "TOKENIZERS_PARALLELISM": "false"}
    with (
        tempfile.TemporaryFile() as errors,
        supervisor.running(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors) as process,
    ):
        yield ContenderProcess(process, errors, first)


def _here(kind: str) -> list[str]:
    return [sys.executable, "-m", "tasks.bench.peers.worker", kind]


def _llama_command(model: Checkpoint) -> list[str]:
    if model.llama_python is None:
        raise RuntimeError(f"{_INSTALL_LLAMA} with --llama-cpp-python")
    if not model.llama_python.exists():
        raise InputError(f"--llama-cpp-python names {model.llama_python}, which does not exist; {_INSTALL_LLAMA}")
    return [str(model.llama_python), str(_LLAMA_WORKER)]


def _for_ctranslate2(model: Checkpoint, number_format: str) -> Path:
    """Convert a Llama for CTranslate2, its tokens named by their numbers; return the folder."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise RuntimeError("pip install ctranslate2")
    import ctranslate2
    from ctranslate2.converters.transformers import LlamaLoader
    from transformers import AutoModelForCausalLM

    if number_format not in ctranslate2.get_supported_compute_types("cpu"):
        raise RuntimeError(f"it does not compute in {number_format} on this processor")
    folder = model.scratch / f"ctranslate2-{number_format}"
    loaded: Any = AutoModelForCausalLM.from_pretrained(model.folder)
    # Where transformers 5 keeps it, CTranslate2 4.8 does not look.
    loaded.config.rope_theta = loaded.config.rope_parameters["rope_theta"]
    spec = LlamaLoader().get_model_spec(loaded)
    names = [str(token) for token in range(loaded.config.vocab_size)]
    spec.register_vocabulary(names)
    spec.config.bos_token = spec.config.unk_token = names[0]
    spec.config.eos_token = names[model.ends[0]]
    spec.validate()
    spec.optimize(quantization=number_format)
    folder.mkdir()
    spec.save(str(folder))
    return folder
