"""Drafters that run no model, so that the cost ratio c is about 0.

From top to bottom: n-gram tables of the calibration set, drafters that propose tokens with probability 1, copies from the
context, suffix trees of the calibration set and of the text itself, random tokens.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.distributions import Key, PredictionBlock, Purpose, TokenSource, empty_predictions, one_hot_predictions
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Draft, GreedyTable, StatelessDrafter, StepwiseDrafter
from tasks.decoding.method import CALIBRATED, Pair, SamplingSettings
from tasks.errors import InputError

BEGINNING = -1
"""The context of a text's first token, whichever token a model starts from."""
_LONGEST_COPY_MATCH = 3
"""Tokens that are compared; longer matches are not preferred."""
BREAK = -1
"""Separates texts in the context: no match and no copy crosses it."""
_LONGEST_SUFFIX_MATCH = 16
"""Most tokens that are compared, a text's beginning included; longer matches are not preferred."""
_DRAFT_PER_MATCH = 2
"""α of the paper: most drafted tokens for each token of the match."""


@dataclass(frozen=True)
class NgramTables:
    """Logarithms of counts; their softmax is the relative frequency."""

    unigram: Tensor
    """float32 (vocabulary,), -infinity for a token that never occurs."""
    bigram: dict[int, tuple[Tensor, Tensor]]
    """For each token, the tokens that follow it, int64 (n,), and the logarithms of their counts, float32 (n,)."""
    specials: frozenset[int]
    """Ids that are never text; after one of them a text begins."""


def require_calibration(rows: Rows, vocabulary: int) -> None:
    """Check the texts of a calibration set, which drafters without a model read.

    Raises:
        InputError: there is no text, or one has a token outside the vocabulary.
    """
    if not any(rows):
        fix = "run the stage calibrate (dvc repro) or name another drafter"
        raise InputError(f"the drafters {', '.join(CALIBRATED)} read the calibration set and there is none; {fix}")
    largest = max(max(row, default=0) for row in rows)
    if largest >= vocabulary:
        fix = "run the stage calibrate again with this model and its tokenizer (dvc repro)"
        said = f"the calibration set has a token {largest}, outside the large model's vocabulary of {vocabulary}"
        raise InputError(f"{said}; {fix}")


def count_ngrams(rows: Rows, vocabulary: int, specials: frozenset[int]) -> NgramTables:
    """Count the unigrams and bigrams of texts that end with the end token.

    Raises:
        InputError: there is no text, or one has a token outside the vocabulary.
    """
    require_calibration(rows, vocabulary)
    followers: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        for before, after in itertools.pairwise((BEGINNING, *row)):
            followers[before][after] += 1
    everywhere: Counter[int] = Counter()
    for counts in followers.values():
        everywhere.update(counts)
    tokens, logs = _logarithms(everywhere)
    # Counts as logarithms, so that a softmax gives relative frequencies; unseen tokens are impossible.
    unigram = torch.full((vocabulary,), -torch.inf).scatter_(0, tokens, logs)
    return NgramTables(unigram, {before: _logarithms(after) for before, after in followers.items()}, specials)


def tables_of(pair: Pair) -> NgramTables:
    """Return the tables of a pair's calibration set, counted on first use; raises `InputError` where there is none."""
    return pair.derive("tables", lambda: count_ngrams(pair.calibration, pair.large.vocabulary, pair.large.specials))


def _logarithms(counts: Counter[int]) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 (n,), and the logarithms of their counts, float32 (n,)."""
    return torch.tensor(list(counts)), torch.tensor(list(counts.values()), dtype=torch.float64).log().float()


def unigrams_of(pair: Pair) -> NgramTables:
    """Return the same without bigrams, so that a token's frequency is the same after every token."""
    return replace(tables_of(pair), bigram={})


