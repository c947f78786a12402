"""Prefect flows that run the stages of DVC's graph, by hand or on a schedule. No other code imports prefect.

Prefect reads the environment when it is imported, so importing this package first keeps Prefect's files inside the project and
its telemetry off, unless the environment says otherwise.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tasks.paths import CACHE

SERVER_STARTUP_SECONDS = 300
"""A Prefect server creates its database at its first start: half a minute on two cores, minutes beside several trainings."""

_home = os.environ.setdefault("PREFECT_HOME", str(Path.cwd() / CACHE / "prefect"))
with contextlib.suppress(OSError):  # Prefect makes one folder alone, and says itself what it cannot write
    Path(_home).mkdir(parents=True, exist_ok=True)
for _name, _value in {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(SERVER_STARTUP_SECONDS),
    # A server whose database was away for a moment answers 500 once; without a retry the run would fail at its end.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}.items():
    os.environ.setdefault(_name, _value)
