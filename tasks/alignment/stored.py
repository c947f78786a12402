"""The large model's likeliest tokens at each target position of a calibration set, in files: what offline distillation reads.

One safetensors file a shard, read through memory maps. Of each position it holds k ids and their log-probabilities, in 16
bits where that is enough, of the model's own softmax however its text was drawn; what is left for all other tokens follows.
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
"""Nats: float16 ends a little below, and a mask's -infinity times a probability of 0 would be no number."""


def pack_top_logits(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The tensors of one file.

    Args:
        rows: Of each example token ids, int64, and their log-probabilities, float32 in nats: (positions, k) both.
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
    """float16, never more than it was: the probabilities of a position must not come to more than 1."""
    numbers = log_probabilities.clamp(min=_LEAST)
    halves = -numbers.half().abs()
    # Seen as an integer, the next number below a negative one is one more; where it is rounded up, that is taken.
    return torch.where(halves.float() > numbers, (halves.view(torch.int16) + 1).view(torch.float16), halves)


class StoredTopLogits:
    """The stored predictions of one set, by the number of the example in its JSONL file."""

    def __init__(self, files: list[Path]) -> None:
        """Takes the files in order.

        Raises:
            InputError: one of them is not as `pack_top_logits` makes it.
        """
        self._shards = [_load(file) for file in files]
        self._begins = [0, *itertools.accumulate(len(shard["ends"]) for shard in self._shards)]

    @classmethod
    def open(cls, calibration: Path, which: str) -> StoredTopLogits:
        """What the calibration set in a folder holds for `which` of its sets: calibration or validation.

        Raises:
            InputError: it holds none.
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
        """Compares what is stored with the texts that it is to be read along, by their lengths.

        Raises:
            InputError: they are other texts.
        """
        begin = torch.zeros(1, dtype=torch.long)
        lengths = torch.cat([shard["ends"].diff(prepend=begin) for shard in self._shards])
        if lengths.tolist() != [len(target) for target in targets]:
            raise InputError(
                f"the stored predictions in {calibration / FOLDER} are not of the texts beside them; run the stage calibrate "
                "again (dvc repro --force)"
            )

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        """Token ids, int64, likeliest first, and their log-probabilities in nats, float32: (target positions, k) both."""
        place = bisect_right(self._begins, example) - 1
        shard, within = self._shards[place], example - self._begins[place]
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
