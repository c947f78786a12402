"""The data sets of the papers, read from `presets.yaml`: where they are on the hub, and how the papers use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LOCK = "data/hub.lock.yaml"
"""What `active` names for a data set of the hub."""
PARQUET = "refs/convert/parquet"
"""The branch on which the hub keeps every data set as Parquet files, in a folder for each configuration; read where the data
set itself is a script."""
Section = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """A data set, and how its rows become examples; `HubSettings` describes the fields."""

    name: str
    source_field: str
    reference_fields: tuple[str, ...]
    template: str = ""
    configuration: str = ""
    revision: str = "main"
    splits: Mapping[str, str] = field(default_factory=lambda: {split: split for split in ("train", "validation", "test")})
    no_reference: str = ""
    passage_words: int = 0
    published: str = "none"
    """As `corpus.dataset` names it, where the report shows published numbers."""


def _data_set(entry: Section) -> DataSet:
    return DataSet(**{**entry, "reference_fields": tuple(entry["reference_fields"])})


_FILE = Path(__file__).with_name("presets.yaml")
PRESETS: dict[str, Section] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["presets"]
"""The entries of the file, which says what they hold; the first pair of models is the one of the task."""
DATA_SETS = {name: _data_set(preset["data_set"]) for name, preset in PRESETS.items()}


def task_section(name: str) -> Section:
    """The task of a preset as params.yaml holds it under `tasks`."""
    preset = PRESETS[name]
    pair, (source, target) = preset["pairs"][0], preset["lengths"]
    return {
        "seeds": [1],
        "metric": preset["metric"],
        **preset.get("options", {}),
        "corpus": {"source": "hub", "hub": {"preset": name}},
        "text": {"max_source_tokens": source, "max_target_tokens": target, **preset.get("text", {})},
        "tokenizer": {"pretrained": pair["large"]},
        "models": {"large": {"pretrained": pair["large"]}, "small": {"pretrained": pair["small"]}},
        "finetune": {"large": preset["large"], "small": preset["small"]},
        "calibrate": {"batch_size": 32, **preset.get("calibrate", {})},
        "align": preset["align"],
        "sweep": {"grid": preset["grid"], "sampling": {"temperature": preset.get("temperature", 0.0)}},
    }
