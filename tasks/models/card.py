"""The model card of a saved model: what it is, how it is loaded, where it comes from. `card.md.j2` is its template.

Equal runs give equal cards: nothing in them tells the time, the machine or the place. What comes from settings and file names
is put into YAML and JSON by their own writers, and into the text as code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from tasks.models.extras import classifier_of, heads_of
from tasks.models.settings import TextSettings

ROLES = {
    "large": "The large model of a pair, which verifies what a small one drafts:",
    "small": "The small model of a pair, a drafter that is not aligned with the large one:",
    "aligned": "A drafter that was aligned with the large model of the same task:",
}
_IDLE = ("checkpoint_every",)
"""Settings without which the same model would come out."""


@dataclass(frozen=True)
class TextFile:
    """A JSONL file that a model learned from, or was judged by."""

    role: str
    file: Path
    examples: int


@dataclass(frozen=True)
class Card:
    """What a reader of a model's folder should know and cannot see there."""

    task: str
    name: str
    """large, small or aligned."""
    stage: str
    base: str | None
    """The checkpoint that it began with, a folder or a name of the hub; none: random weights."""
    method: str
    """What it learned, a sentence, with the paper."""
    settings: Mapping[str, Any]
    """What was set, by section; see `changed`."""
    text: TextSettings
    texts: tuple[TextFile, ...]
    teachers: tuple[Path, ...]
    """Folders of the models that it learned from, or is judged by."""
    measured: Mapping[str, float]
    """Held-out numbers of the saved weights."""
    steps: int
    kept: int
    """The step after which the weights were as they are."""


def non_default(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass that are not its defaults, but for those that make no other model."""
    values = {field: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {field.name: value for field, value in values.items() if value != field.default and field.name not in _IDLE}


def render_card(card: Card, model: Any, tokenizer: Any) -> str:
    """The card as Markdown under YAML front matter.

    Args:
        card: what is told.
        model: the one that is saved, of `transformers`.
        tokenizer: saved with it.
    """
    seq2seq = bool(model.config.is_encoder_decoder)
    heads = heads_of(model)
    return _environment().get_template("card.md.j2").render(
        card=card,
        front=yaml.safe_dump(_front(card), sort_keys=False),
        roles=ROLES,
        kind="an encoder-decoder" if seq2seq else "decoder-only",
        type=model.config.model_type,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seq2seq=seq2seq,
        auto="AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM",
        source='"A source text."' + ("" if _ends(tokenizer) else " + tokenizer.eos_token"),
        heads=0 if heads is None else heads.count,
        classifier=classifier_of(model) is not None,
        versions=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "deepspeed")),
        settings=json.dumps(card.settings, indent=2),
        weights=_weights(card),
    )  # fmt: skip


def _front(card: Card) -> dict[str, Any]:
    """What the hub reads of a card; it knows bases by their names there, so that a folder is told of in the text alone."""
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["draftline", card.task, card.name]}
    if card.base is not None and not Path(card.base).is_dir():
        front["base_model"] = card.base
    return front


def _weights(card: Card) -> list[tuple[str, Path]]:
    """The files of the models that it comes from, where they lie in folders, and what each was to it."""
    began = [] if card.base is None else [("begun from", Path(card.base))]
    folders = [*began, *(("learned from", teacher) for teacher in card.teachers)]
    return [(what, file) for what, folder in folders for file in sorted(folder.glob("*.safetensors"))]


def _ends(tokenizer: Any) -> bool:
    """Whether a tokenizer puts the end token after a text by itself."""
    return bool(tokenizer("text")["input_ids"][-1] == tokenizer.eos_token_id)


def _environment() -> Environment:
    loader = PackageLoader("tasks.models", ".")
    # Markdown is not HTML: what is foreign stands in it as code, which `code` sees to.
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    made.filters.update(code=_code, place=_place, digest=_digest)
    return made


def _code(text: str) -> str:
    """`text` as a code span of Markdown, whatever is in it."""
    line = " ".join(str(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _place(path: str | Path) -> str:
    """A path as it stands in the repository; of one elsewhere on this machine only the end."""
    path = Path(path)
    return "/".join(path.parts[-2:]) if path.is_absolute() else path.as_posix()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
