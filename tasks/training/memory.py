"""Memory and arithmetic of a training step, counted on torch's meta device, where tensors have shapes and no numbers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_ENCODERS, _DECODERS = ("num_hidden_layers", "num_layers", "encoder_layers"), ("num_decoder_layers", "decoder_layers")
"""The depths of an encoder-decoder, as configurations name them; a decoder alone has the first name."""
_ADAM_VALUES = 2
"""Values that AdamW keeps for each weight; Adafactor's are of rows and columns, but its update is as large as the weights."""


@dataclass(frozen=True)
class TextCost:
    """What one text of the greatest lengths takes in a forward pass, in float32, and what stays for the backward pass."""

    parameters: int
    activations: int
    """Bytes of the tensors that the backward pass reads, and of the gradient of the logits."""
    recomputed: int
    """With activation checkpointing: the input of every layer, and what one layer or all else keeps, whichever is more."""
    operations: int
    """Floating-point operations of a forward pass; a backward pass takes twice as many."""

    def step_bytes(self, training: TrainingSettings, texts: int, trained: int | None = None, *, half: bool = False) -> int:
        """The peak of a step whose micro-batches have `texts` texts: weights, gradients, optimiser, and activations or update.

        Args:
            training: Optimiser and activation checkpointing; with steps 0 there are weights alone, and a forward pass.
            texts: Of a micro-batch.
            trained: Weights that are trained, if not all.
            half: Whether activations are bfloat16: half as large, but every weight has a copy in that format.
        """
        trained = self.parameters if trained is None else trained
        if not training.steps:
            return 4 * self.parameters
        state = 4 * self.parameters + 4 * trained
        state += 4 * _ADAM_VALUES * trained if training.optimizer == "adamw" else 0
        of_text = self.recomputed if training.activation_checkpointing else self.activations
        held = texts * of_text // 2 + 2 * self.parameters if half else texts * of_text
        return state + max(held, 0 if training.optimizer == "adamw" else 4 * trained)


def fitting(
    cost: TextCost, training: TrainingSettings, texts: int, room: float, trained: int | None = None, *, half: bool = False
) -> tuple[TrainingSettings | None, int]:
    """Return the settings with the largest micro-batches whose step fits, and its peak in bytes.

    Activations are recomputed only where no micro-batch fits without. Where none fits at all there are no settings, and the
    peak is the least.

    Args:
        cost: Of a text of the greatest lengths.
        training: The settings; there are at least their micro-batches.
        texts: Of a step in one process.
        room: Bytes for the step.
        trained: Weights that are trained, if not all.
        half: Whether activations are bfloat16.
    """
    first, peak = max(1, training.accumulation), 0
    recomputing = {training.activation_checkpointing, training.trunk != "frozen"}
    for checkpointing in sorted(recomputing):
        for parts in range(first, max(texts, first) + 1):
            tried = dataclasses.replace(training, accumulation=parts, activation_checkpointing=checkpointing)
            peak = cost.step_bytes(tried, math.ceil(texts / parts), trained, half=half)
            if peak <= room and (texts % parts == 0 or parts == first):
                return tried, peak
    return None, peak


def text_cost(config: PreTrainedConfig, source: int, target: int) -> TextCost:
    """Count a forward pass on one text of `source` and `target` tokens, by a model of this configuration."""
    return _text_cost(json.dumps(config.to_dict(), sort_keys=True, default=str), source, target)


@functools.lru_cache(maxsize=64)
def _text_cost(described: str, source: int, target: int) -> TextCost:
    from transformers import AutoConfig

    values = json.loads(described)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = model_without_weights(config)
    whole, operations = _forward(model, source, target)
    # From stacks of one and of two layers: what a layer of each keeps, and with that what the rest does.
    shallow, encoder, decoder = (
        _forward(model_without_weights(with_depths(config, *depths)), source, target)[0] for depths in ((1, 1), (2, 1), (1, 2))
    )
    layers = [decoder - shallow, encoder - shallow] if config.is_encoder_decoder else [decoder - shallow]
    tokens = {"source": source, "target": target} if config.is_encoder_decoder else {"both": source + target}
    depths = [config.num_hidden_layers, getattr(config, "num_decoder_layers", None) or config.num_hidden_layers]
    inputs = sum(4 * depth * length * config.hidden_size for depth, length in zip(depths, tokens.values(), strict=False))
    return TextCost(
        sum(one.numel() for one in model.parameters()), whole, inputs + max(shallow - sum(layers), *layers), operations
    )


def model_without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of a configuration on the meta device: its weights have shapes and take no memory."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    return model


def _forward(model: PreTrainedModel, source: int, target: int) -> tuple[int, int]:
    """Bytes that a text's backward pass reads, the gradient of the logits with them, and operations of the forward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    weights = [one.untyped_storage() for one in model.parameters()]
    own = set(map(id, weights))
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Views share a storage, which counts once; it is held here, so that no later one has its id.
        kept.setdefault(id(tensor.untyped_storage()), tensor.untyped_storage())
        return tensor

    def ids(length: int) -> Tensor:
        return torch.zeros(1, length, dtype=torch.long, device="meta")

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounterMode(display=False) as counter:
        if model.config.is_encoder_decoder:
            logits = model.train()(input_ids=ids(source), decoder_input_ids=ids(target)).logits[0]
        else:  # logits of the source are read by nobody
            read = ids(source + target)
            logits = model.train()(input_ids=read, attention_mask=torch.ones_like(read), logits_to_keep=target).logits[0]
        functional.cross_entropy(logits.float(), ids(target)[0])
    held = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
    return held + 4 * logits.numel(), counter.get_total_flops()


def with_depths(config: PreTrainedConfig, encoder: int, decoder: int) -> PreTrainedConfig:
    """The configuration with so many layers in each stack."""
    changed, both = copy.deepcopy(config), config.is_encoder_decoder
    for names, depth in ((_ENCODERS, encoder if both else decoder), (_DECODERS, decoder)):
        for name in names:
            if isinstance(getattr(changed, name, None), int):
                setattr(changed, name, depth)
    if getattr(changed, "layer_types", None):
        changed.layer_types = (changed.layer_types * decoder)[:decoder]
    return changed
