"""The servers that are compared, each a process of its own on a free port."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks import supervisor
from tasks.bench import ctranslate

OURS, VANILLA, TRANSFORMERS, CTRANSLATE2 = "served", "vanilla", "transformers", "ctranslate2"
AGAIN = "vanilla, again"
"""A second server that differs from `VANILLA` in nothing: what two processes differ by."""
_START = 300.0
"""Seconds within which a server must be up, its warm-up included."""


@contextmanager
def running_server(words: list[str], environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Start a server, and end it on exit.

    Yields:
        Its address, and the line that it said of its warm-up.

    Raises:
        RuntimeError: it did not start.
    """
    command = [sys.executable, "-m", *words]
    with tempfile.TemporaryFile() as said:
        environment = dict(os.environ if environment is None else environment)
        with supervisor.running(command, env=environment, stderr=said, stdout=subprocess.DEVNULL) as process:
            yield _address(process, said.fileno(), words)


def _address(process: subprocess.Popen[bytes], said: int, words: list[str]) -> tuple[str, str]:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        text = os.pread(said, 1 << 16, 0).decode("utf-8", errors="replace")
        found = re.search(r"^(.*)\nserving \S+ on (http://\S+?): ", text, re.MULTILINE)
        if found:
            return found[2], found[1]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"{' '.join(words)} did not start: {' '.join(text.strip().splitlines()[-1:])}")


@contextmanager
def all_servers(
    pair: Path, converted: Path, environments: Mapping[str, Mapping[str, str]], threads: int, rng: random.Random
) -> Iterator[dict[str, tuple[str, str]]]:
    """Run every server; CTranslate2 once for each of its environments.

    Args:
        pair: Its folder.
        converted: The large model as CTranslate2 reads it; not read without environments.
        environments: Variables by name (`ctranslate.ENVIRONMENTS`).
        threads: Of every server.
        rng: Draws the order in which they start.
    """
    count = ["--threads", str(threads)]
    ours = ["tasks.serve", "--pair", str(pair), "--port", "0", *count]
    peer = ["tasks.bench.serving.peer"]
    wanted: dict[str, tuple[list[str], Mapping[str, str] | None]] = {
        OURS: (ours, None),
        **{name: ([*ours, "--drafting", "never"], None) for name in (VANILLA, AGAIN)},
        TRANSFORMERS: ([*peer, TRANSFORMERS, "--pair", str(pair), *count], None),
    }
    own = {key: value for key, value in os.environ.items() if key not in ctranslate.OUR_THREAD_VARIABLES}
    words = [*peer, CTRANSLATE2, "--pair", str(pair), "--converted", str(converted), *count]
    wanted |= {f"{CTRANSLATE2}, {name}": (words, {**own, **variables}) for name, variables in environments.items()}
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_server(*wanted[name])) for name in rng.sample(list(wanted), len(wanted))}
