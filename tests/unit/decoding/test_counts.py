"""The counts of every turn, by hand, for drafters that read from a script."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Drafter
from tasks.decoding.drafters.look_ups import RowwiseDrafter
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import SamplingSettings
from tasks.decoding.rules import speculative_sampling
from tests.toys import END, Predict, Prefix, PrefixDecoder, says

Script = Sequence[int | None]
"""The token for each position of the text; drafts end before a `None` and at the end of the script."""

SAMPLING = SamplingSettings()
SIX = [2, 3, 4, 5, 6, 7]
RIGHT = [*SIX, END]
WRONG = [3, 4, 5, 6, 7, 2, 2, 2, 2]
SOME = [2, 7, 4, 5, 2, 7, END]


def by_source(texts: Sequence[Sequence[int]]) -> Predict:
    """Predicts the text whose number is the first token of the source, then the end token."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        return says(texts[source[0]])(source, prefix)

    return predict


class Whole(RowwiseDrafter):
    """Proposes the rest of its source's script, up to the end token."""

    def __init__(self, scripts: Sequence[Script], target: PrefixDecoder) -> None:
        super().__init__(target, SAMPLING)
        self.scripts = scripts

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.rows = [source[0] for source in sources]

    def reorder(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        proposed = []
        for token in self.scripts[self.rows[row]][len(tokens) - 1 :][:budget]:
            if token is None:
                break
            proposed.append(token)
            if token == END:
                break
        return proposed


@dataclasses.dataclass(frozen=True)
class Case:
    """A target's text, a drafter's script, and the expected result."""

    text: list[int]
    script: Script
    window: int
    limit: int
    proposers: str
    calls: list[tuple[int, int]]
    """(drafted, kept) of each call of the large model."""

    @property
    def counts(self) -> Counts:
        drafted, kept = map(sum, zip(*self.calls, strict=True))
        return Counts(
            tokens=len(self.proposers),
            large_calls=len(self.calls),
            drafted=drafted,
            accepted=kept,
            rollbacks=sum(kept < drafted for drafted, kept in self.calls),
            verified=Counter(drafted + 1 for drafted, _ in self.calls),
            kept=Counter(call for call in self.calls if call[0]),
        )

    def tokens(self) -> list[int]:
        return [*self.text, END][: len(self.proposers)]

    def expected(self) -> Generation:
        return Generation(self.tokens(), self.proposers, self.counts)


def exact(target: PrefixDecoder, drafter: Drafter, window: int) -> SpeculativeLoop:
    return SpeculativeLoop(target, speculative_sampling, SAMPLING, TokenSource(0), drafter, DraftRule(window))


CASES = {
    "always accepted, the end token at the window's end": Case(SIX, RIGHT, 3, 10, "ssslsss", [(3, 3), (3, 3)]),
    "always accepted, the end token inside a draft": Case(SIX, RIGHT, 4, 10, "sssslss", [(4, 4), (2, 2)]),
    "never accepted": Case(SIX, WRONG, 3, 10, "ccccccc", [(3, 0)] * 7),
    "sometimes accepted": Case(SIX, SOME, 3, 10, "scsscss", [(3, 1), (3, 2), (2, 2)]),
    "the end token too early, twice": Case([2, 3, 4], [2, END, END, END], 3, 10, "sccs", [(2, 1), (1, 0), (1, 1)]),
    "the end token right after a rollback": Case([2], [2, 3, 3, 3], 3, 10, "sc", [(3, 1)]),
    "the end token after a whole draft": Case([2], [2, 3], 1, 10, "sl", [(1, 1)]),
    "the limit inside a draft": Case(SIX, RIGHT, 5, 4, "sssl", [(3, 3)]),
    "the limit inside a draft that is taken back": Case(SIX, SOME, 5, 3, "scl", [(2, 1), (0, 0)]),
    "the limit is the end token": Case([2, 3], [2, 3, END], 5, 3, "ssl", [(2, 2)]),
    "a limit of one": Case(SIX, RIGHT, 5, 1, "l", [(0, 0)]),
}
SHORT = {
    "never a draft": Case(SIX, [], 3, 10, "lllllll", [(0, 0)] * 7),
    "some drafts are empty, some shorter than the window": Case(
        SIX, [2, None, 4, None, None, 7], 3, 10, "slsllsl", [(1, 1), (1, 1), (0, 0), (1, 1)]
    ),
    "a short draft is taken back": Case([2, 3], [2, 4, None, END], 3, 10, "scl", [(2, 1), (0, 0)]),
}


@pytest.mark.parametrize("case", [*CASES.values(), *SHORT.values()], ids=[*CASES, *SHORT])
def test_whole_drafts(case: Case) -> None:
    target = PrefixDecoder(says(case.text))
    method = exact(target, Whole([case.script], target), case.window)
    assert method.run([[0, END]], [0], case.limit) == [case.expected()]


def test_rows_of_unequal_drafts_in_one_batch() -> None:
    cases = [case for case in (*CASES.values(), *SHORT.values()) if (case.window, case.limit) == (3, 10)]
    assert len(cases) == 8
    target = PrefixDecoder(by_source([case.text for case in cases]))
    method = exact(target, Whole([case.script for case in cases], target), 3)
    for order in (range(8), range(7, -1, -1)):
        generations = method.run([[number, END] for number in order], list(order), 10)
        assert generations == [cases[number].expected() for number in order]
    assert len({tuple(run) for run in target.runs}) > 3
