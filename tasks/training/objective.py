"""What is trained: a model's predictions at the target positions of a batch, the losses on them, and the module of both.

A loss has terms, each a sum over positions and the count that the sum is divided by. The count covers the whole step, all
processes and micro-batches together, so that the partition of a step does not change the gradient. A mean of per-part means
would give tokens of short texts more weight.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.errors import InputError
from tasks.models.extras import add_classifier, add_heads, classifier_of, heads_of
from tasks.models.layers import decoder_layers, normed, predict, reads_large_encoder
from tasks.models.pruned_head import pruned_head
from tasks.training import distributed
from tasks.training.data import IGNORED, Batch, TopLogits
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


def check_model(
    model: PreTrainedModel, name: str, settings: TrainingSettings, device: torch.device, *, random_start: bool = False
) -> None:
    """Refuse a model that cannot be trained with these settings, before any work.

    Raises:
        InputError: the message names the model, the contradiction and the fix.
    """
    kind = model.config.model_type
    if kind == "fsmt":
        fix = "it can be decoded with, not trained: name another"
        raise InputError(f"the {name} model is of type fsmt, which transformers trains on its source; {fix}")
    if settings.precision == "float16" and reads_large_encoder(model):
        raise InputError(
            f"precision is float16, which rounds all weights, but with from_large.share_encoder the {name} model's encoder "
            "stays the large model's; set precision to bfloat16 or float32"
        )
    if settings.activation_checkpointing and not model.supports_gradient_checkpointing:
        said = f"transformers cannot do that for a {kind}"
        raise InputError(f"the {name} model: activation_checkpointing is true, but {said}; set it to false")
    layers = len(decoder_layers(model)) if settings.has_auxiliary_losses and kind in ("t5", "mt5") else 0
    for problem in settings.model_problems(kind, layers, device.type, random_start=random_start):
        raise InputError(f"the {name} model: {problem}")


def forward(model: PreTrainedModel, batch: Batch, **options: object) -> ModelOutput:
    """Return the output of a `transformers` model for the texts of a batch, without its own loss and without a cache."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=batch.source, attention_mask=batch.mask, use_cache=False, **options)
    # The decoder reads the labels shifted by one, behind its start token.
    fed = model.prepare_decoder_input_ids_from_labels(labels=batch.labels)
    return model(input_ids=batch.source, attention_mask=batch.mask, decoder_input_ids=fed, use_cache=False, **options)


@dataclass(frozen=True)
class TargetPositions:
    """The labelled positions of a batch, flattened, first example first."""

    tokens: Tensor
    """int64 (positions,)"""
    weights: Tensor
    """float32 (positions,): weight of each position."""
    top: TopLogits | None
    """(positions, k); None without stored predictions."""
    _labelled: tuple[Tensor, ...]
    _shift: int

    def select(self, values: Tensor) -> Tensor:
        """Return the entries of `values` (examples, input positions, …) that predict each target: (positions, …)."""
        # A decoder-only model predicts a token one position before it.
        return values[:, : values.shape[1] - self._shift][self._labelled]


def target_positions(model: PreTrainedModel, batch: Batch) -> TargetPositions:
    """Return the target positions of a batch for this kind of model."""
    shift = 0 if model.config.is_encoder_decoder else 1
    labels = batch.labels[:, shift:]
    # Rows and columns, int64 (positions,) both: a GPU counts the labels once, where each use of a mask would wait for that.
    labelled = (labels != IGNORED).nonzero(as_tuple=True)
    tokens = labels[labelled]  # (positions,)
    weights = torch.ones_like(tokens, dtype=torch.float32) if batch.weights is None else batch.weights[:, shift:][labelled]
    top = None
    if batch.top is not None:
        # (examples, target positions, k) to (positions, k)
        stored = (batch.top.tokens, batch.top.log_probabilities)
        top = TopLogits(*(numbers[:, shift:][labelled] for numbers in stored))
    return TargetPositions(tokens, weights, top, labelled, shift)


