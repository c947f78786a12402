"""A small model with another tokenizer (Timor et al., 2025, arXiv 2502.05202): as a model of the large one's tokens, and as
drafter.

TLI, token-level intersection: `TranslatedDecoder` predicts the tokens that both vocabularies have. SLEM, string-level exact
match: `RetokenizedDrafter` tokenises the small model's text as the large model does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tasks.decoding.decoder import Capabilities, Decoder, EncoderOutput, Rows, Step
from tasks.decoding.drafters.look_ups import DeterministicDrafter
from tasks.decoding.method import SamplingSettings
from tasks.errors import InputError
from tasks.models.prompting import SourceDecoder, SourceEncoder
from tasks.models.pruned_head import spread
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import ByteEncoder, token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTEXT = 8
"""Tokens before a draft with which its text is tokenised."""


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
        self.capabilities = Capabilities(step_bytes=can.step_bytes, tokens=can.tokens)
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
        # A row begins with its prompt, or with start tokens where there is an encoder.
        rows = [list(self._begin if encoder_output.prompts is None else source) for source in encoder_output.sources]
        self._firsts = [_spread_over(len(row), theirs) for row, theirs in zip(rows, written, strict=True)]
        # Nothing is cached yet, in either model's tokens.
        self._ends = [[] for _ in rows]
        self._count()
        return rows

    def forward(self, tokens: Rows) -> Step:
        step, columns = self.feed(tokens)
        if step is None:
            return Step(torch.empty(len(tokens), 0, self.vocabulary), [0] * len(tokens))
        # Predictions of the large model's tokens alone: (rows, most, the small model's vocabulary).
        read = [[column for column in row if column >= 0] for row in columns]
        most = max(map(len, read))
        logits = step.logits
        index = torch.tensor([row + [0] * (most - len(row)) for row in read], dtype=torch.long, device=logits.device)
        logits = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
        ours, theirs = (ids.to(logits.device) for ids in (self._ours, self._theirs))
        # The probabilities of common tokens at their places; -infinity elsewhere, which renormalises them.
        return Step(spread(logits[..., theirs], ours, self.vocabulary), [len(row) for row in read])

    def feed(self, tokens: Rows) -> tuple[Step | None, Rows]:
        """Append tokens to each row and run the model.

        Returns:
            The model's predictions in its own tokens, none where nothing was fed; for each row and new token, their column
            that predicts what follows it, negative inside a prompt.
        """
        fed: Rows = []
        counts: Rows = []
        for row, new in enumerate(tokens):
            # Each token of the large model as tokens of the small one.
            written = list(self._written(row, new))
            fed.append([token for one in written for token in one])
            counts.append(list(itertools.accumulate(map(len, written))))
        self._require_room(fed)
        step = self.inner.forward(fed) if any(fed) else None
        for ends, added in zip(self._ends, counts, strict=True):
            # Where each of the large model's tokens ends in the small model's cache.
            before = ends[-1] if ends else 0
            ends += [before + count for count in added]
        self._count()
        given = [0] * len(fed) if step is None else step.lengths
        columns = [
            [count - 1 - (len(new) - known) for count in added] for new, known, added in zip(fed, given, counts, strict=True)
        ]
        return step, columns

    def rewind(self, lengths: Sequence[int]) -> None:
        for ends, kept in zip(self._ends, lengths, strict=True):
            del ends[kept:]
        # To where the last kept token ends in the small model's cache.
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


def translation_between(
    small: PreTrainedTokenizerBase, large: PreTrainedTokenizerBase, ends: tuple[int, int], text: TextSettings
) -> Translation:
    """Return how the large model's tokens are written with the small model's.

    Args:
        small: The small model's tokenizer.
        large: The large model's.
        ends: The token that ends a text, of the small model and of the large one.
        text: How sources are put to a model.

    Raises:
        InputError: a tokenizer is of an unknown kind, or no token stands for the same text in both.
    """
    theirs, ours = token_bytes(small), token_bytes(large)
    encode_bytes = ByteEncoder(theirs, small.unk_token_id if small.unk_token_id is not None else ends[0])
    found = ((token, encode_bytes.token(spelled)) for token, spelled in enumerate(ours) if spelled)
    common = {token: same for token, same in found if same is not None}
    if not common:
        raise InputError("no token stands for the same text in the tokenizers of both models; take another small model")
    # Both end tokens are special and have no bytes to compare.
    common[ends[1]] = ends[0]
    read, write = SourceDecoder(large, text), SourceEncoder(small, text)

    @functools.cache
    def spell(token: int) -> tuple[int, ...]:
        return tuple(encode_bytes(ours[token] if token < len(ours) else b""))

    def sources(rows: Rows) -> Rows:
        return write(read(rows))

    retokenizer = Retokenizer(large, theirs, ours, ends)
    return Translation(common, lambda token: list(spell(token)), sources, retokenizer)


class Retokenizer:
    """Writes the small model's tokens as the large model's tokenizer splits their text."""

    def __init__(self, large: PreTrainedTokenizerBase, theirs: list[bytes], ours: list[bytes], ends: tuple[int, int]) -> None:
        self._large, self._theirs, self._ours, self._ends = large, theirs, ours, ends
        self._encode_bytes = ByteEncoder(ours, ends[1])

    def __call__(self, text: list[int], drafted: list[int]) -> list[int]:
        """Return the large model's tokens for a draft behind a text.

        The last tokens of the text are tokenised with the draft. Where the tokenizer would then split these otherwise, the
        draft is spelled with the fewest tokens.
        """
        ended = drafted[-1:] == [self._ends[0]]
        spelled = b"".join(self._theirs[token] for token in drafted if token < len(self._theirs))
        end = [self._ends[1]] if ended else []
        if not spelled:
            return end
        # Tokenise with as much context as keeps its own tokens.
        for count in range(min(_CONTEXT, len(text)), -1, -1):
            kept = text[len(text) - count :]
            if all(token < len(self._ours) and self._ours[token] for token in kept):
                whole = b"".join(self._ours[token] for token in kept) + spelled
                found = self._tokens(whole.decode(errors="ignore"))
                if found is not None and found[:count] == kept:
                    return found[count:] + end
        # No context keeps its tokens: spell the draft by itself.
        return self._encode_bytes(spelled) + end

    def _tokens(self, text: str) -> list[int] | None:
        """Return the tokens of a text; none where the tokenizer adds a space, as SentencePiece does inside a word."""
        for written in (text.removeprefix(" "), text):
            tokens: list[int] = self._large(written, add_special_tokens=False, verbose=False)["input_ids"]
            if b"".join(self._ours[token] for token in tokens).decode(errors="ignore") == text:
                return tokens
        return None


class RetokenizedDrafter(DeterministicDrafter):
    """Lets the small model write in its own tokens, all of them, and tokenises their text as the large model does.

    String-level exact match: what the large model writes is kept as long as it is the proposed tokens, which is to accept a
    proposed x with probability p(x). Readings taken: the small model takes its argmax tokens also when sampling, since the
    proposal has no probability that could make up for a draw; and it writes as many of its tokens as may be drafted, of whose
    text as many of the large model's are proposed.
    """

    def __init__(self, small: Decoder, target: Decoder, sampling: SamplingSettings) -> None:
        """Raise `InputError` where both models have one tokenizer."""
        super().__init__(target, sampling)
        if not isinstance(small, TranslatedDecoder):
            raise InputError(
                "the drafter retokenized is for a small model with a tokenizer of its own, but both models have one; take the "
                "drafter small"
            )
        self.small = small

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.small.start(self.small.encode(sources))

    def proposals(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int]) -> tuple[Rows, list[int]]:
        written = self._write(tokens, budgets)
        drafted: Rows = []
        for text, new, budget in zip(tokens, written, budgets, strict=True):
            # As many of the large model's tokens as the draft may have, up to the first that ends a text.
            found = self.small.translation.retokenize(text, new)[:budget] if new else []
            ends = (place for place, token in enumerate(found) if token in self.end_tokens)
            drafted.append(found[: next(ends, len(found)) + 1])
        return drafted, [len(new) for new in written]

    def _write(self, tokens: Rows, budgets: Sequence[int]) -> Rows:
        """Return what the small model writes behind each row, in its own tokens, and leave its cache without that."""
        small, inner = self.small, self.small.inner
        written: Rows = [[] for _ in tokens]
        going = [budget > 0 for budget in budgets]
        # 1. Feed what the small model has not read of each text.
        fed = [text[cached:] if on else [] for text, cached, on in zip(tokens, small.lengths, going, strict=True)]
        step = small.feed(fed)[0] if any(going) else None
        while step is not None and any(going):
            # 2. Its own argmax tokens, one a run, up to the budget or its end token.
            argmax = step.last([1] * len(tokens))[:, 0].argmax(-1).tolist()
            for row, token in enumerate(argmax):
                if going[row]:
                    written[row].append(token)
                    going[row] = token not in inner.end_tokens and len(written[row]) < budgets[row]
            if any(going):
                step = inner.forward([new[-1:] if on else [] for new, on in zip(written, going, strict=True)])
        # The draft leaves the cache: what is kept of it comes back in the large model's tokens.
        small.rewind(small.lengths)
        return written

    def reorder(self, rows: Sequence[int]) -> None:
        self.small.reorder(rows)
