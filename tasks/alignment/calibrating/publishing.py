"""Publishes the calibration set as a data set: JSONL files, stored predictions, provenance and a card.

The files contain nothing that differs between runs, so that equal work gives equal bytes.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.alignment.calibrating.checks import FAULTS
from tasks.alignment.calibrating.settings import CalibrateSettings
from tasks.alignment.calibrating.shards import Shards
from tasks.alignment.stored import FOLDER
from tasks.corpora.example import read_jsonl
from tasks.evaluation.results.pair import OutputCheck
from tasks.files import atomic_folder
from tasks.models.settings import TextSettings

PROVENANCE, CARD, REFERENCES = "provenance.json", "README.md", "references"
_CARD = """\
---
pretty_name: Calibration set of {task}
configs:
- config_name: default
  data_files:
  - split: train
    path: calibration.jsonl
  - split: validation
    path: validation.jsonl
---

# Calibration set of {task}

The outputs of this task's large model for the inputs of the corpus: the text that a drafter is aligned on (BiLD, section
3.5.1). Outputs are {how}. Each line has a `source` and, as its only entry of `references`, the output.

| set | inputs | outputs | kept | tokens kept | {faults} | repeated | distinct |
|---|---|---|---|---|{rules}---|---|
{rows}

Outputs that are over-long, empty or degenerate are dropped, and so are equal outputs of one input. `validation` is held out.
`calibration-references.jsonl` and `validation-references.jsonl` hold the same inputs in the same order with the references of
the corpus: the text that the control of an alignment is trained on. Inputs without references are left out there.
{stored}`provenance.json` names the model, the settings, the inputs and the versions that made it.
"""


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


def publish(folder: Path, shards: Shards, sets: Mapping[str, list[str]], provenance: Provenance) -> None:
    """Write the data set; the folder appears as a whole or not at all.

    Args:
        folder: Where to write.
        shards: The labelled shards.
        sets: Names of the shards of each set, in order.
        provenance: How the set was made. It is written with the counts of each set.
    """
    counts = {name: total_counts(shards, parts) for name, parts in sets.items()}
    whole = {**asdict(provenance), "sets": counts}
    with atomic_folder(folder) as partial:
        for name, parts in sets.items():
            _join([shards.examples(part) for part in parts], partial / f"{name}.jsonl")
            _join([shards.controls(part) for part in parts], partial / f"{name}-{REFERENCES}.jsonl")
            for part in parts:
                predictions = shards.predictions(part)
                if predictions is not None:
                    (partial / FOLDER).mkdir(exist_ok=True)
                    shutil.copyfile(predictions, partial / FOLDER / f"{part}.safetensors")
        text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (partial / PROVENANCE).write_text(text, encoding="utf-8")
        (partial / CARD).write_text(card(provenance.task, provenance.settings, counts), encoding="utf-8")


def total_counts(shards: Shards, names: list[str]) -> dict[str, int]:
    """Return the total counts of the shards of a set, with 0 for faults that did not occur, and its `distinct` outputs."""
    total: Counter[str] = sum((shards.counts(name) for name in names), Counter())
    texts = {example.references[0] for name in names for example in read_jsonl(shards.examples(name))}
    counts = {name: total[name] for name in ("inputs", "outputs", "kept", "tokens", *FAULTS, "repeated")}
    return {**counts, "distinct": len(texts)}


def card(task: str, settings: CalibrateSettings, counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the data set's card: Markdown with the front matter that `datasets` reads."""
    sampling = settings.sampling
    how = "greedy" if sampling.greedy else f"drawn at temperature {sampling.temperature:g}"
    rows = [f"| {name} | {' | '.join(str(count) for count in numbers.values())} |" for name, numbers in counts.items()]
    kept = settings.top_logits
    stored = (
        f"`{FOLDER}` holds the {kept} most likely tokens at each target position and their log-probabilities.\n" if kept else ""
    )
    return _CARD.format(
        task=task,
        how=how,
        faults=" | ".join(fault.replace("_", "-") for fault in FAULTS),
        rules="---|" * len(FAULTS),
        rows="\n".join(rows),
        stored=stored,
    )


def _join(files: list[Path], target: Path) -> None:
    with target.open("wb") as joined:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, joined)
