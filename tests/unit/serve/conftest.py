"""A tiny pair, opened once, and an engine whose every run a test can hold back."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from tasks.decoding import DecodingPair, load_pair
from tasks.decoding.generation import Counts, Generation
from tasks.serve.api import Completions, create_app
from tasks.serve.door import Door
from tasks.serve.pacing import Batch, Engine, Pacing, Way
from tasks.serve.protocol import CompletionRequest, RefusedError
from tasks.serve.scheduler import Scheduler, ServerMetrics, ServerSettings
from tests.pair_folders import tiny_pair


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def pair(pair_folder: Path) -> DecodingPair:
    return load_pair(pair_folder)


@dataclass
class HeldEngine:
    """Gives each text back as its own output, in batches that wait until they are released."""

    name: str = "held"
    drafts: bool = False
    ends: frozenset[int] = frozenset({1})
    batches: list[list[list[int]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    turn: Callable[[Batch], None] | None = None

    def described(self, way: Way) -> str:
        return "drafting" if way.drafting else "plain"

    def run(self, batch: Batch, way: Way) -> None:
        self.batches.append(list(batch.rows))
        self.entered.release()
        assert self.released.wait(20)
        if self.turn is not None:
            self.turn(batch)
        for position, row in enumerate(batch.rows):
            batch.finish(position, Generation(row, "l" * len(row), Counts(tokens=len(row))))


def app_of(
    pair: DecodingPair, engine: Engine, limits: ServerSettings, *, fixed: bool | None = None, max_queue: int = 8, key: str = ""
) -> Door:
    """The application of a server with batches of up to four texts."""
    metrics = ServerMetrics()
    scheduler = Scheduler(engine, Pacing(engine.drafts, fixed), metrics, max_batch=4, max_queue=max_queue)
    return create_app(Completions(pair, engine, scheduler, metrics, "toy", limits), key)


def held_encoding(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let prompts wait while they are encoded; return what says that one does, and what lets all of them be refused."""
    begun, released = threading.Event(), threading.Event()

    def encoded(*_: object) -> NoReturn:
        begun.set()
        released.wait(60)
        raise RefusedError(400, "encoded at last")

    monkeypatch.setattr(CompletionRequest, "rows", encoded)
    return begun, released
