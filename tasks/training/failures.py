"""A failure of a group of processes is shown once, by the rank that failed first, and ends all of them.

Launchers differ in what they do for a failed rank: torchrun and deepspeed end the others of the same host, srun none of them.
So the ranks notify each other through the key-value store of their group.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from tasks.errors import STATUS_BAD_INPUT, InputError, one_line_errors
from tasks.training import distributed

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch documents it without listing it

_FAILURES, _STATUS, _INFORMED = "draftline/failures", "draftline/status", "draftline/informed"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 3.0
"""Seconds that a rank waits before it reports a lost connection: its launcher usually ends it in that time."""


@contextlib.contextmanager
def shown_once() -> Iterator[None]:
    """Run the work of one rank: its failure ends every rank, and only the first failure of the group is shown.

    Raises:
        SystemExit: this rank failed; the message has been printed.
    """
    store, ended = distributed.connect(), threading.Event()
    # This thread has its own client, since the other one may be waiting for an answer.
    watched = store.clone()  # type: ignore[attr-defined]  # missing in torch's stub
    watcher = threading.Thread(target=_end_with_others, args=(watched, ended), daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            # A thread that is still in the store's C++ code when the interpreter ends would abort the process.
            ended.set()
            watcher.join(_GRACE_SECONDS)
    except Exception as error:  # noqa: BLE001 (shown here, or by the rank that failed first)
        _fail(store, error)


def _fail(store: Store, error: Exception) -> NoReturn:
    """Show the error unless another rank has failed before, and exit."""
    if not isinstance(error, InputError):
        time.sleep(_GRACE_SECONDS)
    try:
        if store.add(_FAILURES, 1) == 1:
            store.set(_STATUS, str(_show(error)))
        status = int(store.get(_STATUS))
        informed = store.add(_INFORMED, 1)
        deadline = time.monotonic() + _GRACE_SECONDS
        # Rank 0 may host the store, which the others must read before it ends.
        while distributed.is_main() and informed < distributed.world_size() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            informed = store.add(_INFORMED, 0)
    except RuntimeError:
        # The store ended with rank 0, which was killed or has reported its failure.
        print(f"error: {distributed.description()} lost its connection to rank 0, which has ended", file=sys.stderr)
        status = STATUS_BAD_INPUT if isinstance(error, InputError) else 1
    raise SystemExit(status) from None


def _show(error: Exception) -> int:
    """Print the one line of a refusal, with rank and host, or the traceback of anything else; return the exit status."""
    try:
        with one_line_errors():
            raise InputError(f"{distributed.description()}: {error}") if isinstance(error, InputError) else error
    except SystemExit:
        return STATUS_BAD_INPUT
    except Exception:  # noqa: BLE001 (printed)
        error.add_note(f"in {distributed.description()}")
        traceback.print_exception(error)
        return 1


def _end_with_others(store: Store, ended: threading.Event) -> None:
    """End this process soon after another rank has failed, even while it waits for that rank in a collective.

    Returns once this rank's own work has `ended`.
    """
    with contextlib.suppress(RuntimeError):
        while not ended.wait(_POLL_SECONDS):
            if store.check([_STATUS]):
                store.add(_INFORMED, 1)
                os._exit(int(store.get(_STATUS)))
