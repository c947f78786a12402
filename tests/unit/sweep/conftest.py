"""A toy task in a folder of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import sweep as stage
from tasks.corpora.example import write_jsonl
from tasks.locks import timing_lock
from tests.architectures import pair_of
from tests.ticking import examples_of
from tests.toy_sweep import PATHS, Recorded, opened


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    """A task of toy models in a folder, and the records of its sweeps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own
    pair, found = pair_of("t5"), []
    for name, seed in (("validation", 0), ("test", 1)):
        PATHS.split(name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(examples_of(pair, 6, seed), PATHS.split(name))

    def record(*about: Any) -> Recorded:
        found.append(Recorded(*about))
        return found[-1]

    @contextlib.contextmanager
    def watched(device: str) -> Iterator[None]:
        with timing_lock(device):
            Recorded.locked = True
            yield
            Recorded.locked = False

    monkeypatch.setattr(stage, "timing_lock", watched)
    monkeypatch.setattr(stage, "SweepRecord", record)
    monkeypatch.setattr(stage, "load_pair", lambda *_: opened(pair))
    yield found
