"""A small model with another tokenizer as a model of the large one's tokens (Timor et al., 2025, arXiv 2502.05202: TLI)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tasks.decoding.decoder import Capabilities, Decoder, EncoderOutput, Rows, Step
from tasks.errors import InputError
from tasks.models.pruned_head import spread


@dataclass(frozen=True)
class Translation:
    """How the large model's tokens are written with those of a small model that has another tokenizer."""

    common: Mapping[int, int]
    """The small model's id of each token that both vocabularies have, by the large model's; the end token among them."""
    spell: Callable[[int], list[int]]
    """The small model's ids, at least one, for a token that only the large model has."""
    sources: Callable[[Rows], Rows]
    """From sources as the large model reads them to sources as the small model reads them."""
    retokenize: Callable[[list[int], list[int]], list[int]]
    """(text so far, in the large model's tokens; draft behind it, in the small model's) to the draft in the large model's."""

    def written(self, token: int) -> list[int]:
        """Return the small model's ids for a token of the large one."""
        found = self.common.get(token)
        return self.spell(token) if found is None else [found]


@dataclass(frozen=True)
class TranslatedSources(EncoderOutput):
    """What the small model encoded, and the sources as the large model reads them."""

    sources: Rows = field(default_factory=list)


@dataclass(frozen=True)
class FedTokens:
    """A run of the small model on tokens of the large one."""

    step: Step | None
    """Its predictions, in its own tokens; none where nothing was fed."""
    columns: Rows
    """For each row and token, the position of `step` that predicts what follows it; negative inside a prompt."""


class TranslatedDecoder:
    """A `Decoder` over the large model's tokens whose model has another tokenizer.

    Token-level intersection: it predicts the tokens that both vocabularies have, with the probabilities that the model gives
    them, renormalised; all others have the logit -infinity. Whatever verifies drafts exactly stays exact. Each token that it
    is fed is written with the model's own: a common one as it is, another one with the fewest tokens of the same bytes. The
    first tokens of a row, a prompt or a start token, are those that the model itself starts with. The paper leaves open how
    the text so far is written for the drafter; token by token, nothing cached is ever written anew.
    """

    def __init__(
        self, inner: Decoder, large: Decoder, translation: Translation, begin: Sequence[int], positions: int | None = None
    ) -> None:
        """Take the model in its own tokens.

        Args:
            inner: The small model.
            large: The large model, for its vocabulary, end token and special tokens.
            translation: Between the two vocabularies.
            begin: Tokens that every output of the large model begins with; none without an encoder.
            positions: Most tokens of a row that the small model takes; none: any number.
        """
        self.inner, self.translation = inner, translation
        self.name, self.vocabulary, self.specials = inner.name, large.vocabulary, large.specials
        self.end_token = large.end_token
        self.end_tokens = frozenset((large.end_token,))
        can = inner.capabilities
        self.capabilities = Capabilities(step_bytes=can.step_bytes, weight_bytes=can.weight_bytes, tokens=can.tokens)
        self._begin, self._positions = list(begin), positions
        self._ours, self._theirs = (torch.tensor(ids) for ids in zip(*translation.common.items(), strict=True))
        self._firsts: list[Rows] = []
        """For each of a row's first tokens, the small model's that stand for it."""
        self._ends: list[list[int]] = []
        """For each cached token, how many of the small model's are cached with it."""
        self.lengths: list[int] = []
        """Cached tokens of each row, in the large model's tokens."""

    def encode(self, sources: Rows) -> TranslatedSources:
        found = self.inner.encode(self.translation.sources(sources))
        return TranslatedSources(found.hidden, found.mask, found.prompts, sources)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        if not isinstance(encoder_output, TranslatedSources):
            raise ValueError(f"the {self.name} model has a tokenizer of its own; it starts from what it encoded itself")
        written = self.inner.start(encoder_output)
        rows = [list(self._begin if encoder_output.prompts is None else source) for source in encoder_output.sources]
        self._firsts = [_spread_over(len(row), theirs) for row, theirs in zip(rows, written, strict=True)]
        self._ends = [[] for _ in rows]
        self._count()
        return rows

    def forward(self, tokens: Rows) -> Step:
        fed = self.feed(tokens)
        if fed.step is None:
            return Step(torch.empty(len(tokens), 0, self.vocabulary), [0] * len(tokens))
        read = [[column for column in row if column >= 0] for row in fed.columns]
        most = max(map(len, read))
        logits = fed.step.logits
        index = torch.tensor([row + [0] * (most - len(row)) for row in read], dtype=torch.long, device=logits.device)
        logits = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
        ours, theirs = (ids.to(logits.device) for ids in (self._ours, self._theirs))
        return Step(spread(logits[..., theirs], ours, self.vocabulary), [len(row) for row in read])

    def feed(self, tokens: Rows) -> FedTokens:
        """Append tokens to each row and return the model's run, in its own tokens."""
        fed: Rows = []
        counts: Rows = []
        for row, new in enumerate(tokens):
            written = list(self._written(row, new))
            fed.append([token for one in written for token in one])
            counts.append(list(itertools.accumulate(map(len, written))))
        self._require_room(fed)
        step = self.inner.forward(fed) if any(fed) else None
        for ends, added in zip(self._ends, counts, strict=True):
            before = ends[-1] if ends else 0
            ends += [before + count for count in added]
        self._count()
        given = [0] * len(fed) if step is None else step.lengths
        columns = [
            [count - 1 - (len(new) - known) for count in added] for new, known, added in zip(fed, given, counts, strict=True)
        ]
        return FedTokens(step, columns)

    def rewind(self, lengths: Sequence[int]) -> None:
        for ends, kept in zip(self._ends, lengths, strict=True):
            del ends[kept:]
        self.inner.rewind([ends[-1] if ends else 0 for ends in self._ends])
        self._count()

    def reorder(self, rows: Sequence[int]) -> None:
        self.inner.reorder(rows)
        self._firsts = [self._firsts[row] for row in rows]
        self._ends = [list(self._ends[row]) for row in rows]
        self._count()

    def _count(self) -> None:
        self.lengths = [len(ends) for ends in self._ends]

    def _written(self, row: int, new: list[int]) -> Iterator[list[int]]:
        """Yield the small model's tokens for each new token of a row."""
        firsts, cached = self._firsts[row], len(self._ends[row])
        for position, token in enumerate(new, start=cached):
            yield firsts[position] if position < len(firsts) else self.translation.written(token)

    def _require_room(self, fed: Rows) -> None:
        if self._positions is None:
            return
        longest = max((ends[-1] if ends else 0) + len(new) for ends, new in zip(self._ends, fed, strict=True))
        if longest > self._positions:
            raise InputError(
                f"the {self.name} model has {self._positions} positions, but a text has {longest} of its tokens; lower "
                "text.max_source_tokens and max_target_tokens, or take another small model"
            )


def _spread_over(places: int, tokens: list[int]) -> Rows:
    """Return the tokens that stand for each of so many first ones: the last one for the last, all others for the first."""
    if places == 1:
        return [tokens]
    return [tokens[:-1], *([] for _ in range(places - 2)), tokens[-1:]]
