"""Beam search. The hypotheses of a source are rows of one decoder.

The output equals that of `transformers.generate(num_beams=w, do_sample=False, length_penalty=1.0, early_stopping=False)`:

1. A step extends each beam by every token. Candidates are ranked by the sum of the log-probabilities of their generated
   tokens under the model's own softmax (*scores*, untruncated).
2. Those of the w best candidates that end with an end token have ended. Their score is the sum divided by the number of
   generated tokens, the end token included. The w best ended texts so far are kept; candidates that end below rank w are
   dropped.
3. The w best candidates that have not ended are the next beams.
4. The search ends once w texts have ended and none of their scores is below the best beam's sum divided by its length. It
   also ends at the length limit, where all of the w best candidates count as ended.
5. The output is the ended text with the best score.

The first step has one beam. Tokens of probability zero are not candidates, so there may be fewer than w beams.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.generation import LARGE, Counts, Generation

Tokens = tuple[int, ...]
"""A text from its start token on."""
Ranked = list[tuple[float, int]]
"""Log-probability, in nats, and token: the likeliest next tokens of one prefix, best first."""


@dataclass(frozen=True)
class Beam:
    """A text and its score."""

    tokens: Tokens
    score: float
    """Sum of log-probabilities, in nats; for an ended text, divided by the number of generated tokens."""


class Search:
    """Beam search of one source; the caller supplies the model's predictions."""

    def __init__(self, source: int, start: list[int], width: int, end_tokens: frozenset[int], limit: int) -> None:
        """Begin at `start`; `width` is w, `limit` the most tokens to generate, `source` the number of the source."""
        self.source = source
        self.prompt = len(start)
        self.width = width
        self.end_tokens = end_tokens
        self.limit = limit
        self.beams = [Beam(tuple(start), 0.0)]
        """Best first."""
        self.ended: list[Beam] = []
        """At most w, best first."""
        self.generated = 0
        self.over = False
        self.counts = Counts()
        self.proposers = ""
        """One letter for each step."""

    def advance(self, ranked: Sequence[Ranked]) -> None:
        """Take one step, given the likeliest next tokens of each beam, `candidates_per_beam` of them or more."""
        self.generated += 1
        full = self.generated == self.limit
        going: list[Beam] = []
        for position, beam in enumerate(extended(self.beams, ranked)):
            ends = beam.tokens[-1] in self.end_tokens
            if position < self.width and (full or ends):
                self.ended.append(Beam(beam.tokens, beam.score / self.generated))
            if not ends:
                going.append(beam)
            if len(going) == self.width:
                break
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: self.width]
        self.beams = going
        self.over = full or not self.beams or self._beyond_reach()

    def _beyond_reach(self) -> bool:
        return len(self.ended) == self.width and self.beams[0].score / self.generated <= self.ended[-1].score

    def generation(self) -> Generation:
        """Return the best of the ended texts."""
        tokens = list(self.ended[0].tokens[self.prompt :])
        self.counts.tokens = len(tokens)
        return Generation(tokens, self.proposers[: len(tokens)], self.counts)


def extended(beams: Sequence[Beam], ranked: Sequence[Ranked]) -> Iterator[Beam]:
    """Yield each beam extended by each of its ranked tokens, best first; in a tie, the better beam's candidate first."""
    candidates = [
        (beam.score + score, beam.tokens, token) for beam, tokens in zip(beams, ranked, strict=True) for score, token in tokens
    ]
    for score, tokens, token in sorted(candidates, key=lambda candidate: -candidate[0]):
        yield Beam((*tokens, token), score)


def candidates_per_beam(width: int, end_tokens: frozenset[int]) -> int:
    """Return how many of a beam's next tokens can affect a step of this width: those that continue, and all end tokens."""
    return width + len(end_tokens)


def rank(logits: Tensor, count: int) -> list[Ranked]:
    """Return the `count` likeliest tokens of each row of logits (rows, vocabulary), without those of probability zero."""
    best = torch.log_softmax(logits.float(), dim=-1).topk(min(count, logits.shape[-1]))
    rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [[pair for pair in zip(*row, strict=True) if pair[0] > -math.inf] for row in rows]


class PrefixCache:
    """A decoder whose rows are selected by the texts that they continue."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._sources: list[int] = []
        self._held: list[Tokens] = []
        """The text that the cache holds in each row."""

    def start(self, encoder_output: EncoderOutput) -> Rows:
        """Create one empty row for each source, and return the first tokens of each."""
        starts = self.decoder.start(encoder_output)
        self._sources = list(range(len(starts)))
        self._held = [()] * len(starts)
        return starts

    def hold(self, sources: Sequence[int], texts: Sequence[Tokens]) -> None:
        """Make one row for each text of source `sources[row]`, reusing the longest cached prefix among the rows of that source.

        The last token is never kept in the cache, because the next run predicts what follows it. Unneeded rows are dropped.
        """
        rows = defaultdict(list)
        for row, source in enumerate(self._sources):
            rows[source].append(row)
        chosen, lengths = [], []
        for source, text in zip(sources, texts, strict=True):
            row, length = self._nearest(rows[source], text[:-1])
            chosen.append(row)
            lengths.append(length)
        self.decoder.reorder(chosen)
        self.decoder.rewind(lengths)
        self._sources = list(sources)
        self._held = [text[:length] for text, length in zip(texts, lengths, strict=True)]

    def _nearest(self, rows: Sequence[int], text: Tokens) -> tuple[int, int]:
        """Return the row that holds the longest prefix of a text, and the length of that prefix."""
        nearest, most = rows[0], 0
        for row in rows:
            length = _shared(self._held[row], text)
            if length > most:
                nearest, most = row, length
            if length == len(text):
                break
        return nearest, most

    def feed(self, texts: Sequence[Tokens]) -> Step:
        """Run the decoder on the part of each text that its row does not hold yet."""
        step = self.decoder.forward([list(text[len(held) :]) for text, held in zip(texts, self._held, strict=True)])
        self._held = list(texts)
        return step


def _shared(one: Tokens, other: Tokens) -> int:
    """Return the length of the common prefix."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])


def predict(cache: PrefixCache, sources: Sequence[int], groups: Sequence[Sequence[Beam]], count: int) -> list[list[Ranked]]:
    """Predict the `count` likeliest next tokens of each beam of each source, in one run."""
    texts = [beam.tokens for group in groups for beam in group]
    cache.hold([source for source, group in zip(sources, groups, strict=True) for _ in group], texts)
    ranked = iter(rank(cache.feed(texts).last([1] * len(texts))[:, 0], count))
    return [[next(ranked) for _ in group] for group in groups]


@dataclass(frozen=True)
class BeamSearch:
    """Beam search with one model, for several sources at once.

    Counts: one large call for each step, which verifies as many positions as there are beams.
    """

    model: Decoder
    beams: int
    """w"""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one generation for each source, of at most `limit` tokens; nothing is sampled, so `examples` is not used."""
        cache = PrefixCache(self.model)
        starts = cache.start(self.model.encode(sources))
        ends = self.model.end_tokens
        searches = [Search(index, start, self.beams, ends, limit) for index, start in enumerate(starts)]
        going = searches
        while going:
            owners, groups = [search.source for search in going], [search.beams for search in going]
            for search, ranked in zip(
                going, predict(cache, owners, groups, candidates_per_beam(self.beams, ends)), strict=True
            ):
                search.counts.large_calls += 1
                search.counts.verified[len(search.beams)] += 1
                search.proposers += LARGE
                search.advance(ranked)
            going = [search for search in going if not search.over]
        return [search.generation() for search in searches]
