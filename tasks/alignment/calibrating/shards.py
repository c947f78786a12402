"""Labelled shards on disk, written as a whole or not at all, so that a killed run resumes after the last finished one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from tasks.alignment.calibrating.labelling import LabelledOutputs
from tasks.alignment.stored import pack_top_logits
from tasks.corpora.example import write_jsonl
from tasks.errors import writing
from tasks.files import atomic_folder, checksum, partial_path
from tasks.fingerprint import discard_others

EXAMPLES, CONTROLS, COUNTS, PREDICTIONS = "examples.jsonl", "controls.jsonl", "counts.json", "predictions.safetensors"
_SUMS = "sums.json"


class Shards:
    """Folder of the finished shards of one piece of work."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is named by the work's fingerprint; remove shards of other work."""
        discard_others(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether a shard is finished and its checksums match."""
        shard = self._folder / name
        return (shard / _SUMS).is_file() and (shard / _SUMS).read_bytes() == _sums(shard)

    def write(self, name: str, labelled: LabelledOutputs) -> None:
        """Save a shard; raise `InputError` if no space is left."""
        folder = self._folder / name
        full = writing(f"the outputs of {name}", partial_path(folder), lambda: "goes on after the last finished shard")
        with full, atomic_folder(folder) as partial:
            write_jsonl(labelled.examples, partial / EXAMPLES)
            write_jsonl(labelled.controls, partial / CONTROLS)
            (partial / COUNTS).write_text(json.dumps(labelled.counts), encoding="utf-8")
            if labelled.predictions:
                from safetensors.torch import save_file

                save_file(pack_top_logits(labelled.predictions), partial / PREDICTIONS)
            (partial / _SUMS).write_bytes(_sums(partial))

    def counts(self, name: str) -> Counter[str]:
        """Return the counts of a finished shard."""
        return Counter(json.loads((self._folder / name / COUNTS).read_text(encoding="utf-8")))

    def examples(self, name: str) -> Path:
        """Return the JSONL file of its examples."""
        return self._folder / name / EXAMPLES

    def controls(self, name: str) -> Path:
        """Return the JSONL file of the corpus' references for the same inputs."""
        return self._folder / name / CONTROLS

    def predictions(self, name: str) -> Path | None:
        """Return the file of its stored predictions; None if it has none."""
        file = self._folder / name / PREDICTIONS
        return file if file.is_file() else None

    def remove(self) -> None:
        """Remove all shards, once they are published."""
        shutil.rmtree(self._folder)


def _sums(shard: Path) -> bytes:
    """Return the checksums of a shard's files, by name."""
    files = sorted(file for file in shard.iterdir() if file.name != _SUMS)
    return json.dumps({file.name: checksum(file) for file in files}).encode()
