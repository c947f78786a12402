"""Labelled shards on the disk: written whole or not at all, so that a killed run goes on where it stood."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from tasks.alignment.calibrating.labelling import LabelledOutputs
from tasks.alignment.stored import pack_top_logits
from tasks.corpora.example import write_jsonl
from tasks.errors import writing
from tasks.fingerprint import checksum, discard_others, remove

EXAMPLES, COUNTS, PREDICTIONS = "examples.jsonl", "counts.json", "predictions.safetensors"
_SUMS = "sums.json"


class Shards:
    """A folder of finished shards, of one piece of work alone."""

    def __init__(self, folder: Path) -> None:
        """Takes the folder, named by the work's fingerprint; what other work left beside it is removed."""
        discard_others(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether that shard is finished, and as it was written."""
        shard = self._folder / name
        return (shard / _SUMS).is_file() and (shard / _SUMS).read_bytes() == _sums(shard)

    def write(self, name: str, labelled: LabelledOutputs) -> None:
        """Saves a shard; raises `InputError` where no space is left."""
        partial = self._folder / f"{name}.partial"
        remove(partial)
        with writing(f"the outputs of {name}", partial, lambda: "goes on after the last finished shard"):
            partial.mkdir()
            write_jsonl(labelled.examples, partial / EXAMPLES)
            (partial / COUNTS).write_text(json.dumps(labelled.counts), encoding="utf-8")
            if labelled.predictions:
                from safetensors.torch import save_file

                save_file(pack_top_logits(labelled.predictions), partial / PREDICTIONS)
            (partial / _SUMS).write_bytes(_sums(partial))
        remove(self._folder / name)
        partial.rename(self._folder / name)

    def counts(self, name: str) -> Counter[str]:
        """The counts of a finished shard."""
        return Counter(json.loads((self._folder / name / COUNTS).read_text(encoding="utf-8")))

    def examples(self, name: str) -> Path:
        """Its examples, JSONL."""
        return self._folder / name / EXAMPLES

    def predictions(self, name: str) -> Path | None:
        """Its stored predictions, where it has some."""
        file = self._folder / name / PREDICTIONS
        return file if file.is_file() else None

    def remove(self) -> None:
        """Removes it all, once it is published."""
        shutil.rmtree(self._folder)


def _sums(shard: Path) -> bytes:
    """The checksums of a shard's files, by name."""
    files = sorted(file for file in shard.iterdir() if file.name != _SUMS)
    return json.dumps({file.name: checksum(file) for file in files}).encode()
