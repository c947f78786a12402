"""What is timed: two models in folders, sources, and how long a text may be; and the same opened."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.bench import ctranslate
from tasks.bench.baselines import assisted, generate, new_tokens
from tasks.bench.shapes import Shape, random_pair, random_sources
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.decoding.strategies import Pair, Request, decode
from tasks.models.checkpoints import load_model

_SOURCES = 64


@dataclass(frozen=True)
class Case:
    """One pair of models and its inputs; the folders are read again by the processes that measure memory."""

    name: str
    large: Path
    small: Path | None
    converted: Path
    """Where CTranslate2 finds the large model."""
    sources: Rows
    limit: int
    """Most new tokens."""
    examples: int
    """Sources a round, one after the other."""
    batch: int
    """Sources of a batch."""
    batch_limit: int
    batch_rounds: int
    memory: bool = True
    """Whether the memory of each contender is measured."""
    vocabulary: int | None = None
    """Ids that are predicted; none: all."""
    bild: dict[str, Any] | None = None
    """The settings of BiLD; none: the small model was not trained, and its speed would say nothing."""
    bild_from: str = ""
    """Where they come from."""

    def window(self, round_index: int, count: int) -> Rows:
        """The sources of a turn."""
        return [self.sources[(round_index * count + offset) % len(self.sources)] for offset in range(count)]

    def as_json(self) -> dict[str, Any]:
        """For `from_json`, in another process."""
        values = dataclasses.asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Case:
        """What `as_json` gave."""
        small = values["small"]
        folders = {name: Path(values[name]) for name in ("large", "converted")}
        return cls(**{**values, **folders, "small": None if small is None else Path(small)})


class LoadedCase:
    """A case whose models are loaded when they are first used."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def large(self) -> Any:
        return load_model(self.case.large)

    @cached_property
    def small(self) -> Any:
        """None where there is no small model."""
        return None if self.case.small is None else load_model(self.case.small)

    @cached_property
    def pair(self) -> Pair:
        """The large model in the small one's place where there is none."""
        if self.small is None:
            alone = open_decoder(self.large, "large", self.case.vocabulary)
            return Pair(alone, alone)
        return open_pair(self.small, self.large, self.case.vocabulary)

    def here(self, method: str, settings: Any, sources: Rows, limit: int) -> list[Generation]:
        """By this project, the sources side by side."""
        return decode(method, settings, self.pair, sources, Request(limit))

    def vanilla(self, sources: Rows, limit: int) -> Rows:
        """By this project and the large model alone."""
        return [one.tokens for one in self.here("vanilla_large", VanillaSettings(), sources, limit)]

    def bild(self, sources: Rows, limit: int) -> Rows:
        """By this project and BiLD."""
        return [one.tokens for one in self.here("bild", BildSettings(**(self.case.bild or {})), sources, limit)]

    def generated(self, sources: Rows, limit: int, *, static: bool = False) -> Rows:
        """By `generate`, as one batch."""
        return new_tokens(self.large, generate(self.large, sources, limit, static=static), sources)

    def assisted(self, source: list[int], limit: int, draft_length: int | None = None) -> Rows:
        """By `generate` and the small model."""
        return new_tokens(self.large, assisted(self.large, self.small, source, limit, draft_length), [source])


def random_case(shape: Shape, folder: Path) -> Case:
    """Makes the models of a shape, and saves them under `folder`."""
    large, small = random_pair(shape)
    folder = folder / shape.name.replace(" ", "-")
    for name, model in (("large", large), ("small", small)):
        if model is not None:
            model.save_pretrained(folder / name)
    if ctranslate.version():
        ctranslate.convert(large, folder / "ctranslate2")
    return Case(
        name=shape.name,
        large=folder / "large",
        small=None if small is None else folder / "small",
        converted=folder / "ctranslate2",
        sources=random_sources(shape, _SOURCES),
        limit=shape.tokens,
        examples=shape.examples,
        batch=shape.batch,
        batch_limit=shape.batch_tokens,
        batch_rounds=shape.batch_rounds,
        memory=shape.memory,
    )
