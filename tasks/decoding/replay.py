"""Replay of greedy methods from cached predictions: exact tokens, proposers and counts, without running a model.

It goes through the turns of `loop.generate` by the same acceptance rules (`AcceptanceRule.accept_mask`), draft rules and
turns (`turn.TurnRules`), one row at a time. Walking over known numbers takes about a hundredth of the time of a model's run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from tasks.decoding.decoder import Capabilities, Decoder, EncoderOutput, Rows
from tasks.decoding.distributions import CachedStatistics, PredictionBlock, TokenScore, TokenStatistics
from tasks.decoding.draft_rule import DraftBuilder
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair
from tasks.decoding.predictions import LARGE_MODEL, MOST_AHEAD, SMALL_MODEL, CachedDraft, CachedModel, PredictionCache, TrieNode
from tasks.decoding.rules import BonusToken
from tasks.decoding.turn import LoopParts, RowState, TurnRules

_NO_ENCODER_OUTPUT = EncoderOutput(torch.empty(1, 0, 0), torch.empty(1, 0, dtype=torch.long))


class NotReplayableError(RuntimeError):
    """A method needs more than cached predictions: it has to be decoded."""


class ReplayDecoder:
    """One model of a prediction cache in a decoder's place. It declares cached predictions and nothing else.

    Whatever would run it step by step (beam search, early exits) raises `NotReplayableError`.
    """

    def __init__(self, cache: PredictionCache, model: int, decoder: Decoder) -> None:
        """Take the cache, which of its models this is, and the decoder whose predictions those are."""
        self.capabilities = Capabilities(replay=CachedModel(cache, model, decoder.end_tokens))
        self.name = decoder.name
        self.end_token, self.end_tokens = decoder.end_token, decoder.end_tokens
        self.vocabulary, self.specials = decoder.vocabulary, decoder.specials
        self.lengths: list[int] = []

    def _refuse(self, *_: object) -> NoReturn:
        raise NotReplayableError(f"the method runs the {self.name} model step by step, which cached predictions do not allow")

    encode = start = forward = rewind = reorder = _refuse


def replay_pair(pair: Pair, cache: PredictionCache) -> Pair:
    """Return the pair with both models replaced by their cached predictions: greedy methods give what `pair` decodes."""
    return dataclasses.replace(
        pair, small=ReplayDecoder(cache, SMALL_MODEL, pair.small), large=ReplayDecoder(cache, LARGE_MODEL, pair.large)
    )


def replay(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode one row after the other; the trie of a source stays open until another source is needed.

    Raises:
        NotReplayableError: tokens are drawn, or the drafter reads more of a model than its cached predictions.
    """
    if not parts.sampling.greedy:
        raise NotReplayableError("the method draws its tokens; only greedy decoding can be replayed")
    target = _source_of(parts.target)
    drafter = None if parts.drafter.decoder is None else _source_of(parts.drafter.decoder)
    turns, found = parts.turns(limit), []
    for source, example in zip(sources, examples, strict=True):
        if target.cache.trie.source != source:
            target.cache.open_source(source)
        if drafter is None:
            parts.drafter.start(_NO_ENCODER_OUTPUT, [source])
        replayer = _Replayer(parts, turns, target, drafter, target.cache.trie.root, RowState(example, [], 0))
        if not parts.undrafted:
            found.append(replayer.run())
            continue
        # A model's own text is gone through once for all methods.
        texts, key = target.cache.trie.own_texts, (target.model, parts.scored, limit)
        if key not in texts:
            texts[key] = replayer.run()
        found.append(texts[key])
    return found


def _source_of(decoder: Decoder) -> CachedModel:
    source = decoder.capabilities.replay
    if source is None:
        raise NotReplayableError(f"the predictions of the {decoder.name} model are not cached")
    return source


