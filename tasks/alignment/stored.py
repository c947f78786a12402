"""Stored predictions of the large model along a calibration set, for offline distillation.

One safetensors file per shard, memory-mapped. Each target position holds the k most likely ids and their log-probabilities
under the model's softmax at temperature 1, in 16 bits where that suffices; the rest belongs to all other tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tasks.errors import InputError

FOLDER = "logits"
_SHORT = torch.iinfo(torch.int16).max
_LEAST = -6e4
"""In nats: float16 ends a little below, and a mask's -infinity times a probability of 0 would be NaN."""


def pack_top_logits(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of one file.

    Args:
        rows: Token ids, int64, and log-probabilities, float32 in nats, of each example: (positions, k) both.
    """
    tokens, log_probabilities = (torch.cat(column) for column in zip(*rows, strict=True))
    ends = torch.tensor([len(ids) for ids, _ in rows]).cumsum(0)
    short = tokens.numel() == 0 or int(tokens.max()) <= _SHORT
    return {
        "tokens": tokens.to(torch.int16 if short else torch.int32),
        "log_probabilities": _rounded_down(log_probabilities),
        "ends": ends,
    }


def _rounded_down(log_probabilities: Tensor) -> Tensor:
    """Round down to float16, so that the probabilities of a position never sum to more than 1."""
    numbers = log_probabilities.clamp(min=_LEAST)
    halves = -numbers.half().abs()
    # The integer of the next float below a negative one is larger by one; use it where rounding went up.
    return torch.where(halves.float() > numbers, (halves.view(torch.int16) + 1).view(torch.float16), halves)


class StoredTopLogits:
    """Stored predictions of one set, by the index of the example in its JSONL file."""

    def __init__(self, files: list[Path]) -> None:
        """Open the files, in order.

        Raises:
            InputError: a file was not written by `pack_top_logits`.
        """
        self._shards = [_load(file) for file in files]
        self._begins = [0, *itertools.accumulate(len(shard["ends"]) for shard in self._shards)]

    @classmethod
    def open(cls, calibration: Path, which: str) -> StoredTopLogits:
        """Open the stored predictions of a calibration set for `which` of its sets, calibration or validation.

        Raises:
            InputError: there are none.
        """
        files = sorted((calibration / FOLDER).glob(f"{which}-*.safetensors"))
        if not files:
            raise InputError(
                f"{calibration} has no stored predictions of the large model; set calibrate.top_logits in params.yaml and run "
                "the stage calibrate again (dvc repro)"
            )
        return cls(files)

    def __len__(self) -> int:
        return self._begins[-1]

    def require_matching(self, targets: Sequence[Sequence[int]], calibration: Path) -> None:
        """Check that the stored predictions belong to these texts, by their lengths.

        Raises:
            InputError: they belong to other texts.
        """
        begin = torch.zeros(1, dtype=torch.long)
        lengths = torch.cat([shard["ends"].diff(prepend=begin) for shard in self._shards])
        if lengths.tolist() != [len(target) for target in targets]:
            raise InputError(
                f"the stored predictions in {calibration / FOLDER} belong to other texts; run the stage calibrate "
                "again (dvc repro --force)"
            )

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        """Return token ids, int64, most likely first, and log-probabilities in nats, float32: (target positions, k) both."""
        index = bisect_right(self._begins, example) - 1
        shard, within = self._shards[index], example - self._begins[index]
        begin = int(shard["ends"][within - 1]) if within else 0
        rows = slice(begin, int(shard["ends"][within]))
        return shard["tokens"][rows].long(), shard["log_probabilities"][rows].float()


def _load(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        shard: dict[str, Tensor] = load_file(file)  # mapped, not read
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} cannot be read ({error}); run the stage calibrate again (dvc repro --force)") from None
    if shard.keys() != {"tokens", "log_probabilities", "ends"}:
        raise InputError(f"{file} holds {', '.join(shard)}; run the stage calibrate again (dvc repro --force)")
    return shard
