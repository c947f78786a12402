"""The loop on noted readings: one row, greedy, numbers in place of tensors.

`loop.generate` is the definition. This goes through the same turns, by the same rules (`AcceptanceRule.stays`) and draft rules,
and gives the same tokens, proposers and counts; tests hold the two together. It is a loop of its own because going over known
numbers takes a hundredth of the time of a model's run, and as little as that of a tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.decoding.decoder import EncoderOutput
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafters.base import ModelDrafter, NoDrafter
from tasks.decoding.drafting import DraftBuilder
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.replay import prefix_trie
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.prefix_trie import TrieNode
from tasks.decoding.token_statistics import CachedStatistics, TokenStatistics


class NotReplayableError(RuntimeError):
    """A method needs more than noted readings: it has to be decoded."""


@dataclass(slots=True)
class _Draft:
    tokens: list[int]
    readings: Sequence[TokenStatistics]
    """The drafter's, of the position of each token."""
    fallback: bool
    steps: int
    places: list[TrieNode]
    """Before the draft, and after each of its tokens."""
    p: list[CachedStatistics] = field(default_factory=list)
    """The target's readings at the first of them, as far as they were asked for."""


@dataclass(slots=True)
class Replayer:
    """One method on one row."""

    method: SpeculativeLoop
    cache: PredictionCache
    side: int
    """Whose the target is: `prefix_trie.LARGE_MODEL`, or `prefix_trie.SMALL_MODEL` for the small model alone."""
    example: int
    limit: int
    place: TrieNode
    tokens: list[int] = field(default_factory=list)
    proposers: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    log_probabilities: list[float] = field(default_factory=list)

    def replay(self) -> Generation:
        """All turns, as `loop.generate` takes them."""
        ends, unverified = self.method.target.end_tokens, self.method.draft_rule.ends_unverified
        while True:
            draft = self._draft()
            new = draft.tokens
            if unverified and new and (new[-1] in ends or len(self.tokens) + len(new) == self.limit):
                self._keep(new, self.place)
                break
            self._verify(draft)
            if self.tokens[-1] in ends or len(self.tokens) >= self.limit:
                break
        self.counts.tokens = len(self.tokens)
        return Generation(self.tokens, "".join(self.proposers), self.counts, self.log_probabilities)

    def _draft(self) -> _Draft:
        """1. The drafter proposes; a model's draft is the same for every method with the same draft rule."""
        rule, generated = self.method.draft_rule, len(self.tokens)
        budget = rule.budget(self.counts, generated, self.method.room(generated, self.limit))
        if isinstance(self.method.drafter, ModelDrafter):
            key = (self.side, rule.fallback_threshold, rule.stop_below, budget)
            draft = self.place.drafts.get(key)
            if draft is None:
                draft = self.place.drafts[key] = self._until_end(*self._by_model(self.method.drafter, budget))
        else:
            draft = self._until_end(*self._by_look_up(budget))
        self.counts.small_steps += draft.steps
        self.counts.drafted += len(draft.tokens)
        self.counts.fallbacks += draft.fallback
        return draft

    def _by_model(self, drafter: ModelDrafter, budget: int) -> tuple[list[int], Sequence[TokenStatistics], bool, int]:
        """Tokens, the drafter's readings, whether it fell back, and its runs."""
        window, place = DraftBuilder(budget, self.method.draft_rule, drafter.end_tokens), self.place
        seen: list[CachedStatistics] = []
        while window.going:
            reading = place.statistics[prefix_trie.SMALL_MODEL] or self.cache.continued(
                prefix_trie.SMALL_MODEL, place, budget - len(seen)
            )
            seen.append(reading)
            window.see(reading.best, reading.top)
            place = place.step(reading.best)
        return window.tokens, seen, window.fallback, window.seen

    def _by_look_up(self, budget: int) -> tuple[list[int], Sequence[TokenStatistics], bool, int]:
        """The same of a drafter that is no model, or of none."""
        drafter = self.method.drafter
        if isinstance(drafter, NoDrafter):
            return [], [], False, 0
        made = drafter.draft([self._text()], [self.example], [budget], self.method.draft_rule)
        readings = [_noted(made.q, place) for place in range(len(made.tokens[0]))]
        return made.tokens[0], readings, made.fallback[0], made.steps[0]

    def _until_end(self, tokens: list[int], readings: Sequence[TokenStatistics], fallback: bool, steps: int) -> _Draft:
        """Cut after the first token that ends the text for the target, as `Draft.until`."""
        ends = self.method.target.end_tokens
        if not ends.isdisjoint(tokens):
            end = next(place for place, token in enumerate(tokens) if token in ends)
            tokens, fallback = tokens[: end + 1], False
        places = [self.place]
        for token in tokens:
            places.append(places[-1].step(token))
        return _Draft(tokens, readings, fallback, steps, places)

    def _verify(self, draft: _Draft) -> None:
        """3. The target reads the draft; 4. a prefix stays; 5. a token follows."""
        rule, new, followed = self.method.acceptance, draft.tokens, self.method.acceptance.bonus is not None
        positions = len(new) + followed
        if len(draft.p) < positions:
            draft.p = self.cache.read(self.side, draft.places[:positions])
        if rule.accept_mask is None:
            raise NotReplayableError("its rule for what stays reads whole distributions")
        p, kept = draft.p, 0
        while kept < len(new) and rule.accept_mask(new[kept], draft.readings[kept], p[kept]):
            kept += 1
        self.counts.large_calls += 1
        self.counts.verified[positions] += 1
        self.counts.record_verification(len(new), kept)
        if self.method.scored:
            self._score(new[:kept], p)
        self._keep(new[:kept], draft.places[kept])
        if kept < len(new):
            self._add(p[kept].best, CORRECTED, p[kept])
        elif followed and not (new and new[-1] in self.method.target.end_tokens):
            q: TokenStatistics = self._after_draft() if rule.bonus_reads_q else p[kept]
            self._add(rule.greedy_bonus(q, p[kept]), LARGE, p[kept])

    def _after_draft(self) -> TokenStatistics:
        """The drafter's reading after its whole draft."""
        drafter = self.method.drafter
        self.counts.small_steps += drafter.runs_model
        if isinstance(drafter, ModelDrafter):
            return self.cache.read(prefix_trie.SMALL_MODEL, [self.place])[0]
        return _noted(drafter.following([self._text()], [0]), 0)

    def _text(self) -> list[int]:
        return self.cache.start(self.side) + self.tokens

    def _add(self, token: int, proposer: str, p: CachedStatistics) -> None:
        if self.method.scored:
            self._score([token], [p])
        self.tokens.append(token)
        self.proposers.append(proposer)
        self.place = self.place.step(token)

    def _keep(self, tokens: list[int], place: TrieNode) -> None:
        self.tokens += tokens
        self.proposers.append(SMALL * len(tokens))
        self.place = place

    def _score(self, tokens: list[int], p: list[CachedStatistics]) -> None:
        self.log_probabilities += [-reading.surprisal(token) for token, reading in zip(tokens, p, strict=False)]


def _noted(q: PredictionBlock, place: int) -> CachedStatistics:
    """A reading of a drafter that is no model."""
    scores = q.scores[0, place]
    best = q.likeliest[0][place]
    chances = {best: (float(scores[best]), -float(scores[best].log()))}

    def ask(token: int) -> tuple[float, float]:
        return float(scores[token]), -float(scores[token].log())

    return CachedStatistics(best, float(q.top[0, place]), float(q.entropy[0, place]), chances, ask)


def start_drafter(method: SpeculativeLoop, source: list[int], encoder_output: EncoderOutput) -> None:
    """Starts a drafter that is no model on a source."""
    if not isinstance(method.drafter, ModelDrafter):
        method.drafter.start(encoder_output, [source])
