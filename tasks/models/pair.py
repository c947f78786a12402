"""Checks whether two models form a pair: the same vocabulary, the same kind of architecture, enough positions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import InputError
from tasks.models.settings import ModelSettings, TextSettings
from tasks.models.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SPECIAL = ("pad_token_id", "eos_token_id", "unk_token_id", "bos_token_id")


def check_pair(small: PreTrainedTokenizerBase, large: PreTrainedTokenizerBase, small_name: str, large_name: str) -> None:
    """Compare two tokenizers token by token, including special tokens.

    Raises:
        InputError: the tokenizers differ; names the first token that does.
    """
    ours, theirs = small.get_vocab(), large.get_vocab()
    fix = "a pair needs one tokenizer: take two models that have it, or train both with it"
    if len(ours) != len(theirs):
        raise InputError(f"{small_name} has {len(ours)} tokens but {large_name} has {len(theirs)}; {fix}")
    for token, index in sorted(ours.items(), key=lambda item: item[1]):
        if theirs.get(token) != index:
            raise InputError(
                f"token {token!r} is {index} in {small_name} but {theirs.get(token, 'missing')} in {large_name}; {fix}"
            )
    for role in _SPECIAL:
        if getattr(small, role) != getattr(large, role):
            raise InputError(f"{role} differs between {small_name} and {large_name}; {fix}")


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, folder: Path, settings: ModelSettings) -> None:
    """Refuse a pre-trained model whose tokenizer is not the task's in `folder`: its embeddings would stand for other tokens.

    A pre-trained model without a tokenizer is accepted.

    Raises:
        InputError: as `check_pair`.
    """
    if settings.pretrained is None:
        return
    try:
        own = load_tokenizer(settings.pretrained)
    except InputError:
        return
    check_pair(tokenizer, own, f"the tokenizer at {folder}", f"that of {settings.pretrained}")


def check_architectures(small: PreTrainedModel, large: PreTrainedModel) -> None:
    """Check that both models are encoder-decoders or both are decoder-only.

    Raises:
        InputError: they differ.
    """
    if small.config.is_encoder_decoder != large.config.is_encoder_decoder:
        raise InputError(f"the small model is {_kind(small)} but the large one is {_kind(large)}; take two of one kind")


def check_sizes(small: PreTrainedModel, large: PreTrainedModel, small_name: str, large_name: str) -> None:
    """Check that the large model is the larger one.

    Raises:
        InputError: it is not.
    """
    ours, theirs = small.num_parameters() / 1e6, large.num_parameters() / 1e6
    if ours >= theirs:
        said = f"{small_name} has {ours:.3g} M parameters and {large_name} {theirs:.3g} M"
        raise InputError(f"{said}, so that drafts could save nothing; draft by a smaller model, or for a larger one")


def _kind(model: PreTrainedModel) -> str:
    return f"{'encoder-decoder' if model.config.is_encoder_decoder else 'decoder-only'} ({model.config.model_type})"


def vocabulary_size(tokenizer: PreTrainedTokenizerBase, *models: PreTrainedModel) -> int:
    """Return the number of token ids of the tokenizer. Each model may predict over more of them, which are padding.

    Raises:
        InputError: a model predicts over fewer tokens.
    """
    known: int = max(tokenizer.get_vocab().values()) + 1
    for model in models:
        if output_vocabulary(model) < known:
            raise InputError(
                f"a model of type {model.config.model_type} predicts over {output_vocabulary(model)} tokens but its tokenizer "
                f"has {known}; name a model and a tokenizer that belong together"
            )
    return known


def output_vocabulary(model: PreTrainedModel) -> int:
    """Return the number of tokens that a model predicts over: the rows of its output head, including padding."""
    return int(model.get_output_embeddings().weight.shape[0])


def check_lengths(model: PreTrainedModel, name: str, text: TextSettings) -> None:
    """Compare the longest text with the number of absolute positions of a model; relative and rotary ones have no limit.

    Raises:
        InputError: a text may be longer than that.
    """
    known: int | None = getattr(model.config, "max_position_embeddings", None)
    if known is None or getattr(model.config, "rope_parameters", None) is not None:
        return
    lengths = (text.max_source_tokens, text.max_target_tokens)
    longest = max(lengths) if model.config.is_encoder_decoder else sum(lengths)
    if longest > known:
        said = f"the {name} model has {known} positions, but text.max_source_tokens and max_target_tokens come to {longest}"
        raise InputError(f"{said}; lower them in params.yaml")