@dataclass(slots=True)
class _Replayer:
    """One method on one row, whose state holds the generated tokens alone."""

    parts: LoopParts
    turns: TurnRules
    target: CachedModel
    drafter: CachedModel | None
    """The drafting model; none where the drafter is a table, a copy or nothing."""
    node: TrieNode
    row: RowState

    def run(self) -> Generation:
        turns, row, scored, ended = self.turns, self.row, self.parts.scored, False
        while not ended:
            draft = self._draft()
            drafted, steps, count = draft.tokens, draft.steps, len(draft.tokens)
            # 2. A draft may end the text unseen by the target.
            if turns.ends_unverified(row, drafted):
                turns.finish(row, drafted, drafted=count, steps=steps, fallback=draft.fallback, verified=False)
                break
            accepted, next_token, extra_steps = self._verify(draft)
            if scored:
                self._score(draft, accepted, next_token)
            if accepted < count:
                drafted = drafted[:accepted]
            ended = turns.finish(row, drafted, next_token, drafted=count, steps=steps + extra_steps, fallback=draft.fallback)
            # 6. Go on behind the accepted tokens and the one that was added.
            node = draft.nodes[accepted]
            self.node = node if next_token is None else node.step(next_token)
        return row.generation()

    def _draft(self) -> CachedDraft:
        """1. The drafter proposes; a model's draft is the same for every method with the same draft rule."""
        rule, budget = self.turns.draft_rule, self.turns.budget(self.row)
        if self.drafter is None and budget > 0:
            made = self.parts.drafter.draft([self._text()], [self.row.example], [budget], rule)
            q = [_statistics(made.q, position) for position in range(len(made.tokens[0]))]
            return self._cut(made.tokens[0], q, made.fallback[0], made.steps[0])
        # Methods with the same draft rule share their drafts.
        stops = rule.fallback_threshold, rule.stop_below, rule.max_entropy
        key = (self.target.model, *stops, budget)
        draft = self.node.drafts.get(key)
        if draft is None:
            draft = self.node.drafts[key] = self._by_model(budget)
        return draft

    def _by_model(self, budget: int) -> CachedDraft:
        drafter, node = self.drafter, self.node
        if drafter is None or budget <= 0:
            return CachedDraft([], [], fallback=False, steps=0, nodes=[node])
        builder, q = DraftBuilder(budget, self.turns.draft_rule, drafter.end_tokens), list[CachedStatistics]()
        # A little further than asked: another method's window may be longer.
        reach = min(self.turns.limit - len(self.row.tokens), budget + MOST_AHEAD)
        while builder.going:
            statistics = node.statistics[drafter.model] or drafter.cache.read_ahead(drafter.model, node, reach - len(q))
            q.append(statistics)
            builder.add(statistics.argmax, statistics.top, statistics.entropy)
            node = node.step(statistics.argmax)
        return self._cut(builder.tokens, q, builder.fallback, builder.predictions)

    def _cut(self, tokens: list[int], q: Sequence[TokenStatistics], fallback: bool, steps: int) -> CachedDraft:
        tokens, fallback = self.turns.cut(tokens, fallback)
        return CachedDraft(tokens, q, fallback, steps, self.node.path(tokens))

    def _verify(self, draft: CachedDraft) -> tuple[int, int | None, int]:
        """3. Read the target along the draft; 4. keep a prefix; 5. add one token.

        Returns the number of accepted tokens, the next token, and the drafter's runs that the bonus token took.
        """
        rule, drafted, p = self.parts.acceptance, draft.tokens, draft.p
        # 3. Read the target along the draft, as far as it is not known.
        if len(p) <= len(drafted) and len(p) < (positions := self.turns.positions(len(drafted))):
            p = draft.p = self.target.cache.read(self.target.model, draft.nodes[:positions])
        # 4. Keep a prefix.
        accepted = self._count_accepted(draft, p)
        if accepted < len(drafted):
            return accepted, p[accepted].argmax, 0
        # 5. Add a token: a correction above, else the bonus token.
        if not self.turns.adds_bonus(drafted):
            return accepted, None, 0
        if rule.bonus is BonusToken.TARGET:
            return accepted, p[accepted].argmax, 0
        # Greedily T(q, p) puts all on q's argmax where the rule accepts it, else on p's.
        q, target = self._after(draft), p[accepted]  # what both models predict after the whole draft
        next_token = q.argmax if rule.accept_mask(q.argmax, q, target) else target.argmax
        return accepted, next_token, int(self.parts.drafter.runs_model)

    def _count_accepted(self, draft: CachedDraft, p: Sequence[CachedStatistics]) -> int:
        """4. Return how many drafted tokens stay."""
        accept, accepted = self.parts.acceptance.accept_mask, 0
        for token, q in zip(draft.tokens, draft.q, strict=False):
            if not accept(token, q, p[accepted]):
                break
            accepted += 1
        return accepted

    def _score(self, draft: CachedDraft, accepted: int, next_token: int | None) -> None:
        """Record the target's own log-probabilities of the tokens that this turn adds."""
        added = draft.tokens[:accepted] if next_token is None else [*draft.tokens[:accepted], next_token]
        self.row.log_probabilities += [-p.surprisal(token) for token, p in zip(added, draft.p, strict=False)]

    def _after(self, draft: CachedDraft) -> CachedStatistics:
        """Return the drafter's statistics after its whole draft."""
        if self.drafter is not None:
            return self.drafter.cache.read(self.drafter.model, [draft.nodes[-1]])[0]
        return _statistics(self.parts.drafter.predict_next([self._text() + draft.tokens], [0]), 0)

    def _text(self) -> list[int]:
        return self.target.cache.start(self.target.model) + self.row.tokens


def _statistics(q: PredictionBlock, position: int) -> CachedStatistics:
    """Return the statistics of a drafter that is no model."""
    scores = q.scores[0, position]
    argmax = q.argmax_rows[0][position]

    def look_up(token: int) -> TokenScore:
        return float(scores[token]), -float(scores[token].log())

    top, entropy = float(q.top[0, position]), float(q.entropy[0, position])
    return CachedStatistics(argmax, top, entropy, {argmax: look_up(argmax)}, look_up)
