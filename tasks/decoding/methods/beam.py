"""Beam search with the large model, and speculative beam search (Leviathan et al., 2023, appendix A.4).

The hypotheses of a source are rows of one decoder. The output of `BeamSearch` equals that of
`transformers.generate(num_beams=w, do_sample=False, length_penalty=1.0, early_stopping=False)`:

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

Speculative beam search takes several steps of the large model's beam search in each run of that model:

1. The small model continues the large model's w beams with beam width u ≥ w, for `draft_length` steps. It starts from the
   large model's own sums and drafts no ended texts: the prediction for a beam already says which of its texts end.
2. One run of the large model predicts the next token of each of those beams and of each drafted beam.
3. The large model's own search (`beam.Search`) advances on those predictions. A drafted step is accepted while the w beams
   that it continues with are among the u drafted, top_w(p) ⊆ top_u(q): their predictions are then known, and the next step
   needs no run. The first rejected step ends the turn; a fully accepted draft is followed by one more step.

A wider draft need not contain a narrower one, since its additional beams have continuations too; with u = w, a drafter that
agrees with the large model is always accepted.

The search reads only the large model's predictions for its own beams, so the output is exactly that model's. The paper's
elaborate variant keeps drafted beams that are better than the large model's own; its output differs, and it is left out.

Counts are those of one search, where a step covers all beams: `drafted` and `accepted` count drafted steps, `small_steps`
runs of the small model, `rollbacks` turns that ended at a step with a beam that was not drafted. `verified` counts the
candidates that a run checks, w + u · draft_length. The decoder's rows are whole branches of the draft, so a prefix that two
branches share is computed in both. If the large model continues a branch that the draft had dropped, the small model's
next run computes the missing part. Each step has one letter, which is the proposer of every text's token at that step: s if
the step was accepted, c if it was rejected, l if nothing was drafted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.method import DecodingMethod, Pair, Request, method
from tasks.models.prompting import common_prefix
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step

Tokens = tuple[int, ...]
"""A text from its start token on."""
Ranked = list[tuple[float, int]]
"""Log-probability, in nats, and token: the top next tokens of one prefix, best first."""

Levels = list[list["Beam"]]
"""The beams that a draft began with, then those of each drafted step, best first."""
Predictions = dict[Tokens, Ranked]
"""The large model's ranked next tokens of each text."""


@settings
class BeamSettings:
    """Beam search with the large model alone."""

    beams: int = setting("w: number of beams.", default=4, ge=1, le=64)


@settings
class SpeculativeBeamSettings(BeamSettings):
    """Speculative beam search: identical to beam search with the large model (SD, A.4)."""

    draft_beams: int = setting("u: beams that the small model drafts, at least `beams`.", default=6, ge=1, le=64)
    draft_length: int = setting("Tokens drafted before each run of the large model.", default=3, unit="tokens", ge=1, le=64)

    def validate(self) -> None:
        if self.draft_beams < self.beams:
            raise ValueError(f"draft_beams is {self.draft_beams}; it must be at least beams, {self.beams}")


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
        """Take one step, given the top next tokens of each beam, `candidates_per_beam` of them or more."""
        self.generated += 1
        full = self.generated == self.limit
        going: list[Beam] = []
        # 1. and 2. Candidates, best first; of the w best those with an end token have ended.
        for position, beam in enumerate(extended(self.beams, ranked)):
            ends = beam.tokens[-1] in self.end_tokens
            if position < self.width and (full or ends):
                self.ended.append(Beam(beam.tokens, beam.score / self.generated))
            if not ends:
                going.append(beam)
            if len(going) == self.width:
                break
        # 3. and 4. The next beams, and whether any of them can still win.
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: self.width]
        self.beams = going
        enough = len(self.ended) == self.width
        self.over = full or not going or (enough and going[0].score / self.generated <= self.ended[-1].score)

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
    """Return the top `count` tokens of each row of logits (rows, vocabulary), without those of probability zero."""
    import torch

    top = torch.log_softmax(logits.float(), dim=-1).topk(min(count, logits.shape[-1]))  # (rows, count)
    rows = zip(top.values.tolist(), top.indices.tolist(), strict=True)
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
        # One cached prefix for each text; two texts may continue the same row.
        for source, text in zip(sources, texts, strict=True):
            row, length = self._nearest(rows[source], text[:-1])
            chosen.append(row)
            lengths.append(length)
        # One row for each text, on the cached prefix that is nearest to it.
        self.decoder.reorder(chosen)
        self.decoder.rewind(lengths)
        self._sources = list(sources)
        self._held = [text[:length] for text, length in zip(texts, lengths, strict=True)]

    def _nearest(self, rows: Sequence[int], text: Tokens) -> tuple[int, int]:
        """Return the row that holds the longest prefix of a text, and the length of that prefix."""
        nearest, most = rows[0], 0
        for row in rows:
            length = common_prefix(self._held[row], text)
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


def predict(cache: PrefixCache, sources: Sequence[int], groups: Sequence[Sequence[Beam]], count: int) -> list[list[Ranked]]:
    """Predict the top `count` next tokens of each beam of each source, in one run."""
    # The beams of all sources are rows of one run.
    texts = [beam.tokens for group in groups for beam in group]
    cache.hold([source for source, group in zip(sources, groups, strict=True) for _ in group], texts)
    ranked = iter(rank(cache.feed(texts).last([1] * len(texts))[:, 0], count))
    return [[next(ranked) for _ in group] for group in groups]


