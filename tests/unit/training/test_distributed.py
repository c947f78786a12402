"""Who a process is among those that train together, and where it meets the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.training import distributed
from tasks.training.workers import LAUNCHED, LISTENER

NAMES = ("RANK", "WORLD_SIZE", LAUNCHED, LISTENER)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How a group would have been opened."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: "backend" in found)
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *where, **how: (where, how))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **how: found.update(how, backend=backend))
    return found


def test_one_process_alone_agrees_with_itself() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    assert distributed.all_reduce(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert distributed.broadcast("word") == "word"
    distributed.barrier()


def test_a_launcher_says_which_one_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (2, 3, False)


def test_one_process_meets_nobody_and_opens_no_port(joined: dict[str, Any]) -> None:
    distributed.init("gloo")
    assert type(joined.pop("store")).__name__ == "HashStore"
    assert joined == {"backend": "gloo", "rank": 0, "world_size": 1}
    distributed.init("nccl")
    assert joined["backend"] == "gloo"


def test_the_first_opens_the_socket_that_it_was_handed(joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000", "WORLD_SIZE": "2", LAUNCHED: "1"}
    for name, value in {**launched, "RANK": "0", LISTENER: "7"}.items():
        monkeypatch.setenv(name, value)
    distributed.init("gloo")
    assert joined["store"] == (("127.0.0.1", 4000, 2), {"is_master": True, "master_listen_fd": 7})
    joined.clear()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv(LISTENER)
    distributed.init("gloo")
    assert joined["store"] == (("127.0.0.1", 4000, 2), {"is_master": False, "master_listen_fd": None})


def test_what_another_launcher_started_meets_where_that_one_says(
    joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    distributed.init("nccl")
    assert joined == {"backend": "nccl", "store": None, "rank": 1, "world_size": 2}
