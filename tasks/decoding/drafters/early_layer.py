"""The large model's own first layers as drafter, with its final norm and head (BiLD, sections 4.4 and 7.2.1)."""

from __future__ import annotations

from tasks.decoding.decoder import Decoder
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.randomness import TokenSource
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.settings import SamplingSettings
from tasks.errors import InputError
from tasks.models.layers import exit_layer_of, first_layers


def early_layer_drafter(large: Decoder, sampling: SamplingSettings, source: TokenSource) -> ModelDrafter:
    """Return a drafter of the first `exit_layer` layers (1 unless the saved configuration says more), on what `large` encoded.

    It has a cache of its own: the large model computes the keys and values of every layer itself when it runs, and nothing
    of an early exit is propagated (BiLD, 7.2.2).

    Raises:
        InputError: the model is not one of transformers, or its decoder has no layer to leave out.
    """
    model = large.capabilities.transformers_model
    if model is None:
        raise InputError(f"the early_layer drafter needs the layers of a transformers model, which the {large.name} one is not")
    first = first_layers(model, exit_layer_of(model))
    early = open_decoder(first, f"early layers of the {large.name}", large.vocabulary, large.capabilities.runtime)
    return ModelDrafter(early, sampling, source, shares_encoder=True)
