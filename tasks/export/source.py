"""The pair that is exported, and what no other engine takes over from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.decoding.pair_folder import DRAFTER, LARGE, PairManifest, engine_draft_length, read_manifest
from tasks.errors import InputError
from tasks.models.extras import FILES as EXTRAS
from tasks.models.pruned_head import FILE as DRAFT_TOKENS

_KEPT_METHODS = ("speculative", "vanilla_large")
"""Methods whose greedy output and drafts are those of any engine with a fixed draft length."""


@dataclass(frozen=True)
class ExportSource:
    """A pair folder that is to be exported."""

    folder: Path
    manifest: PairManifest
    config: dict[str, Any]
    """`config.json` of the large model."""

    @property
    def large(self) -> Path:
        """The folder of the large model."""
        return self.folder / LARGE

    @property
    def drafter(self) -> Path:
        """The folder of the drafter."""
        return self.folder / DRAFTER

    @property
    def encoder_decoder(self) -> bool:
        """Whether the models are encoder-decoders."""
        return bool(self.config.get("is_encoder_decoder"))

    @property
    def kind(self) -> str:
        """The models' type, as `config.json` names it."""
        return str(self.config.get("model_type"))

    @property
    def draft_length(self) -> int:
        """Tokens that an engine should draft at a time."""
        return engine_draft_length(self.manifest)


def read_source(folder: Path) -> ExportSource:
    """Read what a pair folder says of itself.

    Raises:
        InputError: there is no such folder, it is damaged, or a model is missing.
    """
    manifest, file = read_manifest(folder), folder / LARGE / "config.json"
    try:
        if _vocabulary(folder / LARGE) != _vocabulary(folder / DRAFTER):
            raise InputError(
                f"the drafter of {folder} has a tokenizer of its own, which is translated here alone; export a pair of one "
                "tokenizer"
            )
        return ExportSource(folder, manifest, json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); copy the folder again") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); copy the folder again") from None


def _vocabulary(folder: Path) -> Any:
    """Return the tokens of the tokenizer in a model's folder; none where it is in another file than `tokenizer.json`."""
    file = folder / "tokenizer.json"
    return json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"] if file.is_file() else None


def left_behind(source: ExportSource) -> list[str]:
    """Say what of a pair only this project reads, one clause each."""
    point, found = source.manifest.point, []
    if point.method not in _KEPT_METHODS or getattr(point.settings, "drafter", "small") != "small":
        found.append(f"the operating point ({point}), in place of which the engine drafts at a fixed length or not at all")
    if (source.drafter / DRAFT_TOKENS).is_file():
        found.append("the draft vocabulary, so the drafter is slower and may draft other tokens")
    if any((folder / name).is_file() for folder in (source.large, source.drafter) for name in EXTRAS):
        found.append("draft heads and exit classifier")
    if source.manifest.text.chat_template:
        found.append("the instruction and system message around a source, which README.md shows; the chat template is carried")
    found.append("measurements and certificate, which stay in pair.json")
    return found
