"""Serves flows on their schedules, and experiments on demand, until it is stopped.

`python -m flows.serve --cron "0 3 * * *" --watch-minutes 60 --experiments`
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from pathlib import Path
from typing import TypedDict, cast

from prefect import Flow, serve
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, State
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from pydantic import ValidationError

from flows.automations import ensure_automations
from flows.experiment import experiment
from flows.graph import read_graph
from flows.nightly import add_promotion, nightly
from flows.pipeline import pipeline
from flows.server import prefect_server
from flows.settings import add_options, read_options
from flows.stale_runs import mark_all_crashed
from flows.watch import watch
from tasks.errors import InputError, one_line_errors

ScheduledFlow = Flow[..., State[None]]
_DEFAULT_CRON = "0 3 * * *"


class Schedule(TypedDict, total=False):
    """When runs start, as keyword arguments of `Flow.to_deployment`; one of the two, or none."""

    cron: str
    interval: datetime.timedelta


def _parser() -> argparse.ArgumentParser:
    description = "Run flows on their schedules, with a Prefect server of its own if none is configured."
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=description)
    parser.add_argument("--cron", metavar="'M H D M W'", help="minute, hour, day, month and weekday of nightly, in UTC")
    parser.add_argument("--watch-minutes", type=float, metavar="N", help="minutes between two looks of watch at the sources")
    parser.add_argument("--interval-minutes", type=float, metavar="N", help="minutes between the starts of two pipelines")
    experiments = "offer runs with other settings on the pages of the server, where a form has the settings"
    parser.add_argument("--experiments", action="store_true", help=experiments)
    name = "name of the deployments; repositories that share a server need different names [scheduled]"
    parser.add_argument("--name", default="scheduled", help=name)
    add_promotion(parser)
    add_options(parser)
    return parser


def _schedules(options: argparse.Namespace) -> list[tuple[ScheduledFlow, Schedule]]:
    """Return the flows that the options schedule, each with its schedule.

    Raises:
        InputError: a schedule is not valid, or there is none; names the option.
    """
    found: list[tuple[ScheduledFlow, Schedule]] = []
    if options.cron is not None:
        try:
            CronSchedule(cron=options.cron)
        except ValidationError:
            raise InputError(
                f"--cron {options.cron!r} is not a schedule; give five fields, such as {_DEFAULT_CRON!r}"
            ) from None
        found.append((nightly, {"cron": options.cron}))
    for one, name in ((watch, "watch_minutes"), (pipeline, "interval_minutes")):
        minutes = getattr(options, name)
        if minutes is None:
            continue
        if not minutes > 0:
            raise InputError(f"--{name.replace('_', '-')} is {minutes:g}; it must be more than 0")
        found.append((one, {"interval": datetime.timedelta(minutes=minutes)}))
    if options.experiments:
        found.append((experiment, {}))
    if not found:
        raise InputError(
            f"no flow has a schedule; give --cron {_DEFAULT_CRON!r}, --watch-minutes, --interval-minutes or --experiments"
        )
    return found


def main() -> None:
    """Serve the flows until the process is stopped."""
    options = _parser().parse_args()
    with one_line_errors():
        parameters = {"targets": options.targets or None, "execution": dataclasses.asdict(read_options(options))}
        schedules = _schedules(options)
        read_graph(Path.cwd(), options.targets)
        with prefect_server(announce=True) as url:
            ensure_automations()
            deployments = []
            for one, schedule in schedules:
                stale = mark_all_crashed(one.name, options.name)
                if stale:
                    print(f"marked {stale} unfinished runs of an earlier process as crashed", flush=True)
                # A scheduled run that comes due beside another is cancelled; experiments are all wanted and wait.
                strategy = ConcurrencyLimitStrategy.ENQUEUE if one is experiment else ConcurrencyLimitStrategy.CANCEL_NEW
                limit = ConcurrencyLimitConfig(limit=1, collision_strategy=strategy)
                own = {"promotes": options.promotes} if one is nightly else {}
                found = one.to_deployment(options.name, parameters=parameters | own, concurrency_limit=limit, **schedule)
                deployments.append(cast(RunnerDeployment, found))  # a coroutine only inside of one
                print(f"serving {one.name}/{options.name}; its runs: {url.removesuffix('/api')}", flush=True)
            serve(*deployments, print_starting_message=False)


if __name__ == "__main__":
    main()
