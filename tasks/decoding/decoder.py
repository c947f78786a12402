"""The interface of every runtime: one model with its cache, on rows of unequal length, and what else a runtime can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tasks.models.prompting import common_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tasks.decoding.draft_rule import DraftRule
    from tasks.decoding.method import SamplingSettings
    from tasks.decoding.predictions import CachedModel
    from tasks.decoding.runtimes.layout import NativeLoopModel

Rows = list[list[int]]
"""Token ids, one list a row; the rows may differ in length."""


@dataclass(frozen=True)
class Runtime:
    """How a model is to be run."""

    name: str = "auto"
    """auto, reference, native or fused."""
    int8: bool = False
    """Whether matrices are kept in 8 bits."""


AUTO, REFERENCE = Runtime(), Runtime("reference")


@dataclass(frozen=True)
class EncoderOutput:
    """Sources as a decoder reads them: encoded once, which decoders of one encoder share, or kept as prompts."""

    hidden: Tensor
    """(rows, source positions, width); of width 0 where there is no encoder."""
    mask: Tensor
    """(rows, source positions), int64: 1 at real positions."""
    prompts: Rows | None = None
    """The sources themselves where there is no encoder; rows begin with them."""


@dataclass(slots=True)  # not frozen: every run makes one, and freezing multiplies the cost of that
class Step:
    """The predictions of one forward run of a decoder."""

    logits: Tensor
    """(rows, most new tokens, vocabulary): position i of a row follows its i-th new token; later ones are padding.

    Predictions inside a prompt are left out where every row is still inside its prompt: positions then begin later.
    """
    lengths: list[int]
    """New tokens of each row, without those left out."""
    hidden: Tensor | None = None
    """(rows, most new tokens, width): the decoder's last hidden state at each position, where the runtime gives it."""
    layers: list[int] | None = None
    """Decoder layers run for each row, where a runtime leaves some out."""
    argmax: Rows | None = None
    """The argmax at each real position of each row, where the runtime finds it."""

    def last(self, positions: Sequence[int]) -> Tensor:
        """Return the last `positions[row]` real positions of each row: (rows, max(positions), vocabulary), right-padded."""
        # Usually no row is padded, and the end of the tensor is meant.
        values, most = self.logits, max(positions)
        if all(length == values.shape[1] and count == most for length, count in zip(self.lengths, positions, strict=True)):
            return values[:, -most:]
        # Otherwise each row has its own columns; those beyond its predictions repeat the last: (rows, most).
        starts = torch.tensor([length - count for length, count in zip(self.lengths, positions, strict=True)])
        columns = (starts[:, None] + torch.arange(most)).clamp_(0, values.shape[1] - 1).to(values.device, non_blocking=True)
        return values.gather(1, columns[..., None].expand(-1, -1, values.shape[-1]))

    def last_argmax(self, positions: Sequence[int]) -> Rows | None:
        """Return the argmax tokens at those positions, where they are known."""
        if self.argmax is None:
            return None
        return [row[len(row) - count :] for row, count in zip(self.argmax, positions, strict=True)]


@dataclass(slots=True)
class Continuation:
    """A model's predictions along its own tokens."""

    tokens: list[int]
    """The argmax at each position, or what was drawn there; the last one is not fed."""
    confidence: list[float]
    """The softmax of each argmax; 1 where no bound of the rule needs it."""
    logits: Tensor
    """(1, positions, vocabulary); of the last position alone where they are not kept."""
    entropies: list[float]
    """The entropy of the softmax at each position, in nats; 0 where no bound of the rule needs it."""


class GreedyContinuation(Protocol):
    """Continues the only row of a decoder without a decision between the model's runs."""

    def __call__(self, pending: list[int], budget: int, until: DraftRule, *, with_logits: bool = True) -> Continuation:
        """Append `pending`, then greedily at most `budget - 1` tokens, and predict after each of them.

        It may end at the first position at which a bound of `until` or an end token ends the draft, that position included,
        or go on beyond it. Logits that nobody reads need not be kept: those of a whole text are large.
        """


@dataclass(frozen=True)
class Draws:
    """How the tokens of a continuation are drawn; `distributions.invert` does it."""

    sampling: SamplingSettings
    uniforms: list[float]
    """The number for each token, in (0, 1)."""


class SampledContinuation(Protocol):
    """Continues the only row of a decoder likewise, with drawn tokens."""

    def __call__(self, pending: list[int], draws: Draws, until: DraftRule, *, with_logits: bool = True) -> Continuation:
        """Do what `GreedyContinuation` does, for a budget of as many tokens as there are numbers."""


@dataclass(frozen=True)
class GreedyAcceptance:
    """A greedy acceptance rule in numbers, which a runtime can apply by itself: a token is accepted where one of them does."""

    max_surprisal: float
    """Accept a token while its -log softmax is at most this; a negative number never does."""
    keep_agreed: bool
    """Accept a token where it is the target's argmax."""
    min_share: float = math.inf
    """Accept a token whose softmax is at least this share of the highest; infinity never does."""
    max_gap: float = -1.0
    """Accept a token whose softmax is at most this under the highest; a negative number never does."""

    @property
    def reads_scores(self) -> bool:
        """Whether it reads more of the target than its argmax."""
        return max(self.max_surprisal, self.max_gap) >= 0 or self.min_share < math.inf


@dataclass(slots=True)
class CheckedDraft:
    """A draft of one row after the target's run."""

    step: Step
    """Predictions after the draft's tokens and after the token before it."""
    accepted: int
    """Drafted tokens before the first one rejected."""
    next_token: int
    """The argmax after those."""


