"""Methods that read a model's own layers: early exits (CALM), the first layers as drafter, and heads on the last state.

They need a model of `transformers` whose layers or heads were trained for it: `exit_loss`, `exit_classifier`, `draft_heads`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step, require_finite
from tasks.decoding.distributions import PredictionBlock, TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Draft, ModelDrafter, StepwiseDrafter
from tasks.decoding.method import SamplingSettings
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.reference import ModelRun, TransformersDecoder
from tasks.errors import InputError
from tasks.models.extras import ExitClassifier, ParallelHeads, classifier_of, heads_of
from tasks.models.layers import exit_layer_of, first_layers, normed, predict, require_layered

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.t5.modeling_t5 import T5Block

Confidence = Callable[[Tensor, Tensor | None], Tensor]
"""Maps a layer's output and the previous layer's (or none), both (rows, 1, width), to confidences (rows,) of at most 1."""


def exit_threshold(threshold: float, decay: float, position: int, limit: int) -> float:
    """clip(0.9 λ + 0.1 exp(-t i / N), 0, 1) for token number i, counted from 0, of at most N (BiLD, 7.2)."""
    return min(1.0, max(0.0, 0.9 * threshold + 0.1 * math.exp(-decay * position / limit)))


def top_two_gap(logits: Tensor) -> Tensor:
    """Return the softmax response, the gap between the two highest probabilities: (..., vocabulary) to (...)."""
    top = torch.softmax(logits.float(), -1).topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def saturation(hidden: Tensor, before: Tensor | None) -> Tensor:
    """Return the cosine similarity of successive layers' outputs, (rows,); 0 after the first layer."""
    if before is None:
        return torch.zeros(hidden.shape[0], device=hidden.device)
    return functional.cosine_similarity(hidden[:, 0].float(), before[:, 0].float(), dim=-1).clamp(max=1.0)


def confidence_of(kind: str, model: PreTrainedModel, vocabulary: int) -> Confidence:
    """Return the confidence measure called `kind` (a choice of `CalmSettings`), over the first `vocabulary` tokens.

    Raises:
        InputError: the classifier is wanted, and none was trained with the model.
    """
    if kind == "saturation":
        return saturation
    if kind == "softmax":
        return lambda hidden, _: top_two_gap(predict(model, normed(model, hidden))[:, 0, :vocabulary])
    classifier: ExitClassifier | None = classifier_of(model)
    if classifier is None:
        raise InputError("confidence is classifier, but none was trained with the large model; train it with exit_classifier")
    return lambda hidden, _: torch.sigmoid(classifier(normed(model, hidden))[:, 0].float())


class EarlyExitDecoder(TransformersDecoder):
    """A T5 that stops each row at the first layer whose confidence exceeds the threshold, and predicts from there.

    A row that has exited keeps its hidden state through the layers that other rows still need, and each of those layers
    computes the row's keys and values from that state (state propagation). Once all rows have exited, only keys and values
    are computed. A row exits at the same layer in a batch as alone.
    """

    def __init__(self, large: Decoder, confidence: str, threshold: float, decay: float, limit: int) -> None:
        """Take the large model, a confidence measure of `confidence_of`, and the threshold's λ, t and N, the limit of a text.

        Raises:
            InputError: the architecture is not T5's, or the classifier was not trained.
        """
        model = large.capabilities.transformers_model
        if model is None:
            raise InputError(f"calm needs the layers of a T5 or mT5, which the {large.name} model does not give")
        require_layered(model, "calm")
        super().__init__(model, large.name, large.vocabulary)
        self.threshold, self.decay, self.limit = threshold, decay, limit
        self._confidence = confidence_of(confidence, model, self.vocabulary)

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        if any(count != 1 for count in counts):
            raise ValueError("an early-exit decoder takes one token for each run: the next token may exit at another layer")
        stack = self.model.decoder
        # hidden: (rows, 1, width), the state of the token that was fed.
        hidden = stack.embed_tokens(ids)
        own_mask, source_mask = self._masks(hidden)
        thresholds = torch.tensor([exit_threshold(self.threshold, self.decay, length, self.limit) for length in self.lengths])
        depths = torch.full((len(counts),), len(stack.block))
        # Rows that have not exited yet.
        going = torch.ones(len(counts), dtype=torch.bool)
        before = own_bias = source_bias = None
        for depth, block in enumerate(stack.block, start=1):
            # All rows have exited: compute keys and values alone, which later tokens attend to.
            if not going.any():
                self._propagate(block, hidden)
                continue
            output, own_bias, source_bias = block(
                hidden, own_mask, own_bias, self._encoder_output.hidden, source_mask, source_bias, past_key_values=self._cache
            )
            # A row that has exited keeps its state.
            hidden = torch.where(going.to(self.device)[:, None, None], output, hidden)
            if depth < len(stack.block):
                # Exit where the confidence is above the threshold, which decays with the position.
                leaving = going & (self._confidence(hidden, before).cpu() > thresholds)
                depths[leaving] = depth
                going &= ~leaving
            before = hidden
        return ModelRun(predict(self.model, normed(self.model, hidden)), depths.tolist())

    def _masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the masks of padding in the target and in the source, as the model's own forward pass makes them."""
        from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

        config = self.model.decoder.config
        own = create_causal_mask(
            config=config, inputs_embeds=hidden, attention_mask=self._mask(1), past_key_values=self._cache.self_attention_cache
        )
        source = create_bidirectional_mask(
            config=config,
            inputs_embeds=hidden,
            attention_mask=self._encoder_output.mask,
            encoder_hidden_states=self._encoder_output.hidden,
        )
        return own, source

    def _propagate(self, block: T5Block, hidden: Tensor) -> None:
        """Cache the keys and values of a skipped layer, computed from the hidden state at which the row exited."""
        layer = block.layer[0]
        attention, states = layer.SelfAttention, layer.layer_norm(hidden)
        shape = (*states.shape[:-1], attention.n_heads, attention.key_value_proj_dim)
        keys, values = (project(states).view(shape).transpose(1, 2) for project in (attention.k, attention.v))
        self._cache.self_attention_cache.update(keys, values, attention.layer_idx)


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


