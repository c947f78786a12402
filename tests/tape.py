"""CUDA graphs imitated on a CPU: operations are recorded once and then replayed on the same tensors."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Work = TypeVar("Work")


class _Writer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[tuple[Any, Any, Any, list[Any]]] = []
        """Function, arguments, options and the leaves of the result."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = options or {}
        result = function(*arguments, **given)
        self.written.append((function, arguments, given, _leaves(result)))
        return result


class TapeRecorder:
    """A `Recorder` that repeats recorded operations: later branches, numbers and replaced tensors have no effect."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0

    def record(self, work: Callable[[], Work], changing: Sequence[Tensor]) -> Callable[[], Work]:
        kept = [tensor.clone() for tensor in changing]
        with _Writer() as writer:
            results = work()
        made = [tensor for tensor in _made(writer) if tensor.is_floating_point()]
        for tensor, before in zip(changing, kept, strict=True):
            tensor.copy_(before)
        self.recordings += 1

        def replay() -> Work:
            self.replays += 1
            # Results of an earlier run must have been copied by now.
            for tensor in made:
                tensor.fill_(torch.nan)
            for function, arguments, options, leaves in writer.written:
                for position, value in zip(leaves, _leaves(function(*arguments, **options)), strict=True):
                    if isinstance(position, Tensor) and position.data_ptr() != value.data_ptr():
                        position.copy_(value)
            return results

        return replay


def _leaves(result: Any) -> list[Any]:
    """What an operation returned; `tree_leaves` takes longer than most operations, which return one tensor."""
    return [result] if isinstance(result, Tensor) else tree_leaves(result)


def _made(writer: _Writer) -> list[Tensor]:
    """Tensors that the recorded operations made: neither views of others nor modified in place."""
    made = []
    for _function, arguments, options, leaves in writer.written:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)}
        made += [
            leaf
            for leaf in leaves
            if isinstance(leaf, Tensor) and leaf.numel() and leaf.untyped_storage().data_ptr() not in given
        ]
    return made