class TableDrafter(StatelessDrafter, StepwiseDrafter):
    """Predicts each token by its frequency after the previous token; after an unseen token, by its overall frequency.

    It looks up on the CPU; only a finished draft is moved to the models' device.
    """

    runs_model = False

    def __init__(self, tables: NgramTables, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        """Take the target for its end tokens."""
        super().__init__(target.end_token, sampling, source)
        self.end_tokens = target.end_tokens
        self.tables = tables
        self.device = torch.device("cpu")
        self._greedy: GreedyTable | None = None

    def look_up(self, last: int) -> Tensor:
        """Return the logits of the token after `last`: (vocabulary,)."""
        # A text begins behind any special token: start, padding or the end of a source.
        found = self.tables.bigram.get(BEGINNING if last in self.tables.specials else last)
        if found is None:
            return self.tables.unigram
        tokens, logs = found
        return torch.full_like(self.tables.unigram, -torch.inf).scatter_(0, tokens, logs)

    def greedy_table(self, tokens: int) -> GreedyTable:
        """Return the greedy predictions after each of that many tokens."""
        if self._greedy is None or len(self._greedy.next) < tokens:
            usual, sure = self._argmax(self.tables.unigram)
            after = torch.full((tokens,), usual, dtype=torch.int32)
            confidence = torch.full((tokens,), sure, dtype=torch.float64)
            # Only these tokens have a row of their own; behind all others stands the unigram table.
            for last in self.tables.specials | self.tables.bigram.keys() - {BEGINNING}:
                if last < tokens:
                    after[last], confidence[last] = self._argmax(self.look_up(last))
            self._greedy = GreedyTable(after, confidence)
        return self._greedy

    def _argmax(self, logits: Tensor) -> tuple[int, float]:
        """Return the argmax and its score."""
        block = PredictionBlock(logits[None, None], self.sampling)
        return block.argmax_rows[0][0], float(block.top)

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.device = encoder_output.hidden.device

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        return torch.stack([self.look_up((new or row)[-1]) for row, new in zip(tokens, drafted, strict=True)])[:, None]

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        return self._moved(super().predict_next(tokens, rows))

    def _block(self, positions: list[Tensor], longest: int, rows: int) -> PredictionBlock:
        return self._moved(super()._block(positions, longest, rows))

    def _moved(self, block: PredictionBlock) -> PredictionBlock:
        return PredictionBlock(block.logits.to(self.device), block.sampling)


class DeterministicDrafter(StatelessDrafter, ABC):
    """Proposes a whole window at once, each token with probability 1.

    Speculative sampling remains exact: a proposed x is accepted with probability p(x), and otherwise replaced by a draw from
    p without x. If fewer tokens are proposed than requested, the confidence in the next one is 0, which counts as a fallback
    if the rule has a threshold.
    """

    runs_model = False

    def __init__(self, target: Decoder, sampling: SamplingSettings) -> None:
        """Take the target for its vocabulary and special tokens."""
        self.vocabulary = target.vocabulary
        self.specials = target.specials
        self.end_tokens = target.end_tokens
        self.sampling = sampling
        self.device = torch.device("cpu")

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.device = encoder_output.hidden.device

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        # A proposal has probability 1, and the confidence in what is not proposed is 0.
        sure = rule.fallback_threshold < 1
        drafted = [
            self.propose(row, text, example, budget) if sure and budget > 0 else []
            for row, (text, example, budget) in enumerate(zip(tokens, examples, budgets, strict=True))
        ]
        fallback = [
            rule.fallback_threshold > 0 and len(new) < budget and not (new and new[-1] in self.end_tokens)
            for new, budget in zip(drafted, budgets, strict=True)
        ]
        draft = Draft(drafted, empty_predictions(len(tokens)), fallback, [0] * len(tokens))
        if any(drafted):
            # (rows, longest draft, vocabulary)
            draft.q = one_hot_predictions(draft.padded(self.device), self.vocabulary, self.sampling)
        return draft

    @abstractmethod
    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        """Return at most `budget` (at least 1) tokens to follow `tokens`, the text of row `row`; none after an end token."""

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict uniformly over ordinary tokens: nothing is known beyond the proposal."""
        logits = torch.zeros(self.vocabulary, device=self.device)
        logits[list(self.specials)] = -torch.inf
        return PredictionBlock(logits.expand(len(rows), 1, -1), self.sampling)


class ContextDrafter(DeterministicDrafter):
    """Looks its proposals up in source and text, so that it also knows the token behind a draft, unless it finds none."""

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.sources = sources
        self.contexts = [[*self.text(source), BREAK] for source in sources]

    def reorder(self, rows: Sequence[int]) -> None:
        self.sources = [self.sources[row] for row in rows]
        self.contexts = [self.contexts[row] for row in rows]

    def text(self, tokens: list[int]) -> list[int]:
        """Replace each token that the target never generates as text by a break."""
        return [BREAK if token in self.specials or token >= self.vocabulary else token for token in tokens]

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict the token that would be proposed; where there is none, uniformly over ordinary tokens."""
        block = super().predict_next(tokens, rows)
        proposed = [self.propose(row, tokens[row], 0, 1) for row in rows]
        known = [index for index, new in enumerate(proposed) if new]
        if not known:
            return block
        logits = block.logits.clone()
        found = torch.tensor([proposed[index] for index in known], device=self.device)
        logits[known] = one_hot_predictions(found, self.vocabulary, self.sampling).logits
        return PredictionBlock(logits, self.sampling)


class CopyDrafter(ContextDrafter):
    """Finds an earlier occurrence of the last tokens, in the source or the text, and proposes the tokens that followed it.

    The longest match wins, up to `_LONGEST_COPY_MATCH` tokens; among equally long ones, the most recent. If the last token
    has no earlier occurrence with text after it, nothing is proposed.
    """

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        # Source, break, text: a match may lie in either part.
        context = self.contexts[row] + self.text(tokens)
        index = after_match(context)
        if index is None:
            return []
        copy = context[index : index + budget]
        # A copy may run to the end of the text itself, but not over the end of the source.
        return copy[: copy.index(BREAK)] if BREAK in copy else copy


def after_match(context: Sequence[int]) -> int | None:
    """Return the index after the longest, then latest, earlier occurrence of the context's end; `None` if there is none."""
    best, index = 0, None
    end = len(context) - 1
    last = context[end]
    if last == BREAK:
        return None
    # From the latest occurrence of the last token back, so that of equally long matches the latest stays.
    for candidate in range(end - 1, -1, -1):
        if context[candidate] != last or context[candidate + 1] == BREAK:
            continue
        length = 1
        while (
            length < min(_LONGEST_COPY_MATCH, candidate + 1) and context[candidate - length] == context[end - length] != BREAK
        ):
            length += 1
        if length > best:
            best, index = length, candidate + 1
        if best == _LONGEST_COPY_MATCH:
            break
    return index


class SuffixNode:
    """A node of a suffix tree: the occurrences of one sequence of tokens in a text.

    The tree is not compressed: each edge is one token. A node looks at the tokens behind its occurrences when it is first
    asked for them, and makes each child when that is asked for, so that a large text costs little until it is searched.
    """

    __slots__ = ("_children", "_ends", "_followers", "_text", "_top")

    def __init__(self, text: Sequence[int], ends: Sequence[int]) -> None:
        """Take the text and, in ascending order, the index behind each occurrence in it."""
        self._text = text
        self._ends = ends
        self._followers: dict[int, list[int]] | None = None
        self._children: dict[int, SuffixNode] = {}
        self._top: tuple[SuffixNode, int, float] | None = None

    def child(self, token: int) -> SuffixNode | None:
        """Return the node of this sequence with one more token; none where that never occurs."""
        node = self._children.get(token)
        if node is None and token in self._followed():
            node = self._make_child(token)
        return node

    def top(self) -> tuple[SuffixNode, int, float] | None:
        """Return the child that occurs most often, the latest of equally frequent ones; none where texts always end here.

        It comes with its token and with C(N), its share of the occurrences at which a text goes on.
        """
        if self._top is None:
            following = [(len(ends), ends[-1], token) for token, ends in self._followed().items() if token != BREAK]
            if not following:
                return None
            # Most frequent first, then latest.
            count, _, token = max(following)
            node = self._children.get(token) or self._make_child(token)
            self._top = node, token, count / sum(number for number, _, _ in following)
        return self._top

    def _make_child(self, token: int) -> SuffixNode:
        node = self._children[token] = SuffixNode(self._text, self._followed()[token])
        return node

    def _followed(self) -> dict[int, list[int]]:
        """Return the occurrences by the token behind them, each as the index behind that token."""
        if self._followers is None:
            self._followers = {}
            text, length = self._text, len(self._text)
            for end in self._ends:
                if end < length:
                    self._followers.setdefault(text[end], []).append(end + 1)
        return self._followers


def outputs_tree(rows: Rows, vocabulary: int, specials: frozenset[int], ends: frozenset[int]) -> SuffixNode:
    """Return the tree over earlier outputs; no match goes from one into another.

    Args:
        rows: Token ids of each output, the end token last.
        vocabulary: Number of tokens of the large model.
        specials: Ids that are never text.
        ends: Ids that end a text, which are proposed like any other.

    Raises:
        InputError: there is no output, or one has a token outside the vocabulary.
    """
    require_calibration(rows, vocabulary)
    breaks, text = specials - ends, [BREAK]
    for row in rows:
        text += [BREAK if token in breaks else token for token in row]
        text.append(BREAK)
    return SuffixNode(text, range(len(text)))


def outputs_tree_of(pair: Pair) -> SuffixNode:
    """Return the suffix tree over a pair's calibration set; raises `InputError` as `tables_of` does."""
    large = pair.large
    return pair.derive("tree", lambda: outputs_tree(pair.calibration, large.vocabulary, large.specials, large.end_tokens))


class SuffixDrafter(ContextDrafter):
    """Proposes what most often followed the last tokens, in the large model's earlier outputs or in the text so far.

    As in the paper, one tree holds earlier outputs (the calibration set) and one the request itself (source and text). For
    every length m up to which the last tokens occur in a tree, it walks from that node to the most frequent child again and
    again, at most α m tokens; D(N) = D(parent) C(N) is the estimated probability that a node's token is accepted, and of all
    these drafts the one with the largest Σ D(N) is proposed: of equal ones the longer match, then the text itself.

    Readings taken where the paper leaves room: its tree of continuations is here the chain that follows the most frequent
    child; the tree of earlier outputs does not grow with the outputs of a run, so that no text depends on those before it;
    the beginning of an output counts as a token of the match; the current end of the text is no occurrence.
    """

    def __init__(self, outputs: SuffixNode, target: Decoder, sampling: SamplingSettings) -> None:
        """Take the tree over earlier outputs, and the target for its vocabulary and special tokens."""
        super().__init__(target, sampling)
        self.outputs = outputs

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        source, request = self.sources[row], self.contexts[row]
        # A decoder-only row begins with its source, which the context holds already.
        prompted = tokens[: len(source)] == source
        output = self.text(tokens[len(source) :] if prompted else tokens)
        request = [*(request[:-1] if prompted else request), *output]
        best, score = list[int](), 0.0
        # Earlier outputs first, then the request itself, which wins a tie.
        for found in (matches(self.outputs, [BREAK, *output]), own_matches(request)):
            for length, node in enumerate(found, start=1):
                drafted, expected = self._follow(node, min(budget, _DRAFT_PER_MATCH * length))
                # Of equal scores the longer match wins, which comes later.
                if drafted and expected >= score:
                    best, score = drafted, expected
        return best

    def _follow(self, node: SuffixNode, most: int) -> tuple[list[int], float]:
        """Return the most frequent tokens behind a node, at most so many, and the sum of their D(N)."""
        drafted, probability, score = list[int](), 1.0, 0.0
        while len(drafted) < most and (found := node.top()) is not None:
            node, token, share = found
            drafted.append(token)
            # D(N) = D(parent) C(N).
            probability *= share
            score += probability
            if token in self.end_tokens:
                break
        return drafted, score


def matches(tree: SuffixNode, context: Sequence[int]) -> Iterator[SuffixNode]:
    """Yield the nodes of the context's last token, its last two and so on, as long as they occur in the tree.

    A match goes back to a break at most, which it includes.
    """
    # Longer and longer suffixes of the context, each from its own first token.
    for begin in range(len(context) - 1, max(-1, len(context) - 1 - _LONGEST_SUFFIX_MATCH), -1):
        node: SuffixNode | None = tree
        for token in context[begin:]:
            node = None if node is None else node.child(token)
        if node is None:
            return
        yield node
        if context[begin] == BREAK:
            return


def own_matches(context: Sequence[int]) -> Iterator[SuffixNode]:
    """Yield the nodes of the context's last token, its last two and so on, as long as they occur earlier in the context.

    They are those of a tree over the context itself, without the making of that tree. No match includes a break.
    """
    length = len(context)
    ends: Sequence[int] = range(1, length)
    for matched in range(1, min(_LONGEST_SUFFIX_MATCH, length) + 1):
        token = context[length - matched]
        # Of the occurrences so far, those that also agree one token further back.
        ends = [end for end in ends if end >= matched and context[end - matched] == token]
        if not ends or token == BREAK:
            return
        yield SuffixNode(context, ends)


class RandomDrafter(DeterministicDrafter):
    """Draws ordinary tokens uniformly, and proposes them with probability 1."""

    def __init__(self, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        super().__init__(target, sampling)
        self.source = source
        self.ordinary = self.vocabulary - len(self.specials)

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        # New draws after each verification, as for every draft.
        # One keyed number a position, scaled to the ordinary tokens.
        begun = len(tokens)
        keys = [Key(example, begun + offset, Purpose.RANDOM, begun) for offset in range(budget)]
        draws = map(self.source.uniform, keys)
        return [self._token(int(draw * self.ordinary)) for draw in draws]

    def _token(self, rank: int) -> int:
        """Return the ordinary token of this rank."""
        for special in sorted(self.specials):
            # Each special token below it moves it one id up.
            rank += rank >= special
        return rank
