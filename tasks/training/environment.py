"""Translates the variables by which torchrun, deepspeed and srun give a process its rank to torch's names."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

_PORTS, _FIRST_PORT = 10_000, 20_000
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""


def adopt(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Complete torch's variables from those of the launcher that started this process.

    torchrun and deepspeed set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. For srun they are derived from the
    job step; a MASTER_ADDR or MASTER_PORT that is set already is kept.

    Returns:
        Whether a launcher started this process.
    """
    if "RANK" in environment:
        # deepspeed's name for what torchrun calls LOCAL_WORLD_SIZE.
        environment.setdefault("LOCAL_WORLD_SIZE", environment.get("LOCAL_SIZE", "1"))
        return True
    tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
    if "SLURM_PROCID" not in environment or tasks == "1":
        return False
    node = int(environment.get("SLURM_NODEID", "0"))
    per_node = _expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", tasks)))
    environment.update(
        RANK=environment["SLURM_PROCID"],
        WORLD_SIZE=tasks,
        LOCAL_RANK=environment.get("SLURM_LOCALID", "0"),
        LOCAL_WORLD_SIZE=str(per_node[min(node, len(per_node) - 1)]),
    )
    environment.setdefault("MASTER_ADDR", _slurm_master(environment))
    step = sum(int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    environment.setdefault("MASTER_PORT", str(_FIRST_PORT + step % _PORTS))
    return True


def _slurm_master(environment: MutableMapping[str, str]) -> str:
    """Return the first node of the step, which runs rank 0."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            return first_node(environment[name])
    return environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")


def first_node(nodes: str) -> str:
    """Return the first name of a Slurm node list: `gpu[03-05,09],login1` gives `gpu03`."""
    found = re.match(r"(?P<prefix>[^\[,]+)(?:\[(?P<first>\d+)[^\]]*\](?P<suffix>[^,\[]*))?", nodes)
    return nodes if found is None else "".join(part or "" for part in found.group("prefix", "first", "suffix"))


def _expand_counts(counts: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form: `2(x3),1` gives 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
