"""The data sets of the papers, read from `data_sets.yaml`: where they are on the hub, and which columns hold what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

LOCK = "data/hub.lock.yaml"
"""What `active` names for a data set of the hub."""
PARQUET = "refs/convert/parquet"
"""The branch on which the hub keeps every data set as Parquet files, in a folder for each configuration; read where the data
set itself is a script."""


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
    shots: int = 0
    examples: tuple[int, int] = (0, 0)
    """Of train, and of validation and test together; 0: not known."""
    published: str = "none"
    """As `corpus.dataset` names it, where the report shows published numbers."""


_READ = yaml.safe_load(Path(__file__).with_name("data_sets.yaml").read_text(encoding="utf-8"))
DATA_SETS = {name: DataSet(**{**one, "reference_fields": tuple(one["reference_fields"])}) for name, one in _READ.items()}
"""By the name that `corpus.hub.preset` takes."""
