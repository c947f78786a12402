"""One process alone is a group of its own; several meet where their launcher says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.training import distributed


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How a group would have been opened."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: "backend" in found)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **how: found.update(how, backend=backend))
    return found


def test_a_single_process_is_the_main_one_and_never_waits() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    assert distributed.all_reduce(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert distributed.broadcast("word") == "word"
    distributed.barrier()
    distributed.destroy()


def test_a_launcher_says_which_rank_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (2, 3, False)
    assert distributed.description().startswith("rank 2 on ")


def test_one_process_opens_no_port_and_only_one_group(group: dict[str, Any]) -> None:
    distributed.init("gloo")
    assert type(group.pop("store")).__name__ == "HashStore"
    assert group == {"backend": "gloo", "rank": 0, "world_size": 1}
    distributed.init("nccl")
    assert group["backend"] == "gloo"


def test_several_processes_meet_at_their_store(group: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # documented by torch
    monkeypatch.setattr(distributed, "connect", lambda: store)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    distributed.init("nccl")
    assert group == {"backend": "nccl", "store": store, "rank": 1, "world_size": 2}


def test_a_group_that_does_not_meet_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "70000"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"rank 1 on .* found no group of 2 processes at 127\.0\.0\.1:70000"):
        distributed.connect.__wrapped__()
