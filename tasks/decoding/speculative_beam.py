"""Speculative beam search (SD, appendix A.4): several steps of the large model's beam search in each run of that model.

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
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.beam import Beam, PrefixCache, Ranked, Search, Tokens, candidates_per_beam, extended, predict, rank
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Generation

Levels = list[list[Beam]]
"""The beams that a draft began with, then those of each drafted step, best first."""
Predictions = dict[Tokens, Ranked]
"""The large model's ranked next tokens of each text."""


@dataclass(frozen=True)
class SpeculativeBeamSearch:
    """Beam search with the large model of a pair, for several sources at once; the small model drafts beams."""

    small: Decoder
    large: Decoder
    beams: int
    """w"""
    draft_beams: int
    """u, at least w."""
    draft_length: int
    """Steps drafted before each run of the large model."""
    shares_encoder: bool = False
    """Whether the small model uses the output of the large model's encoder."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one generation for each source, of at most `limit` tokens; nothing is sampled, so `examples` is not used."""
        large, small = PrefixCache(self.large), PrefixCache(self.small)
        encoder_output = self.large.encode(sources)
        starts = large.start(encoder_output)
        small.start(encoder_output if self.shares_encoder else self.small.encode(sources))
        if max(map(len, starts)) > 1:
            # A prompt is run once, before its row is copied for each branch.
            large.feed([tuple(start[:-1]) for start in starts])
        ends = self.large.end_tokens
        searches = [Search(index, start, self.beams, ends, limit) for index, start in enumerate(starts)]
        going = searches
        while going:
            drafts = self._draft(small, going)
            for search, levels, predictions in zip(going, drafts, self._verify(large, going, drafts), strict=True):
                _step(search, levels, predictions)
            going = [search for search in going if not search.over]
        return [search.generation() for search in searches]

    def _draft(self, small: PrefixCache, searches: list[Search]) -> list[Levels]:
        """1. Draft the small model's beams, level by level, but not the step at which the limit ends the text."""
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
