"""Checks the checkpoints that models start from, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import InputError
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import is_gguf, load_from

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def check_starts(large: ModelSettings, small: ModelSettings) -> None:
    """Check that local checkpoints can be opened, and that the large one has the layers that the small model takes.

    Configurations alone are read. Names of the hub are left to the stages that load them, and so are folders that do not
    exist, since another task of params.yaml may be about to make them.

    Raises:
        InputError: names the setting, what is wrong with the checkpoint, and the fix.
    """
    found = {name: _configuration(name, model) for name, model in (("large", large), ("small", small))}
    if small.from_large is not None and found["large"] is not None:
        from tasks.models.layers import check_layers

        check_layers(_without_weights(found["large"]), small.from_large)


def _configuration(name: str, model: ModelSettings) -> PreTrainedConfig | None:
    from transformers import AutoConfig

    source = model.pretrained
    if source is None or not (is_gguf(source) or Path(source).is_dir()):
        return None
    try:
        return load_from(AutoConfig.from_pretrained, source, "model")
    except InputError as error:
        raise InputError(f"models.{name}.pretrained: {error}") from None


def _without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config)
    return model
