"""Serves the pipeline on a schedule until it is stopped: `python -m flows.serve --cron "0 3 * * *"`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from pathlib import Path
from typing import TypedDict

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from pydantic import ValidationError

from flows.graph import read_graph
from flows.pipeline import pipeline
from flows.server import prefect_server
from flows.settings import add_options, read_options
from flows.stale_runs import mark_all_crashed
from tasks.errors import InputError, one_line_errors


class Schedule(TypedDict, total=False):
    """When runs start, as keyword arguments of `Flow.serve`; one of the two."""

    cron: str
    interval: datetime.timedelta


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description="Run DVC's stages as a flow on a schedule.")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--interval-minutes", type=float, metavar="N", help="minutes between the starts of two runs")
    when.add_argument("--cron", metavar="'M H D M W'", help="minute, hour, day, month and weekday of the runs, in UTC")
    name = "name of the deployment; repositories that share a server need different names [scheduled]"
    parser.add_argument("--name", default="scheduled", help=name)
    add_options(parser)
    return parser


def _schedule(options: argparse.Namespace) -> Schedule:
    """Return the schedule of the options.

    Raises:
        InputError: the schedule is not valid; names the option.
    """
    if options.cron is not None:
        try:
            CronSchedule(cron=options.cron)
        except ValidationError:
            raise InputError(f"--cron {options.cron!r} is not a schedule; give five fields, such as '0 3 * * *'") from None
        return {"cron": options.cron}
    if not options.interval_minutes > 0:
        raise InputError(f"--interval-minutes is {options.interval_minutes:g}; it must be more than 0")
    return {"interval": datetime.timedelta(minutes=options.interval_minutes)}


def main() -> None:
    """Serve the flow until the process is stopped."""
    options = _parser().parse_args()
    with one_line_errors():
        parameters = {"targets": options.targets or None, **dataclasses.asdict(read_options(options))}
        schedule = _schedule(options)
        read_graph(Path.cwd(), options.targets)
        with prefect_server(announce=True) as url:
            stale = mark_all_crashed(pipeline.name, options.name)
            if stale:
                print(f"marked {stale} unfinished runs of an earlier process as crashed", flush=True)
            print(f"serving {pipeline.name}/{options.name}; its runs: {url.removesuffix('/api')}", flush=True)
            pipeline.serve(
                name=options.name,
                parameters=parameters,
                # Two runs in one repository would wait for each other, so a run that comes due meanwhile is cancelled.
                global_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
                print_starting_message=False,
                **schedule,
            )


if __name__ == "__main__":
    main()
