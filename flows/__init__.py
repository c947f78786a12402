"""When things run: Prefect flows over DVC's graph. The only code that imports prefect."""

from __future__ import annotations

from flows.settings import set_defaults

set_defaults()