def drafted_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits at each target position of the tokens that a model predicts.

    They are those of all tokens, (positions, vocabulary), or of a draft vocabulary, (positions, N): `PrunedHead.positions`.
    """
    head = pruned_head(model)
    # A compact head leaves out the columns of -infinity, which no label can have.
    with contextlib.nullcontext() if head is None else head.compact():
        return _target_logits(model, batch)


def target_log_probs(model: PreTrainedModel, batch: Batch, vocabulary: int) -> Tensor:
    """Return the log-softmax at each target position over the first `vocabulary` ids: float32 (positions, vocabulary), nats."""
    return _target_logits(model, batch)[:, :vocabulary].float().log_softmax(-1)


def _target_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits at each target position: (positions, outputs of the head)."""
    targets = target_positions(model, batch)
    head = None if model.config.is_encoder_decoder else model.get_output_embeddings()
    if head is None:
        return targets.select(forward(model, batch).logits)
    # Most positions of a decoder-only model belong to prompts, whose logits nobody reads: the head skips them.
    selecting = head.register_forward_pre_hook(lambda _module, inputs: (targets.select(inputs[0])[None],))
    try:
        logits: Tensor = forward(model, batch).logits[0]
    finally:
        selecting.remove()
    return logits


class Loss:
    """A training loss of one or more terms; of one, a weighted sum over labelled positions, unless a subclass has more."""

    def term_weights(self) -> list[float]:
        """Weight of each term's mean in the loss."""
        return [1.0]

    def counts(self, batch: Batch) -> list[float]:
        """Return the divisor of each term, computed from the labels alone, before the model runs."""
        return [_total_weight(batch)]

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        """Return each term, summed over the batch: scalars on the model's device, in nats."""
        raise NotImplementedError


class CrossEntropyLoss(Loss):
    """Cross-entropy of the text: fine-tuning, and BiLD's alignment on the large model's outputs."""

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        labels = targets.tokens if head is None else head.positions(targets.tokens)[0]
        logits = drafted_logits(model, batch)  # (positions, tokens)
        return [(functional.cross_entropy(logits.float(), labels, reduction="none") * targets.weights).sum()]


class AuxiliaryLoss(Loss):
    """Losses of early exits, draft heads and the exit classifier, in addition to the model's own; T5 and mT5 only.

    The mean of the trunk's loss (unless the trunk is frozen) and of each head's, plus the classifier's loss.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._trunk = settings.trunk == "trained"

    def term_weights(self) -> list[float]:
        # Trunk and heads share the mean; the classifier trains its own weights alone, so that its loss is added whole.
        parts = self._trunk + self._settings.draft_heads
        return [1 / max(parts, 1)] * parts + [1.0] * self._settings.exit_classifier

    def counts(self, batch: Batch) -> list[float]:
        # A head that looks further ahead has fewer labels in each text.
        whole = _total_weight(batch)
        heads = [_total_weight(_later(batch, ahead)) for ahead in range(1, self._settings.draft_heads + 1)]
        return [whole] * self._trunk + heads + [whole] * self._settings.exit_classifier

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        output = forward(model, batch, output_hidden_states=True)
        # transformers returns the embeddings, every layer's output, and for the last layer its output after the final norm,
        # each of shape (examples, target positions, width).
        *inner, last = output.decoder_hidden_states[1:]
        terms = []
        # 1. The trunk: Σ w_i L_i, with the shared output layer on layer i.
        if self._trunk:
            losses = []
            for layer, weight in layer_weights(self._settings.exit_loss, len(inner) + 1, self._settings.exit_layer).items():
                logits = output.logits if layer > len(inner) else predict(model, normed(model, inner[layer - 1]))
                losses.append(weight * cross_entropy_sum(logits, batch))
            terms.append(torch.stack(losses).sum())
        # 2. Each draft head, on the last layer's states.
        heads, classifier = heads_of(model), classifier_of(model)
        if self._settings.draft_heads and heads is not None:
            terms += head_loss_sums(predict(model, heads(last)), batch)
        # 3. The exit classifier: does a layer's top token already equal the last layer's?
        if self._settings.exit_classifier and classifier is not None:
            with torch.no_grad():
                states = [normed(model, hidden) for hidden in inner]
                agreements = [predict(model, state).argmax(-1) == output.logits.argmax(-1) for state in states]
            # Hidden states enter without gradients: the classifier never changes the model (CALM trains it in a second step).
            terms.append(classifier_loss_sum([classifier(state) for state in states], agreements, batch))
        return terms


def layer_weights(kind: str, layers: int, exit_layer: int) -> dict[int, float]:
    """Return the weight of each of `layers` decoder layers, counted from 1, in the loss; the weights sum to 1.

    `none`: the last layer alone. `first_last`: ½ for the exit layer and ½ for the last (BiLD, 7.2.1). `weighted`: w_i = i / Σ j
    (CALM; BiLD, 7.2.1).
    """
    if kind == "weighted":
        return {layer: 2 * layer / (layers * (layers + 1)) for layer in range(1, layers + 1)}
    return {layers: 1.0} if kind == "none" else {exit_layer: 0.5, layers: 0.5}


def cross_entropy_sum(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted sum of the cross-entropy of logits (examples, positions, vocabulary): a scalar, in nats."""
    rows, labels = logits.flatten(0, 1).float(), batch.labels.flatten()
    each = functional.cross_entropy(rows, labels, ignore_index=IGNORED, reduction="none")
    return each.sum() if batch.weights is None else (each * batch.weights.flatten()).sum()


