"""Recorded work: on a GPU, functions of tensors that stay where they are become CUDA graphs, started by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Result = TypeVar("Result")
_WARM_UPS = 2
"""Runs before a recording, in which libraries choose their kernels and take their workspace."""
_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Those that take any mask and plan nothing on the host, which a recording would not repeat."""


class GraphRecorder(Protocol):
    """Makes work that is done again and again cheap to start."""

    def record(self, work: Callable[[], Result], changing: Sequence[Tensor]) -> Callable[[], Result]:
        """Return a function that does the same as `work` and writes its results to the same tensors each time.

        Args:
            work: Reads nothing but tensors that stay where they are, asks the device for nothing, and may run a few times
                more than it is asked to.
            changing: What it changes by running, which is put back; what a run overwrites with the same needs no mention.
        """
        ...


class CudaGraphRecorder:
    """Records CUDA graphs, which share one pool of memory: copy a result before any of them runs again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], Result], changing: Sequence[Tensor]) -> Callable[[], Result]:
        """As PyTorch documents it: a warm-up on another stream, then a capture."""
        with torch.cuda.device(self._device), sdpa_kernel(_ATTENTION):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            kept = [tensor.clone() for tensor in changing]
            current, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    work()
                    restore(changing, kept)
            current.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                results = work()

        def replay() -> Result:
            graph.replay()
            return results

        return replay


class GraphCache:
    """Result that is recorded when it is first asked for; without a recorder it is done as it comes."""

    def __init__(self, recorder: GraphRecorder | None) -> None:
        self._recorder = recorder
        self._made: dict[tuple[Any, ...], Callable[[], Any]] = {}
        self._inputs: dict[tuple[int, ...], Tensor] = {}

    def __bool__(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None

    def run(self, key: tuple[Any, ...], work: Callable[[], Result], changing: Sequence[Tensor] = ()) -> Result:
        """`work`, or what was recorded of it under that key; `changing` as for a recorder."""
        if self._recorder is None:
            return work()
        if key not in self._made:
            self._made[key] = self._recorder.record(work, changing)
        result: Result = self._made[key]()
        return result

    def stage(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Numbers that lie on the host, where recorded work reads all of that shape."""
        shape = tuple(inputs.shape)
        if shape not in self._inputs:
            self._inputs[shape] = torch.empty_like(inputs, device=device)
        return self._inputs[shape].copy_(inputs, non_blocking=True)

    def forget(self, kind: str | None = None) -> None:
        """Drops what was recorded under keys that begin so; none: everything."""
        self._made = {key: made for key, made in self._made.items() if kind is not None and key[0] != kind}


def restore(tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Puts back what they held."""
    for tensor, before in zip(tensors, kept, strict=True):
        tensor.copy_(before)


def fetch(tensor: Tensor) -> Callable[[], list[Any]]:
    """Starts to copy a tensor to the host; what is given waits for it. Later changes of the tensor are not seen."""
    if tensor.device.type != "cuda":
        values: list[Any] = tensor.tolist()
        return lambda: values
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> list[Any]:
        arrived.synchronize()
        here: list[Any] = host.tolist()
        return here

    return wait
