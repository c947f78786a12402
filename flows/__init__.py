"""Prefect flows that run the stages of DVC's graph, by hand or on a schedule. No other code imports prefect."""

from __future__ import annotations

from flows.settings import set_defaults

set_defaults()