def head_loss_sums(logits: Tensor, batch: Batch) -> list[Tensor]:
    """Return one sum per head (Stern et al., 2018, section 6): head j predicts the label j positions after the model's own.

    Args:
        logits: (examples, positions, heads, vocabulary).
        batch: The labels and their weights.
    """
    # Head j at position i predicts label i + j: the logits lose their last j positions, the labels their first j.
    later = [_later(batch, ahead) for ahead in range(1, logits.shape[2] + 1)]
    return [cross_entropy_sum(logits[:, : part.labels.shape[1], ahead], part) for ahead, part in enumerate(later)]


def classifier_loss_sum(confidences: Sequence[Tensor], agreements: Sequence[Tensor], batch: Batch) -> Tensor:
    """Return the binary cross-entropy of the early-exit classifier, summed over positions and averaged over layers (CALM).

    Args:
        confidences: The classifier's logits for each inner layer: (examples, positions).
        agreements: Whether the top token of each inner layer is the last layer's: (examples, positions), bool.
        batch: The labels, which mark padding, and their weights.
    """
    weights = (batch.labels != IGNORED).float() if batch.weights is None else batch.weights  # (examples, positions)
    return torch.stack(
        [
            (functional.binary_cross_entropy_with_logits(confidence, agreement.float(), reduction="none") * weights).sum()
            for confidence, agreement in zip(confidences, agreements, strict=True)
        ]
    ).mean()


def _later(batch: Batch, ahead: int) -> Batch:
    """Return the batch with labels shifted by this many positions."""
    weights = None if batch.weights is None else batch.weights[:, ahead:]
    return Batch(batch.source, batch.mask, batch.labels[:, ahead:], weights)


def _total_weight(batch: Batch) -> float:
    """Return the total weight of the labelled positions of a batch."""
    return float((batch.labels != IGNORED).sum() if batch.weights is None else batch.weights.sum())


