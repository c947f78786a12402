"""Processes of a machine that share units: a GPU for each, and results in order, whoever dies."""

import contextlib
import functools
import multiprocessing
import os
import signal
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.machine import MachineSettings, processes_for, processes_of_a_device, set_up, worker_count
from tasks.workers import Submit, Work, Workers, shared
from tests.served import until


def test_by_default_there_is_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count(MachineSettings()) == 1
    assert worker_count(MachineSettings(workers=3)) == processes_of_a_device(MachineSettings(workers=3)) == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert worker_count(MachineSettings()) == processes_for("auto") == 8
    assert worker_count(MachineSettings(workers=3)) == 8
    assert worker_count(MachineSettings(workers=3, device="cpu")) == 3
    assert [processes_of_a_device(MachineSettings(workers=count)) for count in (0, 9)] == [1, 1]
    with pytest.raises(InputError, match=r"machine\.workers is 200, which is too many for the cores here"):
        worker_count(MachineSettings(workers=200))


def device(_: int) -> tuple[str, int]:
    """The device that `set_up` finds in another process, on a machine of two GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        return str(set_up(MachineSettings())[0]), os.getpid()


def open_device() -> Work[int, tuple[str, int]]:
    return device


def test_the_processes_of_a_machine_take_different_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with contextlib.closing(Workers()) as workers:
        submit = workers.submit_to(3, open_device)
        found = {process: name for name, process in (submit(unit).result() for unit in range(64))}
    assert os.getpid() not in found, "this process is number 0"
    assert sorted(found.values()) in (["cuda:0", "cuda:1"], ["cuda:1"])


def square(unit: int) -> int:
    if unit == 0 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit * unit


def open_square() -> Work[int, int]:
    return square


def begun(submit: Submit, unit: int) -> Future[Any]:
    """Give a unit to another process, and wait until it has the first one."""
    waiting = submit(unit)
    if unit == 0:
        until("the other process", lambda: waiting.running() or waiting.done())
    return waiting


def test_a_killed_process_costs_no_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(Workers()) as workers:
        for _ in range(2):  # the second time with a new process
            submit = functools.partial(begun, workers.submit_to(2, open_square))
            assert shared(range(6), square, submit, id, 1) == [unit * unit for unit in range(6)]
    assert capsys.readouterr().err.count("a process that shared this work has ended (BrokenProcessPool: ") == 2


def test_this_process_does_what_no_other_has_begun() -> None:
    here, done = list[int](), list[int]()

    def submit(unit: int) -> Future[Any]:
        future = Future[Any]()
        if unit < 2:
            future.set_result(unit)
        return future

    def work(unit: int) -> int:
        here.append(unit)
        return unit

    threads = torch.get_num_threads()
    assert shared(range(5), work, submit, done.append, 1) == [0, 1, 2, 3, 4]
    assert (here, done) == ([4, 3, 2], [0, 1])
    assert torch.get_num_threads() == threads
