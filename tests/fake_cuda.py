"""CUDA on a machine without it: tensors that have a shape and the device `cuda:0`, but no numbers.

Operands on different devices are refused as on a GPU. A wait of the host for the device is noted with the line of this project
that waits, and refused while a CUDA graph is captured; a number that the host reads is the same made-up one each time.
"""

import copy
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tasks.decoding.runtimes import cuda_graphs

ROOT = Path(__file__).parents[1]
DEVICE = torch.device("cuda:0")
aten = torch.ops.aten


class RefusedError(AssertionError):
    """What a GPU would refuse, or what a recorded graph would not repeat, and the line of this project that does it."""


def line_of_ours() -> str:
    """Return the innermost line of this project, this module apart: file, function and code."""
    frame = sys._getframe(1)
    while not _is_ours(frame.f_code.co_filename):
        assert frame.f_back is not None
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    name = frame.f_code.co_qualname.replace(".<locals>", "")
    return f"{file.relative_to(ROOT).as_posix()} {name}: {linecache.getline(str(file), frame.f_lineno).strip()}"


def _is_ours(file: str) -> bool:
    return file.startswith((f"{ROOT}/tasks/", f"{ROOT}/tests/")) and file != __file__


class FakeCuda(TorchDispatchMode):
    """Runs what is inside of it on tensors without numbers. Use `fake_cuda`, which enters the other modes as well."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer = 0
        """The number that the host reads, whatever it reads: true unless it is 0."""
        self.waits: set[str] = set()
        """Lines that waited for the device outside of captures."""
        self.models: tuple[Any, ...] = ()
        self.captures = 0
        self.capturing = False

    def note(self, what: str) -> None:
        """Note that the host waits for the device."""
        if self.capturing:
            raise RefusedError(f"{line_of_ours()}: {what} while a graph is captured")
        self.waits.add(line_of_ours())

    @contextmanager
    def capture(self, *_: object, **__: object) -> Iterator[None]:
        """Stand in for `torch.cuda.graph`."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False
            self.captures += 1

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = options or {}
        tensors = [leaf for leaf in tree_leaves((arguments, given)) if isinstance(leaf, Tensor)]
        operation = function.overloadpacket
        if operation in (aten._local_scalar_dense, aten.equal):
            if any(one.is_cuda for one in tensors):
                self.note("the host reads a tensor")
            return _number(self.answer, torch.bool if operation is aten.equal else tensors[0].dtype)
        # Inference mode leaves it to each mode to take composed operations apart.
        if function.namespace == "aten":
            with self:
                result = function.decompose(*arguments, **given)
            if result is not NotImplemented:
                return result
        try:
            result = self._run(function, arguments, given)
        except RefusedError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise RefusedError(f"{line_of_ours()}: {operation}: {reason}") from error
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if any(one.is_cuda for one in tensors + made):
            self._check_copy(operation, arguments, given, made)
        if self.capturing and not all(one.is_cuda for one in tensors + made):
            raise RefusedError(f"{line_of_ours()}: {operation} on a tensor of the host while a graph is captured")
        return result

    def _run(self, function: Any, arguments: Any, given: Any) -> Any:
        if function.overloadpacket is aten.nonzero:
            self.note("the host waits for the number of elements")
            return self._all_places(arguments[0])
        if function.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            values, indices, *others = arguments
            arguments = (values, self._places(values, indices), *others)
        if function.overloadpacket in (aten._softmax, aten._log_softmax):
            # Their decomposition asks Python for a contiguous tensor.
            arguments = (aten.clone(arguments[0], memory_format=torch.contiguous_format), *arguments[1:])
        result = function(*arguments, **given)
        if given.get("pin_memory"):
            result.pinned = True
        return result

    def _places(self, values: Tensor, indices: list[Tensor | None]) -> list[Tensor | None]:
        """Return indices without masks."""
        places: list[Tensor | None] = []
        for index in indices:
            if index is not None and values.is_cuda and not index.is_cuda:
                self.note("an index is copied to the device")
            if index is None or index.dtype != torch.bool:
                places.append(index)
            else:
                self.note("the host waits for the number of elements of a mask")
                places += self._all_places(index).unbind(-1)
        return places

    def _all_places(self, mask: Tensor) -> Tensor:
        """The places where a mask holds, as if it held everywhere: (elements, dimensions)."""
        return torch.empty(mask.numel(), mask.dim(), dtype=torch.long, device=mask.device)

    def _check_copy(self, operation: Any, arguments: Any, given: Any, made: list[Tensor]) -> None:
        """Note copies between host and device that are not asynchronous."""
        if operation is aten._to_copy:
            source, target, asynchronous = arguments[0], made[0], given.get("non_blocking", False)
        elif operation is aten.copy_:
            target, source = arguments[:2]
            asynchronous = given.get("non_blocking", arguments[2] if len(arguments) > 2 else False)
        else:
            return
        if source.is_cuda and not target.is_cuda and not (asynchronous and hasattr(target, "pinned")):
            self.note("a copy to the host waits")
        if target.is_cuda and not source.is_cuda and not asynchronous and source.numel():
            self.note("a copy to the device waits")


