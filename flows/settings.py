"""Settings of a flow run, and the environment that Prefect finds.

Prefect reads its environment when it is imported, so importing `flows` sets the defaults first; whatever the user has set
stays as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from tasks.errors import InputError
from tasks.paths import CACHE
from tasks.settings import setting, settings

SERVER_STARTUP_SECONDS = 120
"""The first start of a Prefect server makes its database: half a minute on two busy cores."""


def set_defaults() -> None:
    """Keeps Prefect's files inside the project and its telemetry off, where the environment does not say otherwise."""
    if "PREFECT_HOME" not in os.environ:
        home = Path.cwd() / CACHE / "prefect"
        home.mkdir(parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)
    defaults = {
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(SERVER_STARTUP_SECONDS),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def prefect_home() -> Path:
    """The folder of Prefect's database and logs."""
    return Path(os.environ["PREFECT_HOME"])


@settings
class PipelineSettings:
    """How a flow run goes about DVC's stages."""

    workers: int = setting("Stages that run side by side.", default=3, unit="stages", ge=1, le=16)
    retries: int = setting("Retries of a failed stage; a stage that refuses its input is not retried.", default=1, ge=0, le=10)
    timeout_minutes: float = setting("Time that one try of a stage may take.", default=720.0, unit="minutes", gt=0.0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--targets` and an option for each of `PipelineSettings`."""
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE", help="stages to run with all they need; all")
    for field in dataclasses.fields(PipelineSettings):
        text = f"{field.metadata['description']} [{field.default}]"
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default, help=text)


def read_options(options: argparse.Namespace) -> PipelineSettings:
    """The settings among parsed options.

    Raises:
        InputError: one is out of its bounds.
    """
    try:
        return PipelineSettings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(PipelineSettings)})
    except ValueError as error:
        raise InputError(f"the options are wrong: {error}") from None
