"""Training loops that alternate, some steps at a time, without knowing of each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Begin = Callable[[], None]
"""A loop calls this at the beginning of each step."""


class _Stopped(BaseException):
    """Ends a loop between two steps; loops do not catch it."""


class PausableLoop:
    """A loop in a thread of its own that runs only while `advance` asks it to.

    A loop such as `transformers.Trainer`'s cannot be left and entered again. Here it waits at the beginning of a step. So the
    timed loop is unchanged, and a slower machine slows both contenders of a round.
    """

    def __init__(self, loop: Callable[[Begin], object], clock: Callable[[], float] = time.perf_counter) -> None:
        """Start the loop and wait until its first step begins.

        Args:
            loop: Runs without end, and calls its argument at the beginning of each step.
            clock: Returns seconds.

        Raises:
            Exception: whatever ends the loop.
        """
        self._loop, self._clock = loop, clock
        self._steps, self._begun, self._taken, self._ended = 0, 0.0, 0.0, False
        self._error: BaseException | None = None
        self._go, self._waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    def advance(self, steps: int) -> float:
        """Run at least one step; return the seconds until the next one would begin."""
        self._steps = steps
        self._go.release()
        self._wait()
        return self._taken

    def stop(self) -> None:
        """End the loop; its files may then be removed."""
        self._ended = True
        self._go.release()
        self._thread.join()

    def _wait(self) -> None:
        self._waiting.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._loop(self._begin)
            self._error = RuntimeError("the loop ended by itself")
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 (raised again in `advance`)
            self._error = error
        self._waiting.release()

    def _begin(self) -> None:
        if self._steps == 0:
            self._taken = self._clock() - self._begun
            self._waiting.release()
            self._go.acquire()
            if self._ended:
                raise _Stopped
            self._begun = self._clock()
        self._steps -= 1
