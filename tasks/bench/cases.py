"""A benchmark case: a pair of models, its sources and text lengths, and the same case with its models loaded."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.bench import ctranslate
from tasks.bench.baselines import assisted, generate, new_tokens
from tasks.bench.shapes import Shape, random_pair, random_sources
from tasks.bench.timing import Found
from tasks.decoding.decoder import REFERENCE, Decoder, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.models.checkpoints import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SOURCES = 64


@dataclass(frozen=True)
class Case:
    """One pair of models and its inputs. The processes that measure memory read the folders again."""

    name: str
    large: Path
    small: Path | None
    converted: Path
    """Folder of the large model as CTranslate2 reads it; missing where it was not converted."""
    sources: Rows
    limit: int
    """Most new tokens of a text."""
    examples: int
    """Sources of a round, decoded one after the other."""
    batch: int
    """Sources of a round of batched decoding."""
    batch_limit: int
    """Most new tokens of a text in a batch."""
    batch_rounds: int
    memory: bool = True
    """Whether the peak memory of each contender is measured."""
    vocabulary: int | None = None
    """Number of token ids that are predicted; None for all of the model's."""
    bild: Found | None = None
    """Settings of BiLD; None where the small model is untrained, so that its speed would mean nothing."""
    bild_from: str = ""
    """Origin of these settings, described."""

    def window(self, round_index: int, count: int) -> Rows:
        """The `count` sources of a round."""
        return [self.sources[(round_index * count + offset) % len(self.sources)] for offset in range(count)]

    def as_json(self) -> dict[str, object]:
        """Plain values, from which another process makes the case again."""
        values = dataclasses.asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Found) -> Case:
        """The case that `as_json` described."""
        small = values["small"]
        folders = {name: Path(values[name]) for name in ("large", "converted")}
        return cls(**{**values, **folders, "small": None if small is None else Path(small)})


class LoadedCase:
    """A case whose models are loaded on first use."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def large(self) -> PreTrainedModel:
        return load_model(self.case.large)

    @cached_property
    def small(self) -> PreTrainedModel:
        """None for a case without a small model."""
        return None if self.case.small is None else load_model(self.case.small)

    @cached_property
    def pair(self) -> Pair:
        """Both models in this project's runtimes; the large model twice for a case without a small one."""
        if self.small is None:
            alone = open_decoder(self.large, "large", self.case.vocabulary)
            return Pair(alone, alone)
        return open_pair(self.small, self.large, self.case.vocabulary)

    @cached_property
    def reference(self) -> Decoder:
        """The large model in the reference runtime, whose margins say how close a token was."""
        return open_decoder(self.large, "large", runtime=REFERENCE)

    def here(self, method: str, settings: object, sources: Rows, limit: int) -> list[Generation]:
        """Decode the sources as one batch with a method of this project."""
        return decode(method, settings, self.pair, sources, Request(limit))

    def vanilla(self, sources: Rows, limit: int) -> Rows:
        """New tokens of the large model alone, in this project."""
        return [one.tokens for one in self.here("vanilla_large", VanillaSettings(), sources, limit)]

    def bild(self, sources: Rows, limit: int) -> Rows:
        """New tokens of BiLD, in this project."""
        return [one.tokens for one in self.here("bild", BildSettings(**(self.case.bild or {})), sources, limit)]

    def generated(self, sources: Rows, limit: int, *, static: bool = False) -> Rows:
        """New tokens of `generate` on the sources as one batch."""
        return new_tokens(self.large, generate(self.large, sources, limit, static=static), sources)

    def assisted(self, source: list[int], limit: int, draft_length: int | None = None) -> Rows:
        """New tokens of `generate` assisted by the small model."""
        return new_tokens(self.large, assisted(self.large, self.small, source, limit, draft_length), [source])


def random_case(shape: Shape, folder: Path) -> Case:
    """Build the models of a shape and save them under `folder`."""
    large, small = random_pair(shape)
    # Saving imports DeepSpeed, which otherwise looks for a GPU and says on standard output that there is none.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
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
