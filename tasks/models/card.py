"""Renders the model card of a saved model from the template `card.md.j2`: contents, loading, provenance.

Equal runs give equal cards, because a card names neither time nor machine nor absolute path. Text from settings and file names
enters YAML and JSON through their own writers, and Markdown as code spans.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from tasks.files import checksum
from tasks.models.extras import classifier_of, heads_of
from tasks.models.layers import reads_large_encoder
from tasks.models.prompting import messages
from tasks.models.pruned_head import pruned_head
from tasks.models.settings import SOURCE, LayersSettings, TextSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROLES = {
    "large": "The large model of a pair, which verifies what a small one drafts:",
    "small": "The small model of a pair, which drafters start from:",
    "unaligned": "A drafter that was not aligned with the large model of the same task, the control of those that were:",
    "aligned": "A drafter that was aligned with the large model of the same task:",
}
_NO_EFFECT = ("checkpoint_every",)
"""Settings that do not change the trained weights."""


@dataclass(frozen=True)
class TextFile:
    """A JSONL file that a model was trained or evaluated on."""

    role: str
    file: Path
    examples: int


@dataclass(frozen=True)
class Card:
    """The contents of a model card."""

    task: str
    name: str
    """large, small, or one of `paths.ARMS`."""
    stage: str
    base: str | None
    """The checkpoint that training started from, a folder, a GGUF file or a hub name; None: random weights."""
    method: str
    """The training objective as a sentence, with its paper."""
    settings: Mapping[str, Mapping[str, object]]
    """Settings by section; see `non_default`."""
    text: TextSettings
    texts: tuple[TextFile, ...]
    teachers: tuple[Path, ...]
    """Folders of the models that it was trained or evaluated with."""
    measured: Mapping[str, float]
    """Held-out numbers of the saved weights."""
    steps: int
    kept: int
    """The step whose weights were kept."""
    seed: int | None = None
    """The seed of a drafter; None for models that are trained once."""
    outputs: tuple[str, ...] = ()
    """Sentences on greedy outputs compared with trivial baselines."""


def non_default(settings: DataclassInstance) -> dict[str, object]:
    """Return the settings that differ from their defaults, except those that do not change the weights."""
    values = {field: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        field.name: dataclasses.asdict(value) if isinstance(value, LayersSettings) else value
        for field, value in values.items()
        if value != field.default and field.name not in _NO_EFFECT
    }


def render_card(card: Card, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the card as Markdown with YAML front matter.

    Args:
        card: the contents.
        model: the saved `transformers` model.
        tokenizer: the tokenizer that is saved with it.
    """
    seq2seq = bool(model.config.is_encoder_decoder)
    heads = heads_of(model)
    appends_end = tokenizer("text")["input_ids"][-1] == tokenizer.eos_token_id
    return markdown_templates("tasks.models").get_template("card.md.j2").render(
        card=card,
        front=yaml.safe_dump(_front(card), sort_keys=False),
        roles=ROLES,
        kind="an encoder-decoder" if seq2seq else "decoder-only",
        type=model.config.model_type,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seq2seq=seq2seq,
        auto="AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM",
        source='"A source text."' + ("" if appends_end or card.text.chat_template else " + tokenizer.eos_token"),
        conversation=_conversation(card.text) if card.text.chat_template else None,
        heads=0 if heads is None else heads.count,
        classifier=classifier_of(model) is not None,
        pruned=pruned_head(model),
        shares_encoder=reads_large_encoder(model),
        versions=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "deepspeed")),
        settings=json.dumps(card.settings, indent=2),
        weights=_weights(card),
    )  # fmt: skip


def _front(card: Card) -> dict[str, object]:
    """Return the front matter that the hub reads; only a base model with a hub name belongs there, not a local one."""
    front: dict[str, object] = {"library_name": "transformers", "tags": ["draftline", card.task, card.name]}
    if card.base is not None and not Path(card.base).exists():
        front["base_model"] = card.base
    return front


def _weights(card: Card) -> list[tuple[str, Path]]:
    """Return the weight files of local models that this one was trained from, each with the relation as text."""
    began = [] if card.base is None else [("initialised from", Path(card.base))]
    models = [*began, *(("learned from", teacher) for teacher in card.teachers)]
    return [(how, file) for how, path in models for file in ([path] if path.is_file() else sorted(path.glob("*.safetensors")))]


def _conversation(text: TextSettings) -> str:
    """Return the Python expression of a chat prompt's messages for the variable `source`."""
    written = repr(messages(SOURCE, text)).replace(repr(text.instruction), f'{text.instruction!r}.replace("{SOURCE}", source)')
    # A backtick could end the code block that the expression stands in.
    return written.replace("`", "\\x60")


def markdown_templates(package: str, folder: str = ".") -> Environment:
    """Return the Markdown templates in a package's folder; the filter `code` makes a code span, `repr` Python of a value."""
    loader = PackageLoader(package, folder)
    # The output is Markdown and not HTML; the filter `code` makes foreign text safe.
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    environment.filters.update(code=_code, short_path=_short_path, checksum=checksum, repr=repr)
    return environment


def _code(text: str) -> str:
    """Return `text` as a Markdown code span, whatever it contains."""
    line = " ".join(str(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _short_path(path: str | Path) -> str:
    """Return a relative path as it is, and the last two parts of an absolute one."""
    path = Path(path)
    return "/".join(path.parts[-2:]) if path.is_absolute() else path.as_posix()
