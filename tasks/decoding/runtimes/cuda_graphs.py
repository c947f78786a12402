"""CUDA graphs: work on tensors at fixed addresses is recorded once and then started by a single call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Result = TypeVar("Result")
GraphKey = tuple[str | float, ...]
"""What distinguishes recorded work: its kind and the sizes that it reads."""
_WARM_UPS = 2
"""Runs before a recording, in which libraries choose their kernels and allocate their workspace."""
_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Back ends that take any mask and plan nothing on the host; a recording would not repeat a plan."""


_UNIT = 64
"""Caches grow by powers of two times this many positions, so that one recorded graph serves many lengths."""


def rounded(number: int, unit: int = 1) -> int:
    """Return the smallest power of two times `unit` that is at least `number`."""
    return unit << max(0, -(-number // unit) - 1).bit_length()


def rounded_positions(positions: int) -> int:
    """Return the number of positions that a run over this many reads."""
    return rounded(positions, _UNIT)


class GraphRecorder(Protocol):
    """Makes repeated work cheap to start."""

    def record(self, work: Callable[[], Result], changing: Sequence[Tensor]) -> Callable[[], Result]:
        """Return a function that does the same as `work` and writes its results to the same tensors each time.

        Args:
            work: Reads only tensors at fixed addresses and never waits for the device. It may run a few extra times.
            changing: Tensors that a run changes and that are restored after the extra runs. A tensor that each run
                overwrites with the same values need not be listed.
        """


class CudaGraphRecorder:
    """Records CUDA graphs, which share one pool of memory: copy a result before any of them runs again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._graphs = weakref.WeakSet[torch.cuda.CUDAGraph]()

    def record(self, work: Callable[[], Result], changing: Sequence[Tensor]) -> Callable[[], Result]:
        """As PyTorch documents it: a warm-up on another stream, then a capture."""
        with torch.cuda.device(self._device), sdpa_kernel(_ATTENTION):
            # PyTorch frees a pool with its last graph, and refuses a capture into a pool that it has freed.
            if not self._graphs:
                self._pool = torch.cuda.graph_pool_handle()
            # 1. Warm up on another stream: lazily chosen kernels and workspaces must not be captured.
            kept = [tensor.clone() for tensor in changing]
            current, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    work()
                    for tensor, before in zip(changing, kept, strict=True):
                        tensor.copy_(before)
            current.wait_stream(aside)
            # 2. Capture: the work is recorded, not run.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                results = work()
        self._graphs.add(graph)

        def replay() -> Result:
            # 3. From now on the whole run is one launch, on the same addresses.
            graph.replay()
            return results

        return replay


class GraphCache:
    """Work by key, recorded on first use; without a recorder, the work just runs."""

    def __init__(self, recorder: GraphRecorder | None) -> None:
        self._recorder = recorder
        self._made: dict[GraphKey, Callable[[], object]] = {}
        self._inputs: dict[tuple[int, ...], Tensor] = {}

    def __bool__(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None

    def padded_rows(self, rows: int) -> int:
        """Return the number of rows to run for `rows`: rounded up where runs are recorded, so that few graphs serve all."""
        return rows if self._recorder is None else rounded(rows)

    def padded_positions(self, positions: int) -> int:
        """Return the number of positions to read for `positions`, rounded up likewise."""
        return positions if self._recorder is None else rounded_positions(positions)

    def run(self, key: GraphKey, work: Callable[[], Result], changing: Sequence[Tensor] = ()) -> Result:
        """Do `work`, from its recording under `key` if there is one; `changing` is as in `GraphRecorder.record`."""
        if self._recorder is None:
            return work()
        # A key holds every size that the work reads, since a recording repeats these as they were.
        if key not in self._made:
            self._made[key] = self._recorder.record(work, changing)
        return cast(Result, self._made[key]())

    def stage(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Copy inputs from the host to the tensor that recorded work of this shape reads."""
        shape = tuple(inputs.shape)
        if shape not in self._inputs:
            self._inputs[shape] = torch.empty_like(inputs, device=device)
        return self._inputs[shape].copy_(inputs, non_blocking=True)

    def forget(self, kind: str | None = None) -> None:
        """Drop the recordings whose key begins with `kind`; none: all of them."""
        self._made = {key: made for key, made in self._made.items() if kind is not None and key[0] != kind}


def fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """Start copying a tensor to the host, and return a function that waits for the copy; later changes do not affect it."""
    if tensor.device.type != "cuda":
        copied = tensor.clone()
        return lambda: copied
    # Pinned memory, into which the device copies while the host goes on.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        arrived.synchronize()
        return host

    return wait
