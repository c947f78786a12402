"""The base of every runtime over a `transformers` model: its name, its device and its special tokens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from tasks.decoding.decoder import REFERENCE, Capabilities, Runtime, TokenGuarantee
from tasks.errors import InputError
from tasks.models.pair import output_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LoadedModel:
    """A model of `transformers` in evaluation mode."""

    def __init__(self, model: PreTrainedModel, name: str, vocabulary: int | None = None) -> None:
        """Take the model, what to call it, and the ids to predict over: those below `vocabulary`.

        Raises:
            InputError: the model does not say which token ends a text.
        """
        self.model = model
        self.name = name
        self.device: torch.device = next(model.parameters()).device
        self.vocabulary: int = output_vocabulary(model) if vocabulary is None else vocabulary
        self.end_token, self.end_tokens = _ends(model, name)
        pad = model.config.pad_token_id
        self.pad_token: int = self.end_token if pad is None else pad
        self.start_tokens: list[int] = [_start_token(model)] if model.config.is_encoder_decoder else []
        """Tokens that every output begins with; none without an encoder, where outputs begin with the source."""
        self.lengths: list[int] = []
        self.runtime: Runtime = REFERENCE
        """How it was asked to be run."""
        self.described = f"reference, {str(model.dtype).removeprefix('torch.')}"
        """The runtime and its number format, for reports."""

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """What the runtime can do beyond the calls of `Decoder`; faster runtimes add to it."""
        return Capabilities(transformers_model=self.model, runtime=self.runtime, tokens=token_guarantee(self.model.dtype))

    @property
    def specials(self) -> frozenset[int]:
        """Ids that are never text: padding, start and end."""
        beginning = getattr(self.model.config, "bos_token_id", None)
        ids = {self.pad_token, *self.end_tokens, *self.start_tokens, *([] if beginning is None else [beginning])}
        return frozenset(token for token in ids if token < self.vocabulary)


def _ends(model: PreTrainedModel, name: str) -> tuple[int, frozenset[int]]:
    """Return the token that ends a text, and all tokens that do, which generation configurations may list."""
    listed = [getattr(config, "eos_token_id", None) for config in (model.config, getattr(model, "generation_config", None))]
    first, generating = ([ids] if isinstance(ids, int) else list(ids or ()) for ids in listed)
    ends = frozenset(generating or first)
    if not ends:
        raise InputError(f"the {name} model has no end token; set eos_token_id in its config.json")
    return next(token for token in [*first, *generating] if token in ends), ends


def _start_token(model: PreTrainedModel) -> int:
    """Return the token that every output begins with, which configurations keep in one of two places."""
    for config in (getattr(model, "generation_config", None), model.config):
        start = getattr(config, "decoder_start_token_id", None)
        if start is not None:
            return int(start)
    return int(model.config.bos_token_id)


def token_guarantee(dtype: torch.dtype) -> TokenGuarantee:
    """The guarantee of a runtime whose library sums in an order that depends on the shape of a run."""
    return TokenGuarantee.EQUAL_BEYOND_TOLERANCE if dtype == torch.float32 else TokenGuarantee.NONE
