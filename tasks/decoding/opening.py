"""Opens two models from their folders as a pair that can decode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.decoding.decoder import Runtime
from tasks.decoding.method import Pair
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.translation import TranslatedDecoder
from tasks.decoding.vocabularies import translation_between
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import (
    check_architectures,
    check_lengths,
    check_pair,
    max_positions,
    same_tokens,
    vocabulary_size,
)
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class OpenedModels:
    """A small model and a large one in a runtime, and their tokenizer."""

    pair: Pair
    models: dict[str, PreTrainedModel]
    """`small` and `large`."""
    tokenizer: PreTrainedTokenizerBase
    device: str

    @property
    def described(self) -> str:
        """Runtime and number format of the large model."""
        return str(getattr(self.pair.large, "described", type(self.pair.large).__name__))


def open_models(small: str | Path, large: str | Path, machine: MachineSettings, text: TextSettings) -> OpenedModels:
    """Load two models, and the tokenizer of the large one. A small model with another tokenizer is translated.

    Args:
        small: A folder, a GGUF file or a name on the hub.
        large: The same for the large model.
        machine: Device, runtime and number format.
        text: Its lengths must fit both.

    Raises:
        InputError: a model is missing, or the models do not fit each other or the lengths.
    """
    device, dtype = set_up(machine)
    tokenizer, own = load_tokenizer(large), load_tokenizer(small)
    same = same_tokens(own, tokenizer)
    if same:
        check_pair(own, tokenizer, str(small), str(large))
    models = {name: load_model(folder, device, dtype) for name, folder in (("small", small), ("large", large))}
    check_architectures(models["small"], models["large"])
    for name, model in models.items():
        check_lengths(model, name, text)
    runtime = Runtime.of(machine.runtime, machine.dtype)
    if same:
        pair = open_pair(models["small"], models["large"], vocabulary_size(tokenizer, *models.values()), runtime=runtime)
    else:
        pair = _translated(models, {"small": own, "large": tokenizer}, text, runtime)
    return OpenedModels(pair, models, tokenizer, device.type)


def _translated(
    models: dict[str, PreTrainedModel], tokenizers: dict[str, PreTrainedTokenizerBase], text: TextSettings, runtime: Runtime
) -> Pair:
    """Open two models of different tokenizers: the small one predicts the tokens that both have."""
    positions = max_positions(models["small"])
    opened = {
        name: open_decoder(model, name, vocabulary_size(tokenizers[name], model), runtime) for name, model in models.items()
    }
    small, large = opened["small"], opened["large"]
    translation = translation_between(tokenizers["small"], tokenizers["large"], (small.end_token, large.end_token), text)
    begin = large.start(large.encode([[large.end_token]]))[0] if models["large"].config.is_encoder_decoder else []
    return Pair(TranslatedDecoder(small, large, translation, begin, positions), large)
