"""What a model is: a checkpoint to start from, or the shape of one to initialise."""

from __future__ import annotations

from tasks.settings import setting, settings


@settings
class TokenizerSettings:
    """Where the tokenizer that both models share comes from."""

    pretrained: str | None = setting(
        "Hub name or folder of a tokenizer; none: train SentencePiece on the training text.", default=None
    )
    vocabulary: int = setting("Pieces of a trained tokenizer.", default=1000, unit="pieces", ge=64, le=256000)
    sample: int = setting("Training sentences read to train it.", default=200_000, unit="sentences", ge=1)


@settings
class ModelSettings:
    """An encoder-decoder or a decoder-only model; all else is read only where `pretrained` is none."""

    pretrained: str | None = setting(
        "Hub name or folder of a checkpoint, of any architecture; none: a seeded random start of this shape.", default=None
    )
    architecture: str = setting(
        "Of the random start: encoder-decoder (t5), or decoder-only, where the source is the text's beginning (llama, gpt2).",
        default="t5",
        choices=("t5", "llama", "gpt2"),
    )
    d_model: int = setting("Width of the residual stream.", default=128, ge=8)
    d_ff: int = setting("Width of the feed-forward layer.", default=256, ge=8)
    d_kv: int = setting("Width of one attention head; gpt2 divides d_model by heads.", default=32, ge=4)
    heads: int = setting("Attention heads.", default=4, ge=1)
    encoder_layers: int = setting("Encoder layers; of t5 alone.", default=2, ge=1)
    decoder_layers: int = setting("Decoder layers.", default=4, ge=1)
    seed: int = setting("Of the random start, which every model of these settings shares.", default=0, ge=0)
    dropout: float = setting("Dropout while training.", default=0.1, ge=0, lt=1)
    feed_forward: str = setting(
        "Feed-forward layer of t5: T5 (relu) or T5 v1.1 and mT5 (gated-gelu).", default="relu", choices=("relu", "gated-gelu")
    )

    def validate(self) -> None:
        if self.pretrained is None and self.architecture != "t5" and self.d_model % self.heads:
            raise ValueError(f"d_model is {self.d_model}, of {self.heads} heads; {self.architecture} needs a multiple of heads")
        if self.pretrained is None and self.architecture == "llama" and self.d_kv % 2:
            raise ValueError(f"d_kv is {self.d_kv}; llama, whose heads turn pairs of numbers, needs an even one")


@settings
class TextSettings:
    """Lengths at which text is cut, for training and decoding alike."""

    max_source_tokens: int = setting("Longest source, the end token included.", default=128, unit="tokens", ge=2)
    max_target_tokens: int = setting(
        "Longest target and longest output, the end token included.", default=128, unit="tokens", ge=2
    )
