"""The module that the engine trains: a model with its heads, returning the loss of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.extras import add_classifier, add_heads, classifier_of, heads_of
from tasks.models.layers import decoder_layers, freeze_encoder, reads_large_encoder, require_layered
from tasks.models.pruned_head import pruned_head
from tasks.training import distributed
from tasks.training.auxiliary import AuxiliaryLoss
from tasks.training.data import IGNORED, Batch
from tasks.training.losses import CrossEntropyLoss, Loss, without_labels_outside
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Objective(torch.nn.Module):
    """A model with its loss.

    A frozen trunk or encoder runs without dropout, so that its hidden states are those of decoding.
    """

    def __init__(self, model: PreTrainedModel, settings: TrainingSettings, loss: Loss | None = None) -> None:
        """Add the heads of the settings to `model`, and mark the weights to train.

        Args:
            model: A model of `transformers`.
            settings: The training settings.
            loss: The loss; None: cross-entropy of the text and the losses of the heads.

        Raises:
            InputError: the model does not support the settings.
        """
        super().__init__()
        _prepare(model, settings)
        self.model = model
        self.frozen = settings.trunk == "frozen"
        self.loss: Loss = loss or (AuxiliaryLoss(settings) if settings.has_auxiliary_losses else CrossEntropyLoss())
        device = next(model.parameters()).device
        self._half = settings.precision == "bfloat16" or (settings.precision == "auto" and multiplies_bfloat16(device))
        if self._half and device.type == "cpu":
            # torch's fused attention prepares each head of each text for bfloat16 anew, which takes longer than the rest of a
            # step where texts are short.
            model.set_attn_implementation("eager")

    def forward(self, batch: Batch, counts: Tensor) -> Tensor:
        """Return this micro-batch's share of the mean loss of a step: a scalar, in nats.

        Args:
            batch: A batch on the model's device.
            counts: Divisor of each term for the whole step: (terms,).
        """
        return self._mean(self.sums(batch), counts)

    def sums(self, batch: Batch) -> Tensor:
        """Return each term of the loss, summed over the batch: float32 (terms,)."""
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self._half):
            return torch.stack([term.float() for term in self.loss.sums(self.model, self._learnable(batch))])

    def counts(self, batches: list[Batch]) -> Tensor:
        """Return the divisor of each term, over the micro-batches of all processes: float32 (terms,)."""
        return distributed.all_reduce(self.own_counts(batches))

    def own_counts(self, batches: list[Batch]) -> Tensor:
        """Return the divisor of each term, over these batches of this process: float32 (terms,)."""
        mine = [self.loss.counts(self._learnable(batch)) for batch in batches]
        return torch.tensor(mine, device=batches[0].source.device).sum(0)

    def target_tokens(self, batch: Batch) -> Tensor:
        """Return the number of labels that the model learns from: a scalar."""
        head = pruned_head(self.model)
        return ((batch.labels != IGNORED) if head is None else head.positions(batch.labels)[1]).sum()

    def _learnable(self, batch: Batch) -> Batch:
        """Return the batch without the labels that the model cannot predict: those outside its draft vocabulary."""
        head = pruned_head(self.model)
        return batch if head is None else without_labels_outside(batch, head)

    def mean(self, sums: Tensor, counts: Tensor) -> float:
        """Return the loss of terms with these sums and counts."""
        return float(self._mean(sums, counts))

    def _mean(self, sums: Tensor, counts: Tensor) -> Tensor:
        shares = torch.tensor(self.loss.term_weights(), device=counts.device)
        # A term without positions counts 0, such as that of a head that looks past the end of every text.
        return (shares * sums / torch.where(counts > 0, counts, torch.ones_like(counts))).sum()

    def train(self, mode: bool = True) -> Objective:
        super().train(mode)
        if self.frozen:
            self.model.eval()
        elif reads_large_encoder(self.model):
            self.model.get_encoder().eval()
        return self


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bfloat16; without them, it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return any(torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _prepare(model: PreTrainedModel, settings: TrainingSettings) -> None:
    if settings.has_auxiliary_losses:
        require_layered(model, "training with exit_loss, draft_heads or exit_classifier")
        layers = len(decoder_layers(model))
        if settings.exit_loss == "first_last" and settings.exit_layer >= layers:
            raise InputError(f"exit_layer is {settings.exit_layer}, but the decoder has {layers} layers; it must be less")
        if settings.exit_classifier and layers == 1:
            raise InputError("exit_classifier is set, but the decoder has one layer, with none to exit before; give it more")
    model.config.exit_layer = settings.exit_layer
    if settings.draft_heads:
        add_heads(model, settings.draft_heads, settings.seed)
    if settings.exit_classifier:
        add_classifier(model)
    model.requires_grad_(settings.trunk == "trained")
    if reads_large_encoder(model):
        freeze_encoder(model)
    for extra, wanted in ((heads_of(model), settings.draft_heads > 0), (classifier_of(model), settings.exit_classifier)):
        if extra is not None:
            extra.requires_grad_(wanted)
