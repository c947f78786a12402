"""Trains a head that predicts which tokens of the drafter the large model accepts (SpecDec++: Huang et al., arXiv 2405.19715).

The drafter is trained first and frozen: a head changes nothing about its drafts. Along a text y that the large model wrote, the
drafter proposes a token at every position, and the label is the probability min(1, p/q) that the large model accepts it there.
The head has to know drafts of several tokens, so it reads the states of the drafter along a mixed text, most of whose tokens
are drafted ones and the others y's (the paper's token mixing).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tasks.alignment.settings import AlignSettings
from tasks.console import progress
from tasks.decoding.distributions import probability, transform
from tasks.decoding.settings import SamplingSettings
from tasks.models.extras import AcceptanceHead, add_acceptance_head
from tasks.training import distributed
from tasks.training.context import TrainingContext
from tasks.training.data import Batch, JsonlDataset, TokenDataset
from tasks.training.predictions import states_after, target_log_probs, target_positions
from tasks.training.sources import DatasetSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LARGE_SHARE = 0.15
"""Share of a mixed text's tokens that are the large model's, from which nothing is learned: the authors' code."""
_LEARNING_RATE = 1e-3
_EVALUATED = 64
"""Held-out texts of a batch."""


class DraftedTokens(NamedTuple):
    """Tokens that a drafter proposed along given texts."""

    states: Tensor
    """The drafter's last hidden state after each: (tokens, width)."""
    accepted: Tensor
    """Probability that the large model accepts each: float32 (tokens,)."""


class TokenDrafts:
    """Proposes a token at every position of a text, and says how likely the large model accepts it."""

    def __init__(self, drafter: PreTrainedModel, large: PreTrainedModel, vocabulary: int, temperature: float) -> None:
        """Take two models of one architecture and vocabulary, in evaluation mode, and the temperature of both."""
        self._drafter, self._large, self._vocabulary = drafter, large, vocabulary
        self._sampling = SamplingSettings(temperature=temperature)
        ends = drafter.generation_config.eos_token_id
        self._ends = torch.tensor(ends if isinstance(ends, list) else [ends], device=drafter.device)

    @torch.no_grad()
    def along(self, batch: Batch, seed: int) -> DraftedTokens:
        """Draft along the targets of a batch, on the drafter's device; the seed decides what is drawn."""
        rng = torch.Generator(batch.labels.device).manual_seed(seed)
        q, p = (
            transform(target_log_probs(model, batch, self._vocabulary), self._sampling)
            for model in (self._drafter, self._large)
        )
        written = target_positions(self._drafter, batch).tokens
        drawn = q.argmax(-1) if self._sampling.greedy or not len(q) else torch.multinomial(q, 1, generator=rng)[:, 0]
        accepted = (probability(p, drawn) / probability(q, drawn)).clamp(max=1.0)
        # No draft goes on behind an end token, so that nothing has to be predicted after one.
        kept = (torch.rand(written.shape, generator=rng, device=written.device) < _LARGE_SHARE) | torch.isin(drawn, self._ends)
        states = states_after(self._drafter, batch, torch.where(kept, written, drawn))
        return DraftedTokens(states[~kept], accepted[~kept])


def acceptance_head_trainer(
    context: TrainingContext, settings: AlignSettings, large: PreTrainedModel, vocabulary: int
) -> Callable[[], dict[str, float]]:
    """Return a function that adds a trained head to the drafter of `context`, once the drafter has learned.

    It gives `acceptance_head_auc`: the probability that the head rates an accepted token of held-out texts above a rejected
    one; nothing where the texts have only one of the two kinds.
    """

    def train() -> dict[str, float]:
        model = context.model.eval()
        head = add_acceptance_head(model, settings.acceptance_head, settings.seed)
        drafts = TokenDrafts(model, large.eval(), vocabulary, settings.acceptance_temperature)
        train_head(head, drafts, _calibration(context), settings, context.device)
        return held_out_auc(head, drafts, context.held_out, context.device)

    return train


def train_head(
    head: AcceptanceHead, drafts: TokenDrafts, texts: TokenDataset, settings: AlignSettings, device: torch.device
) -> None:
    """Train a head, in place, on the batches of `settings`; every process takes the same steps."""
    source, optimizer = DatasetSource(texts, settings), torch.optim.AdamW(head.parameters(), lr=_LEARNING_RATE)
    head.train()
    for step in progress(
        range(settings.acceptance_steps),
        desc="acceptance head",
        unit="step",
        mininterval=2.0,
        disable=not distributed.is_main(),
    ):
        seed = (settings.seed * 1_000_003 + step + 1) * distributed.world_size() + distributed.rank()
        parts = [drafts.along(part.to(device), seed) for part in source.microbatches(step)]
        states, accepted = (torch.cat(column) for column in zip(*parts, strict=True))
        loss, weight = balanced_loss_sum(head(states), accepted, settings.rejection_weight)
        optimizer.zero_grad()
        torch.autograd.backward(loss / distributed.all_reduce(weight).clamp_min(1e-9))
        for parameter in head.parameters():
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
        optimizer.step()
    head.eval()


def balanced_loss_sum(logits: Tensor, accepted: Tensor, rejection_weight: float) -> tuple[Tensor, Tensor]:
    """Return Σ -a log σ(l) - w (1 - a) log(1 - σ(l)), and the Σ a + w (1 - a) that divides it (SpecDec++).

    Args:
        logits: l: (tokens,).
        accepted: a, the probability that each token is accepted: (tokens,).
        rejection_weight: w, since most tokens are accepted.
    """
    logits, rejected = logits.float(), rejection_weight * (1 - accepted)
    losses = accepted * functional.softplus(-logits) + rejected * functional.softplus(logits)
    return losses.sum(), (accepted + rejected).sum()


def held_out_auc(head: AcceptanceHead, drafts: TokenDrafts, texts: TokenDataset, device: torch.device) -> dict[str, float]:
    """Return `{"acceptance_head_auc": …}` of a head on held-out texts, or nothing if it is undefined."""
    found = []
    for begin in range(0, len(texts), _EVALUATED):
        states, accepted = drafts.along(texts.batch(range(begin, min(begin + _EVALUATED, len(texts)))).to(device), begin)
        with torch.no_grad():
            found.append((head(states), accepted))
    scores, accepted = (torch.cat(column) for column in zip(*found, strict=True))
    area = area_under_curve(scores, accepted)
    return {} if area is None else {"acceptance_head_auc": area}


def area_under_curve(scores: Tensor, accepted: Tensor) -> float | None:
    """Return the probability that an accepted token has a higher score than a rejected one, a tie counting one half.

    Args:
        scores: (tokens,).
        accepted: The share of each token that is accepted, 0…1; the rest of it is rejected: (tokens,).
    """
    values, place = scores.unique(return_inverse=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    kept, rejected = (
        torch.zeros(len(values), dtype=torch.float64, device=scores.device).index_add_(0, place, share.double())
        for share in (accepted, 1 - accepted)
    )
    pairs = float(kept.sum() * rejected.sum())
    return float((kept * (rejected.cumsum(0) - rejected / 2)).sum()) / pairs if pairs > 0 else None


def _calibration(context: TrainingContext) -> TokenDataset:
    """Return the large model's texts: the control, which learns from references, gets the same head as the aligned drafter."""
    job = context.job
    if job.train_file == job.paths.calibration_set:
        return context.examples
    decoder_only = not context.model.config.is_encoder_decoder
    return JsonlDataset(job.paths.calibration_set, context.tokenizer, job.text, decoder_only=decoder_only)
