"""The files of a calibration set: labelled shards while it is made, the published data set, and its stored predictions.

Everything is written as a whole or not at all, so that a killed run resumes after the last finished shard. The published files
contain nothing that differs between runs, so that equal work gives equal bytes.
"""

from __future__ import annotations

import itertools
import json
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import Example, read_jsonl, write_jsonl
from tasks.errors import InputError, require_whole, writing
from tasks.evaluation.scoring.quality import OutputCheck
from tasks.files import atomic_folder, is_sealed, partial_path
from tasks.fingerprint import discard_others
from tasks.models.card import markdown_templates
from tasks.models.settings import TextSettings
from tasks.paths import PROVENANCE

FAULTS = ("over_long", "empty", "degenerate")
"""Of outputs that are unfit for training: no end token, no word, or repetitive."""
LOGITS = "logits"
"""The folder of stored predictions."""
EXAMPLES, CONTROLS, COUNTS, PREDICTIONS = "examples.jsonl", "controls.jsonl", "counts.json", "predictions.safetensors"
CARD, REFERENCES = "README.md", "references"
_SHORT = torch.iinfo(torch.int16).max
_LEAST = -6e4
"""In nats: float16 ends a little below, and a mask's -infinity times a probability of 0 would be NaN."""


@dataclass(frozen=True)
class LabelledOutputs:
    """The large model's outputs for some inputs."""

    examples: list[Example]
    """Source and output, as the only reference, of each output that is fit for training."""
    controls: list[Example]
    """The same inputs with the corpus' references, in the same order; inputs without references are left out."""
    counts: Counter[str]
    """`inputs`; `outputs`; `kept` outputs and their `tokens`, end tokens included; each of `FAULTS`; `repeated`: equal to an
    earlier output of the same input."""
    predictions: list[tuple[Tensor, Tensor]] | None
    """Top token ids and log-probabilities of each example (see `pack_top_logits`); None if none are stored."""


class Shards:
    """Folder of the finished shards of one piece of work."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is named by the work's fingerprint; remove shards of other work."""
        discard_others(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether a shard is finished and its checksums match."""
        return is_sealed(self._folder / name)

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

    def file(self, name: str, part: str) -> Path:
        """Return a file of a finished shard: `EXAMPLES`, `CONTROLS`, `COUNTS` or `PREDICTIONS`, which it may lack."""
        return self._folder / name / part

    def total_counts(self, names: list[str]) -> dict[str, int]:
        """Return the total counts of the shards of a set, with 0 for faults that did not occur, and its `distinct` outputs."""
        total: Counter[str] = Counter()
        for name in names:
            total.update(json.loads(self.file(name, COUNTS).read_text(encoding="utf-8")))
        texts = {example.references[0] for name in names for example in read_jsonl(self.file(name, EXAMPLES))}
        counts = {name: total[name] for name in ("inputs", "outputs", "kept", "tokens", *FAULTS, "repeated")}
        return {**counts, "distinct": len(texts)}

    def remove(self) -> None:
        """Remove all shards, once they are published."""
        shutil.rmtree(self._folder)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a calibration set was made."""

    task: str
    model: dict[str, str]
    """Folder, fingerprint, type, device and runtime of the large model."""
    settings: CalibrateSettings
    text: TextSettings
    inputs: dict[str, str]
    """Fingerprints of the input files by path."""
    versions: dict[str, str]
    """Of packages."""
    check: OutputCheck | None = None
    """How the kept outputs for the held-out inputs compare with trivial baselines; None without references."""
    warnings: list[str] = field(default_factory=list)
    """What speaks against learning from the set, a clause each, which the report repeats."""


def publish(folder: Path, shards: Shards, sets: Mapping[str, list[str]], provenance: Provenance) -> None:
    """Write the data set; the folder appears as a whole or not at all.

    Args:
        folder: Where to write.
        shards: The labelled shards.
        sets: Names of the shards of each set, in order.
        provenance: How the set was made. It is written with the counts of each set.
    """
    counts = {name: shards.total_counts(parts) for name, parts in sets.items()}
    whole = {**asdict(provenance), "sets": counts}
    with atomic_folder(folder) as partial:
        for name, parts in sets.items():
            _join([shards.file(part, EXAMPLES) for part in parts], partial / f"{name}.jsonl")
            _join([shards.file(part, CONTROLS) for part in parts], partial / f"{name}-{REFERENCES}.jsonl")
            for part in parts:
                predictions = shards.file(part, PREDICTIONS)
                if predictions.is_file():
                    (partial / LOGITS).mkdir(exist_ok=True)
                    shutil.copyfile(predictions, partial / LOGITS / f"{part}.safetensors")
        text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (partial / PROVENANCE).write_text(text, encoding="utf-8")
        card = markdown_templates("tasks.alignment").get_template("card.md.j2")
        known = {"task": provenance.task, "settings": provenance.settings, "counts": counts}
        (partial / CARD).write_text(card.render(known, faults=FAULTS, logits=LOGITS) + "\n", encoding="utf-8")


def _join(files: list[Path], target: Path) -> None:
    with target.open("wb") as joined:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, joined)


def pack_top_logits(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of one file of stored predictions.

    Each target position holds the k most likely ids and their log-probabilities under the model's softmax at temperature 1, in
    16 bits where that suffices; the rest belongs to all other tokens.

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
    """Stored predictions of one set, by the index of the example in its JSONL file. The files are mapped, not read."""

    def __init__(self, files: list[Path]) -> None:
        """Open the files, in order.

        Raises:
            InputError: a file was not written by `pack_top_logits`.
        """
        self._shards = [_load(file) for file in files]
        self._begins = [0, *itertools.accumulate(len(shard["ends"]) for shard in self._shards)]

    @classmethod
    def open(cls, calibration: Path, which: str, targets: Sequence[Sequence[int]]) -> StoredTopLogits:
        """Open the stored predictions of a calibration set for `which` of its sets, calibration or validation.

        Args:
            calibration: The folder of the calibration set.
            which: The name of the set.
            targets: The token ids of its texts.

        Raises:
            InputError: there are none, they were changed, or they belong to other texts by their lengths.
        """
        require_whole(calibration)
        files = sorted((calibration / LOGITS).glob(f"{which}-*.safetensors"))
        if not files:
            fix = "set calibrate.top_logits in params.yaml and run the stage calibrate again (dvc repro)"
            raise InputError(f"{calibration} has no stored predictions of the large model; {fix}")
        stored = cls(files)
        begin = torch.zeros(1, dtype=torch.long)
        lengths = torch.cat([shard["ends"].diff(prepend=begin) for shard in stored._shards])
        if lengths.tolist() != [len(target) for target in targets]:
            fix = "run the stage calibrate again (dvc repro --force)"
            raise InputError(f"the stored predictions in {calibration / LOGITS} belong to other texts; {fix}")
        return stored

    def __len__(self) -> int:
        return self._begins[-1]

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
        shard: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} cannot be read ({error}); run the stage calibrate again (dvc repro --force)") from None
    if shard.keys() != {"tokens", "log_probabilities", "ends"}:
        raise InputError(f"{file} holds {', '.join(shard)}; run the stage calibrate again (dvc repro --force)")
    return shard
