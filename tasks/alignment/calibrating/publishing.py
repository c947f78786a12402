"""The calibration set as a data set: JSONL files, stored predictions, where they come from, and a card that tells of them.

Nothing here changes from one run to the next, so that equal work gives equal bytes.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.alignment.calibrating.checks import FAULTS
from tasks.alignment.calibrating.shards import Shards
from tasks.alignment.stored import FOLDER

PROVENANCE, CARD = "provenance.json", "README.md"
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

What the large model of this task writes for the inputs of the corpus: the text that a drafter is aligned on (BiLD, section
3.5.1). Outputs are {how}. Each line has a `source` and, as its only entry of `references`, the output.

| set | inputs | outputs | kept | tokens kept | {faults} | repeated |
|---|---|---|---|---|{rules}---|
{rows}

Outputs that are over-long, empty or degenerate are dropped, and so are equal outputs of one input. `validation` is held out.
{stored}`provenance.json` names the model, the settings, the inputs and the versions that made it.
"""


def publish(folder: Path, shards: Shards, sets: Mapping[str, list[str]], provenance: dict[str, Any]) -> None:
    """Writes the data set; the folder appears whole or not at all.

    Args:
        folder: Where.
        shards: What was labelled.
        sets: The names of the shards of each set, in order.
        provenance: What made it; the counts of each set are added.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, parts in sets.items():
        _join([shards.examples(part) for part in parts], partial / f"{name}.jsonl")
        for part in parts:
            predictions = shards.predictions(part)
            if predictions is not None:
                (partial / FOLDER).mkdir(exist_ok=True)
                shutil.copyfile(predictions, partial / FOLDER / f"{part}.safetensors")
    counts = {name: total_counts(shards, parts) for name, parts in sets.items()}
    whole = {**provenance, "sets": counts}
    (partial / PROVENANCE).write_text(json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    (partial / CARD).write_text(card(provenance["task"], provenance["settings"], counts), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def total_counts(shards: Shards, names: list[str]) -> dict[str, int]:
    """What the shards of a set count together, the faults that none has as 0."""
    total: Counter[str] = sum((shards.counts(name) for name in names), Counter())
    return {name: total[name] for name in ("inputs", "outputs", "kept", "tokens", *FAULTS, "repeated")}


def card(task: str, settings: Mapping[str, Any], counts: Mapping[str, Mapping[str, int]]) -> str:
    """The data set's card, Markdown with the front matter that `datasets` reads."""
    sampling = settings["sampling"]
    how = "greedy" if sampling["temperature"] == 0 else f"drawn at temperature {sampling['temperature']:g}"
    rows = [f"| {name} | {' | '.join(str(count) for count in numbers.values())} |" for name, numbers in counts.items()]
    kept = settings["top_logits"]
    stored = (
        f"`{FOLDER}` holds the {kept} likeliest tokens at each target position and their log-probabilities.\n" if kept else ""
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
