"""What a model is: a checkpoint to start from, or the shape of one to initialise."""

from __future__ import annotations

from tasks.settings import knob, settings


@settings
class TokenizerSettings:
    """Where the tokenizer that both models share comes from."""

    pretrained: str | None = knob(None, "Hub name or folder of a tokenizer; none: train SentencePiece on the training text.")
    vocabulary: int = knob(1000, "Pieces of a trained tokenizer.", unit="pieces", ge=64, le=256000)
    sample: int = knob(200_000, "Training sentences read to train it.", unit="sentences", ge=1)


@settings
class ModelSettings:
    """A T5-family encoder-decoder; the shape is read only where `pretrained` is none."""

    pretrained: str | None = knob(None, "Hub name or folder of a checkpoint; none: a seeded random start of this shape.")
    d_model: int = knob(128, "Width of the residual stream.", ge=8)
    d_ff: int = knob(256, "Width of the feed-forward layer.", ge=8)
    d_kv: int = knob(32, "Width of one attention head.", ge=4)
    heads: int = knob(4, "Attention heads.", ge=1)
    encoder_layers: int = knob(2, "Encoder layers.", ge=1)
    decoder_layers: int = knob(4, "Decoder layers.", ge=1)
    dropout: float = knob(0.1, "Dropout while training.", ge=0, lt=1)
    feed_forward: str = knob("relu", "Feed-forward layer: T5 (relu) or T5 v1.1 and mT5 (gated-gelu).", choices=("relu", "gated-gelu"))


@settings
class TextSettings:
    """Lengths at which text is cut, for training and decoding alike."""

    max_source_tokens: int = knob(128, "Longest source, the end token included.", unit="tokens", ge=2)
    max_target_tokens: int = knob(128, "Longest target and longest output, the end token included.", unit="tokens", ge=2)
