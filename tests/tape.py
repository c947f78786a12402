"""What a CUDA graph does, on a CPU: operations are written down once, and then done again on the very same tensors."""

from __future__ import annotations

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
        self.written: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = options or {}
        result = function(*arguments, **given)
        self.written.append((function, arguments, given, result))
        return result


class TapeRecorder:
    """A `Recorder` that decides nothing anew: a branch taken, a number read or a tensor replaced later is not noticed."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0

    def record(self, work: Callable[[], Work], changing: Sequence[Tensor]) -> Callable[[], Work]:
        kept = [tensor.clone() for tensor in changing]
        with _Writer() as writer:
            results = work()
        for tensor, before in zip(changing, kept, strict=True):
            tensor.copy_(before)
        self.recordings += 1

        def replay() -> Work:
            self.replays += 1
            # What an earlier run gave must have been copied by now.
            for tensor in _made(writer):
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
            for function, arguments, options, result in writer.written:
                for place, value in zip(tree_leaves(result), tree_leaves(function(*arguments, **options)), strict=True):
                    if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                        place.copy_(value)
            return results

        return replay


def _made(writer: _Writer) -> list[Tensor]:
    """Tensors that the recorded operations made: neither views of others nor changed in place."""
    made = []
    for _function, arguments, options, result in writer.written:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)}
        made += [
            leaf
            for leaf in tree_leaves(result)
            if isinstance(leaf, Tensor) and leaf.numel() and leaf.untyped_storage().data_ptr() not in given
        ]
    return made
