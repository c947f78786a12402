"""Settings of models: a checkpoint to start from, or the shape of a model to initialise."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tasks.settings import SEEDS, setting, settings


@settings
class TokenizerSettings:
    """The tokenizer that both models share."""

    pretrained: str | None = setting(
        "Hub name, folder or GGUF file of a tokenizer; none: train one with SentencePiece on the training text.", default=None
    )
    vocabulary: int = setting("Vocabulary size of a trained tokenizer.", default=1000, unit="pieces", ge=64, le=256000)
    sample: int = setting("Training examples from which the tokenizer is trained.", default=200_000, unit="sentences", ge=1)


@settings
class LayersSettings:
    """Layers of the large model that the small one is made of, counted from 0, in ascending order."""

    layers: tuple[int, ...] = setting(
        "Small model only: it starts from these decoder layers of the large model, counted from 0, with copies of its "
        "embeddings, norms and head, in place of a shape or a checkpoint. Stages control and align copy them, so that "
        "align.start must be pretrained and finetune.small trains nothing.",
        ge=0,
    )
    encoder_layers: tuple[int, ...] | None = setting(
        "The encoder layers of the large model that are copied; none: all.", default=None, ge=0
    )
    share_encoder: bool = setting(
        "Freeze the copied encoder in training with the embedding that it reads (in T5 and BART the decoder's too), so that it "
        "stays the large model's and runs once in decoding; a head that was tied to that embedding gets weights of its own.",
        default=False,
    )

    def validate(self) -> None:
        for name in ("layers", "encoder_layers"):
            layers = getattr(self, name)
            if layers is not None and (not layers or list(layers) != sorted(set(layers))):
                raise ValueError(f"{name} is {list(layers)}; it must name at least one layer, each once, in ascending order")
        if self.share_encoder and self.encoder_layers is not None:
            raise ValueError("share_encoder takes the whole encoder; leave encoder_layers out")

    @property
    def about_encoder(self) -> str | None:
        """The name of a setting that needs an encoder, if one is set."""
        return "encoder_layers" if self.encoder_layers is not None else "share_encoder" if self.share_encoder else None


def from_large_problem(setting: str, named: int, depth: int, kind: str) -> str:
    """Return the message that a setting names a layer which the large model, of `depth` such layers, does not have."""
    return (
        f"models.small.from_large: {setting} names {named}, but the large model has {depth} {kind}, 0 to {depth - 1}; "
        "name some of those"
    )


def no_encoder_problem(setting: str, model: str) -> str:
    """Return the message that a setting is about the encoder of a large model that has none; `model` describes the model."""
    return f"models.small.from_large names {setting}, but {model}, has no encoder; leave it out"


@settings
class ModelSettings:
    """An encoder-decoder or a decoder-only model; the shape is used only without `pretrained` and `from_large`."""

    pretrained: str | None = setting(
        "Hub name, folder or GGUF file of a checkpoint of any architecture; none: a random initialisation of this shape.",
        default=None,
    )
    from_large: LayersSettings | None = setting("Layers of the large model to start from; none: not so.", default=None)
    architecture: str = setting(
        "Architecture of a random start: encoder-decoder (t5), or decoder-only with the source as the prompt (llama, gpt2).",
        default="t5",
        choices=("t5", "llama", "gpt2"),
    )
    d_model: int = setting("Width of the residual stream.", default=128, ge=8, le=65_536)
    d_ff: int = setting("Width of the feed-forward layer.", default=256, ge=8, le=262_144)
    d_kv: int = setting("Width of one attention head; gpt2 uses d_model / heads.", default=32, ge=4, le=4096)
    heads: int = setting("Attention heads.", default=4, ge=1, le=1024)
    encoder_layers: int = setting("Encoder layers; t5 only.", default=2, ge=1, le=1000)
    decoder_layers: int = setting("Decoder layers.", default=4, ge=1, le=1000)
    seed: int = setting("Seed of the random start; equal settings give equal weights.", default=0, ge=0, le=SEEDS)
    dropout: float = setting("Dropout rate in training.", default=0.1, ge=0, lt=1)
    feed_forward: str = setting(
        "Feed-forward layer of t5: relu (T5) or gated-gelu (T5 v1.1, mT5).", default="relu", choices=("relu", "gated-gelu")
    )

    def validate(self) -> None:
        if self.pretrained is not None and self.from_large is not None:
            raise ValueError("pretrained and from_large both say where the model starts; leave one out")
        if self.pretrained is None and self.architecture != "t5" and self.d_model % self.heads:
            fix = f"{self.architecture} needs d_model to be a multiple of heads"
            raise ValueError(f"d_model is {self.d_model}, heads is {self.heads}; {fix}")
        if self.pretrained is None and self.architecture == "llama" and self.d_kv % 2:
            raise ValueError(f"d_kv is {self.d_kv}; llama needs an even number, because rotary positions act on pairs")


SOURCE = "{source}"
"""Stands for the source in an instruction."""
LONGEST_TEXT = 1_000_000
"""Tokens of a text at most."""


@settings
class TextSettings:
    """Lengths at which text is truncated, in training and in decoding, and how a source is put to a chat model."""

    max_source_tokens: int = setting(
        "Longest source, including the end token; with chat_template the longest prompt, in which the source is cut.",
        default=128,
        unit="tokens",
        ge=2,
        le=LONGEST_TEXT,
    )
    max_target_tokens: int = setting(
        "Longest target and output, including the end token.", default=128, unit="tokens", ge=2, le=LONGEST_TEXT
    )
    chat_template: bool = setting(
        "Put each source to the model as a user's message, in the chat template of the tokenizer; for chat models.",
        default=False,
    )
    instruction: str = setting("With chat_template, the user's message; {source} stands for the source.", default=SOURCE)
    system: str | None = setting(
        "With chat_template, the system message; none: the one that the template writes by itself, if any.", default=None
    )

    def validate(self) -> None:
        if self.instruction.count(SOURCE) != 1:
            raise ValueError(f"instruction has {SOURCE} {self.instruction.count(SOURCE)} times; it must have it once")
        if not self.chat_template and (self.instruction != SOURCE or self.system is not None):
            name = "system" if self.instruction == SOURCE else "instruction"
            raise ValueError(f"{name} is set, but chat_template is false; set it to true, or remove {name}")


@dataclass(frozen=True)
class TrainingRecord:
    """The training of one model. Equal runs give equal records."""

    work: str
    """Fingerprint of settings, data and code."""
    steps: int
    """Optimiser steps that were taken."""
    examples: int
    """Examples that they were drawn from."""
    target_tokens: int
    """Target tokens that the loss was computed on, over all steps."""
    warnings: list[str] = field(default_factory=list)
    """What speaks against its outputs, a clause each."""


RECORD = "training.json"
"""In a model's folder."""


def read_training_record(folder: Path) -> TrainingRecord | None:
    """The record of a model's folder; None where it has none, or one of another version."""
    try:
        return TrainingRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
