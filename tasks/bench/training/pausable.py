"""Two training loops in turns: each goes a number of steps and waits, though neither knows of the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Begin = Callable[[], None]
"""What a loop calls as each step begins."""


class _Stopped(BaseException):
    """Ends a loop between two steps; nothing catches it on the way."""


class PausableLoop:
    """A loop on a thread of its own, which runs only when it is told to.

    A loop such as `transformers.Trainer`'s cannot be left and entered again. Here it waits where a step begins, so that what is
    timed is the loop as it is, and a machine that slows down slows both of two loops that take turns.
    """

    def __init__(self, loop: Callable[[Begin], object], clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts the loop and waits for its first step to begin.

        Args:
            loop: Runs for ever, and calls what it is given where each step begins.
            clock: Seconds.

        Raises:
            Exception: whatever the loop ends with.
        """
        self._loop, self._clock = loop, clock
        self._steps, self._begun, self._taken, self._ended = 0, 0.0, 0.0, False
        self._error: BaseException | None = None
        self._go, self._waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    def advance(self, steps: int) -> float:
        """Goes that many steps, at least one; gives the seconds that they took, until the next one would begin."""
        self._steps = steps
        self._go.release()
        self._wait()
        return self._taken

    def stop(self) -> None:
        """Ends the loop; its files may then be removed."""
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
        except BaseException as error:  # noqa: BLE001 (raised again, where the loop was told to go)
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
