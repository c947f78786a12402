"""Beam search: the second loop. The hypotheses of a source are rows of one decoder.

It gives what `transformers.generate(num_beams=w, do_sample=False, length_penalty=1.0, early_stopping=False)` gives:

1. A step grows each beam by every token. Candidates are ranked by the sum of the log-probabilities of their generated
   tokens under the model's own softmax (*scores*, untruncated).
2. Those of the w best that put an end token have ended. Their score is the sum over the number of generated tokens, the
   end token included; the w best scores so far are remembered. What ends further down is dropped.
3. The w best that have not ended are the next beams.
4. The search is over once w texts have ended and no score of them is under the best beam's sum over its length, and at the
   length limit, where all of the w best candidates count as ended.
5. The ended text of the best score is the output.

The first step has one beam. Tokens of probability zero are no candidates, so that there may be fewer than w beams.
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
    """A text and how likely it is."""

    tokens: Tokens
    score: float
    """Sum of log-probabilities, in nats; of an ended text, over the number of its generated tokens."""


class Search:
    """Beam search of one source, which is given the model's predictions."""

    def __init__(self, source: int, start: list[int], width: int, end_tokens: frozenset[int], limit: int) -> None:
        """Begin at `start`; `width` is w, `limit` the most tokens to generate; `source` is its number."""
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
        """One letter a step."""

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
        """The best of the ended texts."""
        tokens = list(self.ended[0].tokens[self.prompt :])
        self.counts.tokens = len(tokens)
        return Generation(tokens, self.proposers[: len(tokens)], self.counts)


def extended(beams: Sequence[Beam], ranked: Sequence[Ranked]) -> Iterator[Beam]:
    """Each beam grown by each of its ranked tokens, best first; of equals, the better beam's first."""
    candidates = [
        (beam.score + score, beam.tokens, token) for beam, tokens in zip(beams, ranked, strict=True) for score, token in tokens
    ]
    for score, tokens, token in sorted(candidates, key=lambda candidate: -candidate[0]):
        yield Beam((*tokens, token), score)


def candidates_per_beam(width: int, end_tokens: frozenset[int]) -> int:
    """How many of a beam's next tokens can matter to a step of this width: what goes on, and what ends above that."""
    return width + len(end_tokens)


def rank(logits: Tensor, count: int) -> list[Ranked]:
    """The `count` likeliest tokens of each row of logits (rows, vocabulary), those of probability zero left out."""
    best = torch.log_softmax(logits.float(), dim=-1).topk(min(count, logits.shape[-1]))
    rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [[pair for pair in zip(*row, strict=True) if pair[0] > -math.inf] for row in rows]


class PrefixCache:
    """A decoder whose rows are chosen by the texts that they are to continue."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._sources: list[int] = []
        self._held: list[Tokens] = []
        """What the cache holds in each row."""

    def start(self, encoder_output: EncoderOutput) -> Rows:
        """One empty row a source; gives their first tokens."""
        starts = self.decoder.start(encoder_output)
        self._sources = list(range(len(starts)))
        self._held = [()] * len(starts)
        return starts

    def hold(self, sources: Sequence[int], texts: Sequence[Tokens]) -> None:
        """Makes one row for each text of source `sources[row]`, with as much of it cached as a row of that source has.

        The last token is never held, since what follows it is to be predicted. Rows that no text needs are dropped.
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
        """Which of `rows` holds most of a text, and how much."""
        nearest, most = rows[0], 0
        for row in rows:
            length = _shared(self._held[row], text)
            if length > most:
                nearest, most = row, length
            if length == len(text):
                break
        return nearest, most

    def feed(self, texts: Sequence[Tokens]) -> Step:
        """Runs the decoder over what each row lacks of its text, which begins with what the row holds."""
        step = self.decoder.forward([list(text[len(held) :]) for text, held in zip(texts, self._held, strict=True)])
        self._held = list(texts)
        return step


def _shared(one: Tokens, other: Tokens) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])


def predict(cache: PrefixCache, sources: Sequence[int], groups: Sequence[Sequence[Beam]], count: int) -> list[list[Ranked]]:
    """What follows each beam of each source, in one run: the `count` likeliest tokens."""
    texts = [beam.tokens for group in groups for beam in group]
    cache.hold([source for source, group in zip(sources, groups, strict=True) for _ in group], texts)
    ranked = iter(rank(cache.feed(texts).last([1] * len(texts))[:, 0], count))
    return [[next(ranked) for _ in group] for group in groups]


@dataclass(frozen=True)
class BeamSearch:
    """Beam search with one model, sources side by side.

    Counts: one large call a step, which verifies as many positions as there are beams.
    """

    model: Decoder
    beams: int
    """w"""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """One generation a source, each of at most `limit` tokens; nothing is drawn, so `examples` is not read."""
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
