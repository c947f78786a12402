"""How many processes train, how they find each other, and what a training takes of the machine, against real steps."""

import argparse
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks import machine
from tasks.errors import InputError
from tasks.locks import Share
from tasks.machine import MachineSettings
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings, TextSettings
from tasks.training import distributed
from tasks.training.settings import TrainingSettings

GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GROUP:
        monkeypatch.delenv(name, raising=False)


def test_the_number_of_processes_is_that_of_the_command_line_or_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(distributed, "_run_ranks", started.append)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    parser = argparse.ArgumentParser()
    distributed.add_arguments(parser)

    def run(settings: MachineSettings, *options: str) -> None:
        distributed.run(settings, parser.parse_args(options).nproc, lambda: started.append("here"))

    for chosen in (MachineSettings(device="cpu"), MachineSettings(processes=1), MachineSettings(processes=2)):
        run(chosen)
    run(MachineSettings())
    run(MachineSettings(processes=2), "--nproc", "4")
    assert started == ["here", "here", 2, 3, 4]
    with pytest.raises(InputError, match="--nproc is -1; it must be at least 0"):
        run(MachineSettings(), "--nproc", "-1")
    many = 5 * max(16, os.cpu_count() or 1)
    for name, settings, options in (
        ("machine.processes", MachineSettings(processes=many), ()),
        ("--nproc", MachineSettings(), many),
    ):
        with pytest.raises(InputError, match=f"{name} is {many}, which is too many for the cores here"):
            run(settings, *(("--nproc", str(options)) if options else ()))
    monkeypatch.setenv("RANK", "0")
    run(MachineSettings(processes=2))
    assert started[-1] == "here"


def test_the_status_of_ranks_started_here_is_that_of_a_refusal_or_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert distributed._status_of({0: -signal.SIGTERM, 1: 2}, 2) == 2
    assert distributed._status_of({0: 1, 1: -signal.SIGTERM}, 2) == 1
    assert capsys.readouterr().err == ""
    assert distributed._status_of({1: -signal.SIGKILL}, 2) == 1
    assert "rank 1 of 2 was killed by SIGKILL" in capsys.readouterr().err


def test_a_command_that_no_launcher_started_is_left_alone() -> None:
    with pytest.raises(KeyError, match="bug"), distributed.as_rank():
        raise KeyError("bug")
    assert not set(GROUP) & os.environ.keys()


def adopted(**given: str) -> dict[str, str]:
    environment = dict(given)
    distributed.adopt_launcher(environment)
    return {name: environment[name] for name in GROUP[:4] if name in environment}


def test_a_launcher_s_variables_become_torch_s() -> None:
    assert adopted() == adopted(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="4") == {}
    group = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    known = {**group, "LOCAL_WORLD_SIZE": "2"}
    srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    # torchrun, also inside a Slurm allocation; deepspeed; srun.
    assert adopted(**known) == adopted(**known, **srun) == adopted(**group, LOCAL_SIZE="2") == known
    assert adopted(**srun) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_single_process_is_the_main_one_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    assert distributed.all_reduce(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert distributed.broadcast("word") == "word"
    distributed.barrier()
    distributed.destroy()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (2, 3, False)
    assert distributed.description() == f"rank 2 on {socket.gethostname()}"


def test_one_process_opens_no_port_and_only_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    group: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: "backend" in group)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **how: group.update(how, backend=backend))
    distributed.init("gloo")
    assert type(group.pop("store")).__name__ == "HashStore"
    assert group == {"backend": "gloo", "rank": 0, "world_size": 1}
    distributed.init("nccl")
    assert group["backend"] == "gloo"


@pytest.mark.parametrize("port", ["70000", None])
def test_a_group_that_does_not_meet_is_one_line(port: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=rf"found no group of 2 processes at 127\.0\.0\.1:{port} .* a free MASTER_PORT"):
        distributed.init("gloo")


TEXT = TextSettings(max_source_tokens=128, max_target_tokens=64)
SHAPE = ModelSettings(d_model=256, d_ff=1024, d_kv=64, heads=4, encoder_layers=4, decoder_layers=4)
TINY = ModelSettings(d_model=32, d_ff=64, d_kv=16, heads=2, encoder_layers=1, decoder_layers=1)
TRAINING = TrainingSettings(optimizer="adamw", batch_size=32)


def need(training: TrainingSettings, shape: ModelSettings = TINY, teachers: tuple[Path, ...] = ()) -> Share:
    return distributed.training_share(initial_model(shape, 1000, 0, 1), training, TEXT, teachers)


def test_the_memory_grows_with_what_needs_it(tmp_path: Path) -> None:
    usual = need(TRAINING).memory
    assert need(replace(TRAINING, batch_size=64)).memory > 1.5 * (usual - distributed._LOADED)
    assert need(replace(TRAINING, accumulation=4)).memory < usual
    assert need(replace(TRAINING, optimizer="adafactor"), SHAPE).memory < need(TRAINING, SHAPE).memory
    assert need(replace(TRAINING, activation_checkpointing=True), SHAPE).memory < need(TRAINING, SHAPE).memory / 1.3
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert need(TRAINING, teachers=(tmp_path,)).memory == usual + 1000
    half = distributed.training_share(initial_model(TINY, 1000, 0, 1), TRAINING, TEXT, (), half=True).memory
    assert half < usual, "activations in bfloat16 are half as large"
    # What is taken as it is has no gradients, and its weights in their own format.
    model, taken = initial_model(TINY, 1000, 0, 1), replace(TRAINING, steps=0)
    halved = distributed.training_share(model.bfloat16(), taken, TEXT, ()).memory
    assert need(taken).memory - halved == int(distributed._KEPT * 2 * model.num_parameters())


def test_the_room_of_a_step_is_the_same_on_all_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher takes what its file has, or what is spread of it."""
    cards = (SimpleNamespace(total_memory=1000), SimpleNamespace(total_memory=500))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: cards[card.index])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    first = torch.device("cuda", 0)
    assert distributed.room_of_step(first, ()) == pytest.approx(900)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert distributed.room_of_step(first, ()) == pytest.approx(450)
    for size, left in ((100, 350), (1000, 50)):
        (tmp_path / "model.safetensors").write_bytes(bytes(size))
        assert distributed.room_of_step(first, (tmp_path,)) == pytest.approx(left)


def test_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(machine, "core_limit", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert (need(TRAINING).threads, distributed.room_of(torch.device("cpu")).threads) == (4, 6)
    monkeypatch.setattr(machine, "core_limit", lambda: 2.5)
    assert need(TRAINING).threads == 2
    monkeypatch.setattr(machine, "memory_limit", lambda: 1000)
    assert distributed.room_of(torch.device("cpu")) == Share(2, 900)


WITHOUT_END = """
import time
import torch
from tasks.training import distributed
distributed._ALONE_SECONDS = 0.5
torch.distributed.init_process_group = lambda *_, **__: time.sleep(600)
distributed.init("gloo")
"""


def test_a_group_that_never_opens_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_END], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1 and "Timeout" in ended.stderr and "in init" in ended.stderr
