"""Suffix trees over earlier outputs and over the text itself as drafter (SuffixDecoding: Oliaro et al., arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafters.copying import BREAK, ContextDrafter
from tasks.decoding.drafters.tables import require_calibration
from tasks.decoding.settings import SamplingSettings

_LONGEST_MATCH = 16
"""Most tokens that are compared, a text's beginning included; longer matches are not preferred."""
_DRAFT_PER_MATCH = 2
"""α of the paper: most drafted tokens for each token of the match."""


class SuffixNode:
    """A node of a suffix tree: the occurrences of one sequence of tokens in a text.

    The tree is not compressed: each edge is one token. A node looks at the tokens behind its occurrences when it is first
    asked for them, and makes each child when that is asked for, so that a large text costs little until it is searched.
    """

    __slots__ = ("_children", "_ends", "_followers", "_likeliest", "_text")

    def __init__(self, text: Sequence[int], ends: Sequence[int]) -> None:
        """Take the text and, in ascending order, the index behind each occurrence in it."""
        self._text = text
        self._ends = ends
        self._followers: dict[int, list[int]] | None = None
        self._children: dict[int, SuffixNode] = {}
        self._likeliest: tuple[SuffixNode, int, float] | None = None

    def child(self, token: int) -> SuffixNode | None:
        """Return the node of this sequence with one more token; none where that never occurs."""
        node = self._children.get(token)
        if node is None and token in self._followed():
            node = self._make_child(token)
        return node

    def likeliest(self) -> tuple[SuffixNode, int, float] | None:
        """Return the child that occurs most often, the latest of equally frequent ones; none where texts always end here.

        It comes with its token and with C(N), its share of the occurrences at which a text goes on.
        """
        if self._likeliest is None:
            following = [(len(ends), ends[-1], token) for token, ends in self._followed().items() if token != BREAK]
            if not following:
                return None
            count, _, token = max(following)
            node = self._children.get(token) or self._make_child(token)
            self._likeliest = node, token, count / sum(number for number, _, _ in following)
        return self._likeliest

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


class SuffixDrafter(ContextDrafter):
    """Proposes what most often followed the last tokens, in the large model's earlier outputs or in the text so far.

    As in the paper, one tree holds earlier outputs (the calibration set) and one the request itself (source and text). For
    every length m up to which the last tokens occur in a tree, it walks from that node to the likeliest child again and
    again, at most α m tokens; D(N) = D(parent) C(N) is the estimated probability that a node's token is accepted, and of all
    these drafts the one with the largest Σ D(N) is proposed: of equal ones the longer match, then the text itself.

    Readings taken where the paper leaves room: its tree of continuations is here the chain that follows the likeliest child;
    the tree of earlier outputs does not grow with the outputs of a run, so that no text depends on those before it; the
    beginning of an output counts as a token of the match; the current end of the text is no occurrence.
    """

    def __init__(self, outputs: SuffixNode, target: Decoder, sampling: SamplingSettings) -> None:
        """Take the tree over earlier outputs, and the target for its vocabulary and special tokens."""
        super().__init__(target, sampling)
        self.outputs = outputs

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        source, request = self.sources[row], self.contexts[row]
        prompted = tokens[: len(source)] == source
        output = self.text(tokens[len(source) :] if prompted else tokens)
        request = [*(request[:-1] if prompted else request), *output]
        best, score = list[int](), 0.0
        for found in (matches(self.outputs, [BREAK, *output]), own_matches(request)):
            for length, node in enumerate(found, start=1):
                drafted, expected = self._follow(node, min(budget, _DRAFT_PER_MATCH * length))
                if drafted and expected >= score:
                    best, score = drafted, expected
        return best

    def _follow(self, node: SuffixNode, most: int) -> tuple[list[int], float]:
        """Return the likeliest tokens behind a node, at most so many, and the sum of their D(N)."""
        drafted, probability, score = list[int](), 1.0, 0.0
        while len(drafted) < most and (found := node.likeliest()) is not None:
            node, token, share = found
            drafted.append(token)
            probability *= share
            score += probability
            if token in self.end_tokens:
                break
        return drafted, score


def matches(tree: SuffixNode, context: Sequence[int]) -> Iterator[SuffixNode]:
    """Yield the nodes of the context's last token, its last two and so on, as long as they occur in the tree.

    A match goes back to a break at most, which it includes.
    """
    for begin in range(len(context) - 1, max(-1, len(context) - 1 - _LONGEST_MATCH), -1):
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
    for matched in range(1, min(_LONGEST_MATCH, length) + 1):
        token = context[length - matched]
        ends = [end for end in ends if end >= matched and context[end - matched] == token]
        if not ends or token == BREAK:
            return
        yield SuffixNode(context, ends)
