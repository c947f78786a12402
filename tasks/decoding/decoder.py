"""One model with its cache, on rows of unequal length: the interface that every runtime gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

Rows = list[list[int]]
"""Token ids, one list a row; the rows may differ in length."""


@dataclass(frozen=True)
class EncoderOutput:
    """Sources as a decoder reads them: encoded, and then shareable by decoders of one encoder; or kept as they are."""

    hidden: Tensor
    """(rows, source positions, width); of width 0 where there is no encoder."""
    mask: Tensor
    """(rows, source positions), int64: 1 at real positions."""
    prompts: Rows | None = None
    """The sources themselves, where there is no encoder: rows begin with them."""


@dataclass(slots=True)  # not frozen: one is made every run, and freezing makes that several times as dear
class Step:
    """What one forward run of a decoder predicts."""

    logits: Tensor
    """(rows, most new tokens, vocabulary): position i of a row follows its i-th new token; later ones are padding.

    What follows the tokens inside a prompt is left out where that is so in every row: positions then begin later.
    """
    lengths: list[int]
    """New tokens of each row, without those left out."""
    hidden: Tensor | None = None
    """(rows, most new tokens, width): the decoder's last hidden state at each position, where the runtime gives it."""
    layers: list[int] | None = None
    """Decoder layers run for each row, where a runtime leaves some out."""
    best: Rows | None = None
    """The likeliest token at each real position of each row, where the runtime finds it."""

    def last(self, positions: Sequence[int]) -> Tensor:
        """The last `positions[row]` real positions of each row: (rows, max(positions), vocabulary), padded on the right."""
        most = max(positions)
        if all(length == self.logits.shape[1] and count == most for length, count in zip(self.lengths, positions, strict=True)):
            return self.logits[:, -most:]
        starts = torch.tensor([length - count for length, count in zip(self.lengths, positions, strict=True)])
        columns = (starts[:, None] + torch.arange(most)).clamp_(0, self.logits.shape[1] - 1).to(self.logits.device)
        return self.logits.gather(1, columns[..., None].expand(-1, -1, self.logits.shape[-1]))

    def last_best(self, positions: Sequence[int]) -> Rows | None:
        """The likeliest tokens at those positions, where they are known."""
        if self.best is None:
            return None
        return [row[len(row) - count :] for row, count in zip(self.best, positions, strict=True)]


class Decoder(Protocol):
    """A model that continues rows of tokens.

    Its cache holds a prefix of each row's tokens: all but the last after each run, since a token is predicted before it
    is fed. A rewind drops the tail of that prefix and never recomputes.
    """

    name: str
    end_token: int
    end_tokens: frozenset[int]
    """All tokens that end a text, `end_token` among them."""
    lengths: list[int]
    """Cached tokens of each row."""

    @property
    def vocabulary(self) -> int:
        """Tokens that it predicts over."""
        ...

    @property
    def specials(self) -> frozenset[int]:
        """Ids that are never text: padding, start and end."""
        ...

    def encode(self, sources: Rows) -> EncoderOutput:
        """Runs the encoder on sources, one list of ids a row."""
        ...

    def start(self, encoder_output: EncoderOutput) -> Rows:
        """Empties the cache for these sources and gives each row's first tokens."""
        ...

    def forward(self, tokens: Rows) -> Step:
        """Appends tokens to each row (none for an empty list) and predicts what follows each of them."""
        ...

    def rewind(self, lengths: Sequence[int]) -> None:
        """Cuts the cache of each row to `lengths[row]` tokens."""
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; a row may be kept twice or dropped."""
        ...


@dataclass(frozen=True)
class StopRule:
    """When a draft ends, besides at an end token and at its budget: see `drafting.DraftRule`."""

    confidence: float = 0.0
    """Before a token whose softmax is not above this; 0: never."""
    cumulative_confidence: float = 0.0
    """After the token with which the product of the softmaxes falls under this; 0: never."""


@dataclass(slots=True)
class Continuation:
    """What a model predicts when it goes on by its own likeliest tokens."""

    tokens: list[int]
    """The likeliest at each position; the last one is not fed."""
    confidence: list[float]
    """The softmax of each; 1 where the rule does not ask."""
    logits: Tensor
    """(1, positions, vocabulary); of the last position alone where they are not kept."""


class ContinuingDecoder(Decoder, Protocol):
    """A runtime that continues a row of its own, without a decision in between: what a greedy drafter does all day."""

    def continue_greedily(self, pending: list[int], budget: int, until: StopRule, *, with_logits: bool = True) -> Continuation:
        """Appends `pending` to the only row, then greedily at most `budget - 1` tokens, and predicts after each of them.

        It may end at the first position that `until` or an end token ends the draft at, or go on beyond it. Logits that
        nobody reads need not be kept: those of a whole text are large.
        """
        ...


def can_continue(decoder: Decoder) -> TypeGuard[ContinuingDecoder]:
    """Whether a runtime is `Continuing`."""
    return hasattr(decoder, "continue_greedily")


@dataclass(frozen=True)
class GreedyAcceptance:
    """A greedy rule for what stays of a draft that a runtime can apply by itself."""

    max_surprisal: float
    """A token is kept while its -log softmax is at most this; below 0: never for that reason."""
    keep_agreed: bool
    """A token is kept where it is the likeliest."""


@dataclass(slots=True)
class CheckedDraft:
    """A draft of one row, run and judged."""

    step: Step
    """Of the draft and of the token before it."""
    kept: int
    """Drafted tokens before the first that does not stay."""
    following: int
    """The likeliest token after those."""


class DraftCheckingDecoder(Decoder, Protocol):
    """A runtime that judges a greedy draft where it has the logits, and gives numbers instead of distributions."""

    def check_draft(self, pending: list[int], drafted: list[int], keep: GreedyAcceptance) -> CheckedDraft:
        """Appends `pending` and `drafted` to the only row; at least one of `pending`."""
        ...


def can_check(decoder: Decoder) -> TypeGuard[DraftCheckingDecoder]:
    """Whether a runtime is `Checking`."""
    return hasattr(decoder, "check_draft")


class BrokenLogitsError(RuntimeError):
    """A model gave NaN, +infinity, or no finite logit at all."""

    @classmethod
    def at(cls, model: str, step: int) -> BrokenLogitsError:
        """Names the model and the step."""
        return cls(f"the {model} model gave NaN, +infinity or no finite logit at step {step}")


def require_finite(logits: Tensor, model: str, step: int) -> None:
    """Raises `BrokenLogitsError` naming model and step; -infinity is a legal mask and passes."""
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise BrokenLogitsError.at(model, step)
