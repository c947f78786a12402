"""What a drafter's folder says of its training, `training.json`: which work it was, and how much it learned from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

FILE = "training.json"


@dataclass(frozen=True)
class TrainingRecord:
    """The training of one model. Equal runs give equal records."""

    work: str
    """Fingerprint of settings, data and code."""
    steps: int
    """Optimiser steps that were taken."""
    examples: int
    """Examples that they were drawn from."""
    target_tokens: int
    """Target tokens that the loss was computed on, over all steps."""


def read_training_record(folder: Path) -> TrainingRecord | None:
    """The record of a model's folder; None where it has none, or one of another version."""
    try:
        return TrainingRecord(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def write_training_record(record: TrainingRecord, folder: Path) -> None:
    """Write the record into a model's folder."""
    (folder / FILE).write_text(json.dumps(dataclasses.asdict(record), indent=2) + "\n", encoding="utf-8")
