"""The queue: what fits together shares a batch, nothing waits for company, and who hangs up gives the place back."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.turn import require_awaited
from tasks.serve.pacing import Batch, Pacing
from tasks.serve.scheduler import Job, QueueFullError, Scheduler, ServerMetrics
from tests.unit.serve.conftest import HeldEngine

GREEDY = Request(8)


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
def scheduler(engine: HeldEngine) -> Iterator[Scheduler]:
    """At most three texts in a batch and four that wait."""
    found = Scheduler(engine, Pacing(drafts=False), ServerMetrics(), max_batch=3, max_queue=4)
    found.start()
    yield found
    engine.released.set()
    found.stop()


class Answers:
    """Collects what jobs end with."""

    def __init__(self) -> None:
        self.ended: queue.Queue[tuple[int, Any]] = queue.Queue()

    def job(self, token: int, request: Request = GREEDY, **rest: Any) -> Job:
        return Job(
            [token, 1],
            request,
            done=lambda generation, _: self.ended.put((token, generation.tokens)),
            failed=lambda error: self.ended.put((token, error)),
            **rest,
        )

    def take(self, count: int) -> dict[int, Any]:
        return dict(self.ended.get(timeout=20) for _ in range(count))


@pytest.fixture
def answers() -> Answers:
    return Answers()


def occupy(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    """Let the worker run a batch of its own, which waits."""
    scheduler.add([answers.job(99)])
    assert engine.entered.acquire(timeout=20)


def test_what_waits_together_is_decoded_together(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    occupy(scheduler, engine, answers)
    for token in (2, 3, 4, 5):
        scheduler.add([answers.job(token)])
    engine.released.set()
    assert answers.take(5) == {token: [token, 1] for token in (99, 2, 3, 4, 5)}
    assert engine.batches == [[[99, 1]], [[2, 1], [3, 1], [4, 1]], [[5, 1]]]


def test_only_what_fits_shares_a_batch(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    """Another length, streaming and draws with a seed keep a text by itself; the oldest text goes first."""
    occupy(scheduler, engine, answers)
    drawn = Request(8, SamplingSettings(temperature=1.0), seed=3)
    scheduler.add([answers.job(2), answers.job(3, Request(9))])
    scheduler.add([answers.job(4, drawn, example=0), answers.job(5)])
    engine.released.set()
    answers.take(5)
    assert engine.batches[1:] == [[[2, 1], [5, 1]], [[3, 1]], [[4, 1]]]
    assert not answers.job(6, drawn, example=0).fits(answers.job(7, drawn, example=0))
    assert not answers.job(6).fits(answers.job(7, grown=lambda _: False))


def test_a_full_queue_takes_all_or_none(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    occupy(scheduler, engine, answers)
    scheduler.add([answers.job(token) for token in (2, 3, 4)])
    with pytest.raises(QueueFullError):
        scheduler.add([answers.job(5), answers.job(6)])
    scheduler.add([answers.job(7)])
    engine.released.set()
    assert set(answers.take(5)) == {99, 2, 3, 4, 7}


def test_who_hangs_up_gives_the_place_back(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    occupy(scheduler, engine, answers)
    waiting = [answers.job(token) for token in (2, 3, 4, 5)]
    scheduler.add(waiting)
    waiting[1].cancelled.set()
    scheduler.add([answers.job(6)])
    engine.released.set()
    assert set(answers.take(5)) == {99, 2, 4, 5, 6}
    assert [3, 1] not in [row for batch in engine.batches for row in batch]


def test_a_batch_nobody_waits_for_ends_at_its_next_turn(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    turns = threading.Event()

    def turn(batch: Batch) -> None:
        engine.turn = None
        require_awaited(batch.abandoned)
        turns.set()

    engine.turn = turn
    gone = answers.job(2)
    scheduler.add([gone])
    assert engine.entered.acquire(timeout=20)
    gone.cancelled.set()
    engine.released.set()
    scheduler.add([answers.job(3)])
    assert answers.take(1) == {3: [3, 1]}
    assert answers.ended.empty() and not turns.is_set()


def test_a_failing_batch_fails_its_jobs_and_no_other(scheduler: Scheduler, engine: HeldEngine, answers: Answers) -> None:
    def fail(_: Batch) -> None:
        engine.turn = None
        raise RuntimeError("NaN in step 3")

    engine.turn = fail
    occupy(scheduler, engine, answers)
    scheduler.add([answers.job(2)])
    engine.released.set()
    found = answers.take(2)
    assert str(found[99]) == "NaN in step 3" and found[2] == [2, 1]
    assert scheduler.alive


def test_what_still_waits_fails_when_the_server_stops(engine: HeldEngine, answers: Answers) -> None:
    scheduler = Scheduler(engine, Pacing(drafts=False), ServerMetrics(), max_batch=1, max_queue=4)
    scheduler.start()
    occupy(scheduler, engine, answers)
    scheduler.add([answers.job(2)])
    threading.Timer(0.05, engine.released.set).start()
    scheduler.stop()
    found = answers.take(2)
    assert found[99] == [99, 1] and str(found[2]) == "the server stops"
    assert not scheduler.alive