class DraftCheck(Protocol):
    """Runs a decoder on the draft of its only row and applies a greedy rule where the logits are."""

    def __call__(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        """Append `pending`, at least one token, and `drafted`."""


class DraftDecision(Protocol):
    """Runs a decoder on the draft of its only row and lets the caller decide on the device, without waiting for it before."""

    def __call__(self, pending: list[int], drafted: list[int], decide: Callable[[Tensor], Tensor]) -> CheckedDraft:
        """Append `pending`, at least one token, and `drafted`.

        `decide` takes the logits after the token before the draft and after each drafted one, (1, drafted + 1, vocabulary), and
        returns how many tokens are accepted and the next token: int64 (2,). Broken logits are reported behind it.
        """


class TokenGuarantee(Enum):
    """How closely greedy tokens agree when a text is decoded alone, in a batch or from cached predictions; strongest first."""

    EQUAL = "logits are equal to the bit in every shape"
    EQUAL_BEYOND_TOLERANCE = "float32 logits: tokens differ only at very narrow top-2 margins"
    NONE = "reduced precision without a promise"


@dataclass(frozen=True)
class Capabilities:
    """What a runtime declares that it can do beyond the calls of `Decoder`; nothing else says so.

    `loop` reads these to pick the fastest way through a method.
    """

    continue_greedily: GreedyContinuation | None = None
    check_draft: DraftCheck | None = None
    continue_sampled: SampledContinuation | None = None
    decide_draft: DraftDecision | None = None
    native_loop: NativeLoopModel | None = None
    """The model as the compiled kernel runs it without Python."""
    replay: CachedModel | None = None
    """Cached predictions that stand in for the model: it is never run by the calls of `Decoder`."""
    transformers_model: PreTrainedModel = None
    """The `transformers` model, whose layers and trained heads may be read; none where there is no such model."""
    runtime: Runtime = AUTO
    """How a second decoder over parts of this model is to be run."""
    step_bytes: int = 0
    """Bytes of weights that a run reads once, whatever its number of tokens; 0 where the runtime does not know."""
    tokens: TokenGuarantee = TokenGuarantee.EQUAL
    """How closely tokens agree between shapes of a run."""


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
        """Number of tokens that it predicts over."""

    @property
    def specials(self) -> frozenset[int]:
        """Ids that are never text: padding, start and end."""

    @property
    def capabilities(self) -> Capabilities:
        """What the runtime can do beyond these calls."""

    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder on sources, one list of ids a row."""

    def start(self, encoder_output: EncoderOutput) -> Rows:
        """Empty the cache for these sources and return each row's first tokens."""

    def forward(self, tokens: Rows) -> Step:
        """Append tokens to each row (none for an empty list) and predict what follows each of them."""

    def rewind(self, lengths: Sequence[int]) -> None:
        """Cut the cache of each row to `lengths[row]` tokens."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be kept twice or dropped."""


class BrokenLogitsError(RuntimeError):
    """A model gave NaN, +infinity, or no finite logit at all."""

    @classmethod
    def at(cls, model: str, step: int) -> BrokenLogitsError:
        """Return the error for this model and run."""
        return cls(f"the {model} model gave NaN, +infinity or no finite logit at step {step}")


def require_finite(logits: Tensor, model: str, step: int) -> None:
    """Raise `BrokenLogitsError` with model and step; -infinity is a legal mask and passes."""
    # The maximum alone tells: NaN and +infinity pass through it, and it is -infinity where no logit is finite.
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise BrokenLogitsError.at(model, step)


# Where the texts of two runtimes differ, and at which margin.

MARGIN_TOLERANCE = 1e-4
"""Top-2 logit margin below which two float32 runtimes may choose different tokens, since they sum in different orders."""


@dataclass(frozen=True)
class Mismatch:
    """The first position at which two texts differ."""

    example: int
    position: int
    margin: float
    """Top-2 logit margin of the model at that position."""


def first_mismatch(tokens: Sequence[int], expected: Sequence[int]) -> int | None:
    """The first position at which the texts differ, None for equal texts; a text that ends early differs at its end."""
    same = common_prefix(tokens, expected)
    return None if same == len(tokens) == len(expected) else same


def find_mismatches(decoder: Decoder, sources: Rows, texts: Rows, expected: Rows) -> list[Mismatch]:
    """The first mismatch of each text that differs from the expected one; a final end token is not compared.

    Args:
        decoder: The model that wrote the expected texts; its margins are reported.
        sources: Token ids of each source.
        texts: New tokens of each source.
        expected: New tokens of each source.
    """
    found = []
    for example, (source, *pair) in enumerate(zip(sources, texts, expected, strict=True)):
        text, other = (tokens[:-1] if tokens and tokens[-1] in decoder.end_tokens else tokens for tokens in pair)
        position = first_mismatch(text, other)
        if position is not None:
            found.append(Mismatch(example, position, top_two_margin(decoder, source, text[:position])))
    return found


def widest_margin(mismatches: Sequence[Mismatch]) -> float:
    """The widest margin; 0 for no mismatch."""
    return max((mismatch.margin for mismatch in mismatches), default=0.0)


@torch.inference_mode()
def top_two_margin(decoder: Decoder, source: list[int], prefix: Sequence[int]) -> float:
    """Difference between the model's two highest logits after `prefix`, the new tokens so far."""
    [start] = decoder.start(decoder.encode([source]))
    logits = decoder.forward([start + list(prefix)]).last([1])[0, 0]
    first, second = logits.float().topk(2).values.tolist()
    return float(first - second)
