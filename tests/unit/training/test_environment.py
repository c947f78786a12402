"""A launcher's variables become torch's."""

from __future__ import annotations

import pytest

from tasks.training.environment import adopt, first_node

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODELIST": "gpu[07-08]"}


def adopted(**given: str) -> list[str | None]:
    environment = dict(given)
    assert adopt(environment)
    return [environment.get(name) for name in NAMES]


def test_the_environment_of_a_process_without_a_launcher_is_unchanged() -> None:
    for given in ({}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {"SLURM_NTASKS": "4"}):
        environment = dict(given)
        assert not adopt(environment)
        assert environment == given


def test_the_variables_of_torchrun_and_deepspeed_are_unchanged() -> None:
    group = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    assert adopted(**group, LOCAL_WORLD_SIZE="2") == ["1", "2", "1", "2", "node1", "4000"]
    assert adopted(**group, LOCAL_SIZE="2") == ["1", "2", "1", "2", "node1", "4000"]
    # torchrun inside a Slurm allocation is torchrun.
    assert adopted(**group, LOCAL_WORLD_SIZE="2", **SRUN) == ["1", "2", "1", "2", "node1", "4000"]


def test_srun_gives_ranks_and_nodes() -> None:
    assert adopted(**SRUN, SLURM_NODEID="1", SLURM_TASKS_PER_NODE="2(x2)") == ["3", "4", "1", "2", "gpu07", "20000"]
    uneven = {**SRUN, "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_STEP_NODELIST": "gpu08,gpu11"}
    assert adopted(**uneven, SLURM_JOB_ID="1234567", SLURM_STEP_ID="3") == ["3", "4", "1", "1", "gpu08", "24570"]
    # A step of fewer tasks than the job.
    assert adopted(**SRUN, SLURM_STEP_NUM_TASKS="2")[1] == "2"


def test_srun_without_a_node_list_names_the_node_that_launched_it() -> None:
    given = {name: value for name, value in SRUN.items() if name != "SLURM_NODELIST"}
    assert adopted(**given, SLURM_LAUNCH_NODE_IPADDR="10.0.0.7")[4] == "10.0.0.7"
    assert adopted(**given)[4] == "127.0.0.1"


def test_an_address_of_the_user_is_kept() -> None:
    assert adopted(**SRUN, MASTER_ADDR="here", MASTER_PORT="4000")[4:] == ["here", "4000"]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-05,09],login1", "gpu03"),
        ("gpu[3]", "gpu3"),
        ("rack[1-2]-blade,other", "rack1-blade"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first