class Objective(torch.nn.Module):
    """The module that the engine trains: a model with its heads, returning the loss of a micro-batch.

    A frozen trunk or encoder runs without dropout, so that its hidden states are those of decoding.
    """

    def __init__(self, model: PreTrainedModel, settings: TrainingSettings, loss: Loss | None = None) -> None:
        """Add the heads of the settings to `model`, and mark the weights to train.

        Args:
            model: A model of `transformers` that `check_model` accepts.
            settings: The training settings.
            loss: The loss; None: cross-entropy of the text and the losses of the heads.
        """
        super().__init__()
        _add_heads(model, settings)
        self.model = model
        self.frozen = settings.trunk == "frozen"
        if settings.activation_checkpointing:
            model.activation_checkpointing_enable()
        self.loss: Loss = loss or (AuxiliaryLoss(settings) if settings.has_auxiliary_losses else CrossEntropyLoss())
        device = next(model.parameters()).device
        self._half = in_bfloat16(settings, device)
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
        return self.mean(self.sums(batch), counts)

    def sums(self, batch: Batch) -> Tensor:
        """Return each term of the loss, summed over the batch: float32 (terms,)."""
        # bfloat16 in the forward pass only: weights, optimiser and the sums of losses stay in float32.
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self._half):
            return torch.stack([term.float() for term in self.loss.sums(self.model, self._learnable(batch))])

    def counts(self, batches: list[Batch]) -> Tensor:
        """Return the divisor of each term, over the micro-batches of all processes: float32 (terms,)."""
        return distributed.all_reduce(self.own_counts(batches))

    def own_counts(self, batches: list[Batch]) -> Tensor:
        """Return the divisor of each term, over these batches of this process: float32 (terms,)."""
        mine = [self.loss.counts(self._learnable(batch)) for batch in batches]
        return torch.tensor(mine).sum(0).to(batches[0].source.device, non_blocking=True)

    def mean(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return the loss of terms with these sums and counts, both (terms,): a scalar."""
        # A plain copy to a GPU would wait for the forward pass.
        shares = torch.tensor(self.loss.term_weights()).to(counts.device, non_blocking=True)
        # A term without positions counts 0, such as that of a head that looks past the end of every text.
        return (shares * sums / torch.where(counts > 0, counts, torch.ones_like(counts))).sum()

    def target_tokens(self, batch: Batch) -> Tensor:
        """Return the number of labels that the model learns from: a scalar."""
        head = pruned_head(self.model)
        return ((batch.labels != IGNORED) if head is None else head.positions(batch.labels)[1]).sum()

    def _learnable(self, batch: Batch) -> Batch:
        """Return the batch with weight 0 where the model cannot predict the label: outside its draft vocabulary."""
        head = pruned_head(self.model)
        if head is None:
            return batch
        weights = (batch.labels != IGNORED).float() if batch.weights is None else batch.weights
        # (examples, target positions): whether the label is in the draft vocabulary; padding is not.
        inside = head.positions(batch.labels.to(head.tokens.device))[1].to(weights.device)
        return dataclasses.replace(batch, weights=weights * inside)

    def train(self, mode: bool = True) -> Objective:
        super().train(mode)
        # What is frozen shows its states without dropout, as decoding does.
        if self.frozen:
            self.model.eval()
        elif reads_large_encoder(self.model):
            self.model.get_encoder().eval()
        return self


def in_bfloat16(settings: TrainingSettings, device: torch.device) -> bool:
    """Whether a training on the device multiplies in bfloat16."""
    return settings.precision == "bfloat16" or (settings.precision == "auto" and multiplies_bfloat16(device))


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bfloat16; without them, it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return any(torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _add_heads(model: PreTrainedModel, settings: TrainingSettings) -> None:
    model.config.exit_layer = settings.exit_layer
    if settings.draft_heads:
        add_heads(model, settings.draft_heads, settings.seed)
    if settings.exit_classifier:
        add_classifier(model)
    model.requires_grad_(settings.trunk == "trained")
    if reads_large_encoder(model):
        # This excludes all weights that are tied to the encoder's embedding as well.
        model.get_encoder().requires_grad_(False)
    # Heads that an earlier training left are kept, and trained only if these settings name them.
    for extra, wanted in ((heads_of(model), settings.draft_heads > 0), (classifier_of(model), settings.exit_classifier)):
        if extra is not None:
            extra.requires_grad_(wanted)
