"""Starts this process's own command once for every rank: torch's launcher on this machine, DeepSpeed's on several hosts."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path

from tasks import supervisor
from tasks.errors import STATUS_BAD_INPUT, InputError
from tasks.training.hostfile import is_local, reach, read_hostfile

_RESUMES = "run the same command again to resume from the last checkpoint"
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME")


def run_with_torch(processes: int) -> None:
    """Run this command in several processes on this machine, by torch's elastic launcher without restarts.

    Raises:
        SystemExit: a rank failed, with its status (the rank itself has reported why), or a signal ended this process.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Ranks inherit it: otherwise one that briefly outlives its store prints many messages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.disable(logging.CRITICAL)  # it reports at length what the ranks report in a line
    with tempfile.TemporaryDirectory(prefix="draftline-launch-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
        except ChildFailedError as error:
            raise SystemExit(
                _status_of({rank: failure.exitcode for rank, failure in error.failures.items()}, processes)
            ) from None
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None


def _status_of(exits: dict[int, int], processes: int) -> int:
    """Return the status of the run, and report a rank that was killed, which could not report it itself."""
    if STATUS_BAD_INPUT in exits.values():
        return STATUS_BAD_INPUT
    killed = [(rank, -status) for rank, status in exits.items() if status < 0 and -status != signal.SIGTERM]
    for rank, number in killed:
        name = signal.Signals(number).name
        print(
            f"error: rank {rank} of {processes} was killed by {name}; check for lack of memory, and {_RESUMES}", file=sys.stderr
        )
    return 1


def run_with_deepspeed(path: Path) -> None:
    """Run this command on the hosts of a hostfile, by DeepSpeed's launcher: through pdsh, or directly on this host alone.

    Raises:
        InputError: the hostfile or one of its hosts cannot be used, or this command is not a module.
        SystemExit: a rank failed.
    """
    hosts = read_hostfile(path)
    command = [sys.executable, "-m", "deepspeed.launcher.runner", f"--hostfile={path}", "--no_ssh_check", "--no_local_rank"]
    environment = dict(os.environ)
    if all(map(is_local, hosts)):
        command += ["--master_addr=127.0.0.1", f"--master_port={_free_port()}"]
    else:
        # pdsh's -N: no host before each line. The variables that DeepSpeed passes on are visible to all users of a host.
        command += [f"--master_port={reach(list(hosts), Path.cwd())}", "--launcher_args=-N", "--force_multi"]
        environment = {name: value for name, value in environment.items() if name not in _SECRETS and "@" not in value}
    with (
        supervisor.signals_as_exit(),
        supervisor.running([*command, "--log_level=critical", "--module", *_module_command()], env=environment) as process,
    ):
        status = process.wait()
    if status == STATUS_BAD_INPUT:
        raise SystemExit(status)
    if status:
        print(f"error: a process on one of the hosts of {path} failed; {_RESUMES}", file=sys.stderr)
        raise SystemExit(1)


def _module_command() -> list[str]:
    """Return this process's module and arguments."""
    arguments = sys.orig_argv[1:]
    if "-m" not in arguments:
        raise InputError("a hostfile needs a command that every host can run; start this stage with python -m")
    return arguments[arguments.index("-m") + 1 :]


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