class HeadsDrafter(StepwiseDrafter):
    """Head j proposes the j-th token after the one that the target just predicted, from the same hidden state.

    One run predicts and verifies: the target's next run checks this draft and gives the next draft's hidden state, so that m
    tokens take about m / k runs. Nothing is drafted before the first run. The heads do not see each other's tokens; each
    position's q is a distribution of its own, which is all that exact sampling needs.
    """

    runs_model = False
    decoder = None

    def __init__(self, heads: ParallelHeads, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        super().__init__(target.end_token, sampling, source)
        self.heads = heads
        self.target = target
        self.model = target.capabilities.transformers_model
        self._logits: Tensor | None = None
        self._seen: list[int] = []
        self._steps = 0

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self._logits = None
        self._seen = [0] * len(sources)
        self._steps = 0

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        ready = 0 if self._logits is None else self.heads.count
        return super().draft(tokens, examples, [min(budget, ready) for budget in budgets], rule)

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        if self._logits is None:
            raise RuntimeError(f"the heads predict nothing before the {self.target.name} model has run")
        # Head j predicts the j-th token after the one that the target predicted.
        ahead = max(len(new) for new, active in zip(drafted, going, strict=True) if active)
        return self._logits[:, ahead : ahead + 1]

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Return the next head's prediction; past the last head each ordinary token is as likely as any other."""
        uniform = torch.zeros(self.target.vocabulary, device=self.model.device)
        uniform[list(self.target.specials)] = -torch.inf
        logits = [self._prediction(row, len(tokens[row]) - self._seen[row], uniform) for row in rows]
        return PredictionBlock(torch.stack(logits)[:, None], self.sampling)

    def _prediction(self, row: int, ahead: int, default: Tensor) -> Tensor:
        return default if self._logits is None or ahead >= self.heads.count else self._logits[row, ahead]

    @torch.inference_mode()
    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        if step.hidden is None:
            raise RuntimeError(f"the {self.target.name} model's runtime gives no hidden states, which the heads read")
        # Where no token follows a fully accepted draft, the last prediction is that of the draft's last token.
        predicted = [min(position, length - 1) for position, length in zip(positions, step.lengths, strict=True)]
        hidden = step.hidden[list(range(len(positions))), predicted]  # (rows, width)
        # (rows, heads, vocabulary)
        self._logits = predict(self.model, self.heads(hidden))[..., : self.target.vocabulary]
        self._seen = [len(row) for row in tokens]
        self._steps += 1
        require_finite(self._logits, "heads of the large", self._steps)

    def reorder(self, rows: Sequence[int]) -> None:
        self._seen = [self._seen[row] for row in rows]
        if self._logits is not None:
            self._logits = self._logits[list(rows)]


def heads_drafter(large: Decoder, sampling: SamplingSettings, source: TokenSource) -> HeadsDrafter:
    """Return a drafter of the heads that were trained on the large model.

    Raises:
        InputError: there are none.
    """
    model = large.capabilities.transformers_model
    heads = None if model is None else heads_of(model)
    if heads is None:
        raise InputError(f"the heads drafter needs heads, and the {large.name} model has none; train it with draft_heads")
    return HeadsDrafter(heads, large, sampling, source)