_OPERATIONS = {
    "copy_": aten.copy_,
    "contiguous": aten.contiguous,
    "nonzero": aten.nonzero,
    "__invert__": aten.bitwise_not,
}


class _Bindings(TorchFunctionMode):
    """Calls operations where Python's bindings ask for a CUDA device before any other mode sees the call."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.__name__
        if name == "__getitem__":
            view, indices = _view_of(*arguments)
            return view if indices is None else aten.index(view, indices)
        if name == "__setitem__":
            tensor, key, value = arguments
            view, indices = _view_of(tensor, key)
            value = value if isinstance(value, Tensor) else torch.full((), value, dtype=tensor.dtype, device=tensor.device)
            return aten.copy_(view, value) if indices is None else aten.index_put_(view, indices, value)
        if name in ("__int__", "__float__"):
            return (int if name == "__int__" else float)(arguments[0].item())
        if name == "nonzero" and options:
            return aten.nonzero(*arguments).unbind(-1)
        return _OPERATIONS.get(name, function)(*arguments, **(options or {}))


def _view_of(tensor: Tensor, key: Any) -> tuple[Tensor, list[Tensor | None] | None]:
    """Return the view that the plain parts of an index select, and the tensors among them by dimension, if there are any."""
    keys = [torch.tensor(one) if isinstance(one, list) else one for one in (key if isinstance(key, tuple) else [key])]
    dots = next((place for place, one in enumerate(keys) if one is Ellipsis), len(keys))
    rest = tensor.dim() - sum(map(_dimensions, keys))
    indices: list[Tensor | None] = []
    dimension = 0
    for one in [*keys[:dots], *[slice(None)] * rest, *keys[dots + 1 :]]:
        if one is None:
            tensor = tensor.unsqueeze(dimension)
        elif isinstance(one, slice):
            tensor = aten.slice(tensor, dimension, one.start, one.stop, one.step or 1)
        elif isinstance(one, Tensor) and one.dim():
            before = dimension - sum(_dimensions(index) - 1 for index in indices if index is not None)
            indices += [*[None] * (before - len(indices)), one]
        else:
            # A number; PyTorch reads it from a tensor that holds a single one.
            tensor = tensor.select(dimension, int(one))
            continue
        dimension += max(1, _dimensions(one))
    return tensor, indices or None


def _dimensions(key: Any) -> int:
    """The dimensions of a tensor that a part of an index takes up."""
    if key is None or key is Ellipsis:
        return 0
    return key.dim() if isinstance(key, Tensor) and key.dtype == torch.bool else 1


def _number(answer: int, dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return bool(answer)
    return float(answer) if dtype.is_floating_point else answer


class _Stream:
    def wait_stream(self, _: object) -> None: ...


class _Graph:
    def replay(self) -> None: ...


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch, *models: Any) -> Iterator[FakeCuda]:
    """Make `cuda:0` a device of tensors without numbers, and put copies of models there, `FakeCuda.models`.

    What `torch.cuda` offers for streams and graphs does nothing.
    """
    copies = copy.deepcopy(models)
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        cuda = FakeCuda()

        class Event:
            def record(self, _: object) -> None: ...

            def synchronize(self) -> None:
                cuda.note("the host waits for an event")

        stand_ins = {
            "device": lambda _: nullcontext(),
            "current_stream": lambda *_: _Stream(),
            "Stream": _Stream,
            "stream": lambda _: nullcontext(),
            "synchronize": lambda *_: cuda.note("the host waits for the device"),
            "CUDAGraph": _Graph,
            "graph_pool_handle": lambda: 0,
            "graph": cuda.capture,
            "Event": Event,
            "is_bf16_supported": lambda **_: False,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        # Runs before a capture do the same, and would take most of the time.
        monkeypatch.setattr(cuda_graphs, "_WARM_UPS", 0)
        stack.enter_context(cuda)
        stack.enter_context(_Bindings())
        stack.enter_context(torch.no_grad())
        for model in copies:
            _move(model)
        cuda.models = copies
        yield cuda


def _move(model: Any) -> None:
    """Replace the weights of a model by those of the fake device; weights that are shared stay so."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            new = torch.empty(weight.shape, dtype=weight.dtype, device=DEVICE)
            setattr(module, name, made.setdefault(id(weight), torch.nn.Parameter(new, requires_grad=False)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=DEVICE))