@dataclass(frozen=True)
class BeamSearch:
    """Beam search with a large model, for several sources at once, in which a small model may draft beams.

    Without a small model each run of the large one is a step, which verifies as many positions as there are beams.
    """

    large: Decoder
    beams: int
    """w"""
    small: Decoder | None = None
    draft_beams: int = 0
    """u, at least w."""
    draft_length: int = 0
    """Steps drafted before each run of the large model."""
    shares_encoder: bool = False
    """Whether the small model uses the output of the large model's encoder."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one generation for each source, of at most `limit` tokens; nothing is sampled, so `examples` is not used."""
        large, small = PrefixCache(self.large), None if self.small is None else PrefixCache(self.small)
        encoder_output = self.large.encode(sources)
        starts = large.start(encoder_output)
        if small is not None:
            small.start(encoder_output if self.shares_encoder else small.decoder.encode(sources))
            if max(map(len, starts)) > 1:
                # A prompt is run once, before its row is copied for each branch.
                large.feed([tuple(start[:-1]) for start in starts])
        ends = self.large.end_tokens
        searches = [Search(index, start, self.beams, ends, limit) for index, start in enumerate(starts)]
        going = searches
        while going:
            # 1. Draft; 2. verify all drafts in one run; 3. advance each search.
            drafts = [[search.beams] for search in going] if small is None else self._draft(small, going)
            for search, levels, predictions in zip(going, drafts, self._verify(large, going, drafts), strict=True):
                _step(search, levels, predictions)
            going = [search for search in going if not search.over]
        return [search.generation() for search in searches]

    def _draft(self, small: PrefixCache, searches: list[Search]) -> list[Levels]:
        """1. Draft the small model's beams, level by level, but not the step at which the limit ends the text."""
        # The token at the limit ends every text, so that nothing is drafted for it.
        budgets = [min(self.draft_length, search.limit - search.generated - 1) for search in searches]
        drafts = [[search.beams] for search in searches]
        owners = [search.source for search in searches]
        count = candidates_per_beam(self.draft_beams, self.large.end_tokens)
        for depth in range(max(budgets)):
            predicted = predict(small, owners, [levels[-1] for levels in drafts], count)
            # The last beams of a shorter draft stay in the batch, so that the small model keeps their rows.
            for search, budget, levels, ranked in zip(searches, budgets, drafts, predicted, strict=True):
                if depth < budget and len(levels) == depth + 1:
                    search.counts.small_steps += 1
                    going = (beam for beam in extended(levels[-1], ranked) if beam.tokens[-1] not in search.end_tokens)
                    level = list(itertools.islice(going, self.draft_beams))
                    levels += [level] if level else []
        return drafts

    def _verify(self, large: PrefixCache, searches: list[Search], drafts: list[Levels]) -> list[Predictions]:
        """2. Run the large model once over every branch of every draft."""
        branches = [_branches(levels) for levels in drafts]
        owners = [search.source for search, texts in zip(searches, branches, strict=True) for _ in texts]
        known = [search.prompt + search.generated for search, texts in zip(searches, branches, strict=True) for _ in texts]
        texts = list(itertools.chain(*branches))
        # The cache keeps the text so far; each branch is run from its first drafted token on.
        large.hold(owners, [text[:length] for text, length in zip(texts, known, strict=True)])
        step = large.feed(texts)
        # Each candidate is read once, however many branches contain it.
        cells = {
            (owner, text[:end]): (row, step.lengths[row] - 1 - len(text) + end)
            for row, (owner, text, length) in enumerate(zip(owners, texts, known, strict=True))
            for end in range(length, len(text) + 1)
        }
        rows, columns = zip(*cells.values(), strict=True)
        found: dict[int, Predictions] = {search.source: {} for search in searches}
        count = candidates_per_beam(self.beams, self.large.end_tokens)
        for (owner, text), ranked in zip(cells, rank(step.logits[list(rows), list(columns)], count), strict=True):
            found[owner][text] = ranked
        return list(found.values())


def _branches(levels: Levels) -> list[Tokens]:
    """Return the texts that no drafted text continues; all others are prefixes of them."""
    continued = {beam.tokens[:-1] for level in levels[1:] for beam in level}
    return [beam.tokens for level in levels for beam in level if beam.tokens not in continued]


def _step(search: Search, levels: Levels, predictions: Predictions) -> None:
    """3. Advance the large model's search while the predictions for its beams are known."""
    counts, drafted = search.counts, len(levels) - 1
    counts.large_calls += 1
    counts.verified[len(predictions)] += 1
    counts.drafted += drafted
    for depth in range(drafted + 1):
        search.advance([predictions[beam.tokens] for beam in search.beams])
        # A step is accepted where the large model's own next beams were all drafted.
        if depth == drafted:
            search.proposers += LARGE
        elif all(beam.tokens in predictions for beam in search.beams):
            counts.accepted += 1
            search.proposers += SMALL
        else:
            counts.rollbacks += 1
            search.proposers += CORRECTED
            return
        if search.over:
            return


@method("beam_large", BeamSettings, "beam search with the large model alone", lossless=True, greedy_only=True, large_only=True)
def beam_large(pair: Pair, settings: BeamSettings, request: Request) -> DecodingMethod:
    return BeamSearch(pair.large, settings.beams)


@method("speculative_beam", SpeculativeBeamSettings, "Leviathan et al., 2023, appendix A.4", lossless=True, greedy_only=True)
def speculative_beam(pair: Pair, settings: SpeculativeBeamSettings, request: Request) -> DecodingMethod:
    return BeamSearch(pair.large, settings.beams, pair.small, settings.draft_beams, settings.draft_length, pair.shares_encoder)
