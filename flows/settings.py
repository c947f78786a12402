"""Settings of a flow run, and defaults for Prefect's environment variables.

Prefect reads the environment when it is imported, so importing `flows` sets the defaults first. Variables that the user has
set keep their values.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from tasks.errors import InputError
from tasks.paths import CACHE
from tasks.settings import setting, settings

SERVER_STARTUP_SECONDS = 300
"""A Prefect server creates its database at its first start: half a minute on two cores, minutes beside several trainings."""


def set_defaults() -> None:
    """Keep Prefect's files inside the project and its telemetry off, unless the environment says otherwise."""
    if "PREFECT_HOME" not in os.environ:
        home = Path.cwd() / CACHE / "prefect"
        home.mkdir(parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)
    defaults = {
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(SERVER_STARTUP_SECONDS),
        # A server whose database was away for a moment answers 500 once; without a retry the run would fail at its end.
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def prefect_home() -> Path:
    """Return the folder of Prefect's database and logs."""
    return Path(os.environ["PREFECT_HOME"])


@settings
class PipelineSettings:
    """How a flow run executes DVC's stages."""

    workers: int = setting("Stages that run side by side.", default=3, unit="stages", ge=1, le=16)
    retries: int = setting("Retries of a failed stage; a stage that rejects its input is not retried.", default=1, ge=0, le=10)
    timeout_minutes: float = setting("Time limit for one attempt at a stage.", default=720.0, unit="minutes", gt=0.0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--targets` and one option for each field of `PipelineSettings`."""
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE", help="stages to run, with those they need [all]")
    for field in dataclasses.fields(PipelineSettings):
        text = f"{field.metadata['description']} [{field.default}]"
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default, help=text)


def read_options(options: argparse.Namespace) -> PipelineSettings:
    """Return the settings from parsed options.

    Raises:
        InputError: an option is out of bounds.
    """
    try:
        return PipelineSettings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(PipelineSettings)})
    except ValueError as error:
        raise InputError(f"invalid options: {error}") from None


def as_options(settings: PipelineSettings) -> list[str]:
    """Return the settings as options for another command."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in dataclasses.asdict(settings).items()]
