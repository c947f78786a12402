"""A small and a large model make a pair only if they speak the same vocabulary and take their source in the same way."""

from __future__ import annotations

from typing import Any

from tasks.errors import InputError
from tasks.models.settings import TextSettings

_SPECIAL = ("pad_token_id", "eos_token_id", "unk_token_id", "bos_token_id")


def check_pair(small: Any, large: Any, small_name: str, large_name: str) -> None:
    """Compares two tokenizers token by token, special tokens included.

    Raises:
        InputError: naming the first token that differs.
    """
    ours, theirs = small.get_vocab(), large.get_vocab()
    mend = "train or load both models with one tokenizer"
    if len(ours) != len(theirs):
        raise InputError(f"{small_name} has {len(ours)} tokens but {large_name} has {len(theirs)}; {mend}")
    for token, index in sorted(ours.items(), key=lambda item: item[1]):
        if theirs.get(token) != index:
            raise InputError(
                f"token {token!r} is {index} in {small_name} but {theirs.get(token, 'missing')} in {large_name}; {mend}"
            )
    for role in _SPECIAL:
        if getattr(small, role) != getattr(large, role):
            raise InputError(f"{role} differs between {small_name} and {large_name}; {mend}")


def check_architectures(small: Any, large: Any) -> None:
    """Compares how two models take their source: through an encoder, or as the beginning of the text.

    Raises:
        InputError: they differ.
    """
    if small.config.is_encoder_decoder != large.config.is_encoder_decoder:
        raise InputError(f"the small model is {_kind(small)} but the large one {_kind(large)}; take two of one kind")


def _kind(model: Any) -> str:
    return f"{'encoder-decoder' if model.config.is_encoder_decoder else 'decoder-only'} ({model.config.model_type})"


def vocabulary_size(tokenizer: Any, *models: Any) -> int:
    """The ids that the tokenizer knows: what models predict past them is padding, of which each may have its own amount.

    Raises:
        InputError: a model predicts over less.
    """
    known: int = max(tokenizer.get_vocab().values()) + 1
    for model in models:
        if output_vocabulary(model) < known:
            raise InputError(
                f"a model of type {model.config.model_type} predicts over {output_vocabulary(model)} tokens but its tokenizer "
                f"has {known}; name a model and a tokenizer that belong together"
            )
    return known


def output_vocabulary(model: Any) -> int:
    """How many tokens a model predicts over: the rows of its head, padding included."""
    return int(model.get_output_embeddings().weight.shape[0])


def max_positions(model: Any) -> int | None:
    """How many positions a model has numbers for; none where they are relative or rotary, and have no end."""
    if getattr(model.config, "rope_parameters", None) is not None:
        return None
    known: int | None = getattr(model.config, "max_position_embeddings", None)
    return known


def check_lengths(model: Any, name: str, text: TextSettings) -> None:
    """Compares the longest text with the positions that a model has numbers for.

    Raises:
        InputError: the text can be longer.
    """
    known = max_positions(model)
    if known is None:
        return
    lengths = (text.max_source_tokens, text.max_target_tokens)
    longest = max(lengths) if model.config.is_encoder_decoder else sum(lengths)
    if longest > known:
        raise InputError(
            f"the {name} model has {known} positions, but text.max_source_tokens and max_target_tokens come to {longest}; "
            "lower them in params.yaml"
        )
