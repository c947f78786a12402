"""Drafters that need no training: what each proposes, by hand; and that no drafter changes what an exact method emits."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy import stats

from tasks.decoding.acceptance_rules import match_target
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Rows
from tasks.decoding.drafters import tables
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.drafters.copying import CopyDrafter
from tasks.decoding.drafters.random_tokens import RandomDrafter
from tasks.decoding.drafters.tables import BigramDrafter, TableDrafter, UnigramDrafter, count_ngrams
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import total
from tasks.decoding.loop import generate
from tasks.decoding.randomness import TokenSource
from tasks.decoding.registry import METHODS, Pair, Request, decode
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.turn import DraftRule
from tasks.errors import InputError
from tests.laws import DRAWS, FALSE_ALARM, LARGE, SAMPLINGS, SOURCE, law_of, p_value
from tests.toys import END, START, Predict, PrefixDecoder, Toys, prefix_pair, random_table, says, toy_sources
from tests.unit.decoding.test_bild import Run, algorithm_1, runs_of

UNTRAINED = ("unigram", "bigram", "copy", "random")
SPECIALS = frozenset((START, END))
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)
TEXTS = [[2, 3, 2, 4, END], [2, 3, END], [2, 3, END], [2, 2, 5, END]]
"""Of 15 tokens 2 is six, 3 three, 4 and 5 one each, the end token four. A text begins with 2; after 2 come 3 three times
and 2, 4 and 5 once each; after 3 the end twice and 2 once; after 4 and 5 the end; after 6 and 7 nothing was seen."""


def table_drafter(kind: type[TableDrafter], sampling: SamplingSettings = GREEDY) -> TableDrafter:
    return kind(count_ngrams(TEXTS, 8, SPECIALS), PrefixDecoder(says([2])), sampling, TokenSource(0))


def frequencies(drafter: TableDrafter, last: int) -> list[float]:
    found: list[float] = torch.softmax(drafter.look_up(last), -1).tolist()
    return found


def test_tables_are_relative_frequencies() -> None:
    everywhere = pytest.approx([0, 4 / 15, 6 / 15, 3 / 15, 1 / 15, 1 / 15, 0, 0])
    unigram, bigram = (table_drafter(kind) for kind in (UnigramDrafter, BigramDrafter))
    for token in range(8):
        assert frequencies(unigram, token) == everywhere
    assert frequencies(bigram, START) == pytest.approx([0, 0, 1, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 2) == pytest.approx([0, 0, 1 / 6, 3 / 6, 1 / 6, 1 / 6, 0, 0])
    assert frequencies(bigram, 3) == pytest.approx([0, 2 / 3, 1 / 3, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 5) == pytest.approx([0, 1, 0, 0, 0, 0, 0, 0])
    for unseen in (6, 7):
        assert frequencies(bigram, unseen) == everywhere


@pytest.mark.parametrize(
    ("kind", "text", "rule", "proposed", "fallback"),
    [
        pytest.param(UnigramDrafter, [], DraftRule(3), [2, 2, 2], False, id="the most frequent token"),
        pytest.param(BigramDrafter, [], DraftRule(5), [2, 3, END], False, id="nothing after the end token"),
        pytest.param(BigramDrafter, [], DraftRule(2), [2, 3], False, id="the window"),
        pytest.param(BigramDrafter, [2], DraftRule(5), [3, END], False, id="the token before"),
        pytest.param(BigramDrafter, [2, 7], DraftRule(5), [2, 3, END], False, id="back-off where it was never seen"),
        pytest.param(BigramDrafter, [], DraftRule(5, fallback_threshold=0.51), [2], True, id="not above the threshold"),
        pytest.param(BigramDrafter, [], DraftRule(5, fallback_threshold=0.49), [2, 3, END], False, id="above the threshold"),
        pytest.param(BigramDrafter, [7], DraftRule(5, fallback_threshold=0.41), [], True, id="back-off is unsure"),
        pytest.param(BigramDrafter, [], DraftRule(5, stop_below=0.6), [2, 3], False, id="the product falls"),
    ],
)
def test_what_tables_propose(
    kind: type[TableDrafter], text: list[int], rule: DraftRule, proposed: list[int], fallback: bool
) -> None:
    draft = table_drafter(kind).draft([[START, *text]], [0], [rule.window], rule)
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [fallback], [0])
    if proposed:
        assert draft.q.scores.shape == (1, len(proposed), 8)


def test_tables_are_drawn_from_as_they_are() -> None:
    """What is drafted under sampling follows the distribution that is handed to the acceptance rule."""
    sampling, rows = SamplingSettings(temperature=1.0), 4000
    draft = table_drafter(BigramDrafter, sampling).draft([[START, 2]] * rows, range(rows), [1] * rows, DraftRule(1))
    drawn = Counter(tokens[0] for tokens in draft.tokens)
    shares = [0, 0, 1 / 6, 3 / 6, 1 / 6, 1 / 6, 0, 0]
    assert draft.q.dist[0, 0].tolist() == pytest.approx(shares)
    assert (
        stats.chisquare([drawn[token] for token in (2, 3, 4, 5)], [share * rows for share in shares[2:6]]).pvalue > FALSE_ALARM
    )


@pytest.mark.parametrize("rows", [[], [[]]])
def test_tables_need_a_calibration_set(rows: Rows) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=rows)
    for name in ("unigram", "bigram"):
        with pytest.raises(InputError, match=r"calibration set and there is none; run the stage calibrate"):
            METHODS["speculative"].build(pair, SpeculativeSettings(drafter=name), GREEDY, TokenSource(0))
    for name in ("copy", "random"):
        make_drafter(name, pair, GREEDY, TokenSource(0))


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="a token 9, outside the large model's vocabulary of 8"):
        count_ngrams([[2, 9, END]], 8, SPECIALS)


def test_an_unknown_drafter_is_refused() -> None:
    with pytest.raises(InputError, match="no drafter 'trigram'; name one of small, unigram, bigram"):
        make_drafter("trigram", prefix_pair(says([2]), says([2])), GREEDY, TokenSource(0))


def test_tables_are_counted_once_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=TEXTS)
    other = dataclasses.replace(pair, calibration=[[7, END]])
    first = pair.tables
    monkeypatch.setattr(tables, "count_ngrams", None)
    drafter = make_drafter("bigram", pair, GREEDY, TokenSource(0))
    assert isinstance(drafter, TableDrafter)
    assert drafter.tables is first
    assert other.tables.unigram.tolist() != first.unigram.tolist()


def started_copy(source: list[int], sampling: SamplingSettings = GREEDY) -> CopyDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = CopyDrafter(target, sampling)
    drafter.start(target.encode([source]), [source])
    return drafter


COPIES = [
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 3, [7, 8, 9], id="a span of the source"),
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 2, [7, 8], id="the window cuts it"),
    pytest.param([5, 6, 7, 8, 9, END], [4, 6], 5, [7, 8, 9], id="the source's end cuts it"),
    pytest.param([5, 6, 7, END], [4], 3, [], id="no match"),
    pytest.param([5, 6, 7, END], [], 3, [], id="nothing to match yet"),
    pytest.param([2, 3, 4, 9, 5, 4, 8, END], [7, 3, 4], 4, [9, 5, 4, 8], id="the longest match, not the last"),
    pytest.param([2, 3, 4, 5, 6, 3, 4, 5, 7, END], [2, 3, 4, 5], 4, [7], id="three tokens are compared and no more"),
    pytest.param([4, 9, 4, 8, END], [4], 3, [8], id="of equally long ones the last"),
    pytest.param([4, 9, END], [4, 8, 4], 5, [8, 4], id="the text itself is nearer than the source"),
    pytest.param([5, 6, END], [6], 3, [], id="the end token is not copied"),
    pytest.param([6, 2, 6, END], [6], 3, [2, 6], id="a match with no text behind it is none"),
    pytest.param([5, 6, 7, 9, 6, 8, 5], [6], 2, [8, 5], id="no match over the border of source and text"),
    pytest.param([4, 7, END, 8, 9], [4], 3, [7], id="no copy over a special token"),
    pytest.param([9, END, 4, 7, 3, 4, 8, 9, END, 4, 6], [9, 4], 2, [6], id="no match over a special token"),
    pytest.param([4, 7, 30, 8], [4], 3, [7], id="no token that the target does not know"),
]


@pytest.mark.parametrize(("source", "text", "budget", "proposed"), COPIES)
def test_what_is_copied(source: list[int], text: list[int], budget: int, proposed: list[int]) -> None:
    draft = started_copy(source).draft([[START, *text]], [0], [budget], DraftRule(budget))
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [False], [0])
    if proposed:
        assert draft.q.scores[0].argmax(-1).tolist() == proposed
        assert draft.q.scores[0].amax(-1).tolist() == [1.0] * len(proposed)


def test_no_copy_is_a_confidence_of_zero() -> None:
    """Under a rule with a threshold the missing rest counts as a fallback; and certainty is not above a threshold of 1."""
    drafter, rows = started_copy([5, 6, 7, END]), [[START, 5]]
    for threshold, budget, proposed, fallback in ((0.5, 2, [6, 7], False), (0.5, 3, [6, 7], True), (1.0, 2, [], True)):
        draft = drafter.draft(rows, [0], [budget], DraftRule(budget, fallback_threshold=threshold))
        assert (draft.tokens, draft.fallback) == ([proposed], [fallback])
    assert drafter.draft(rows, [0], [0], DraftRule(3, fallback_threshold=0.5)).fallback == [False]


def test_rows_copy_from_their_own_source() -> None:
    target = PrefixDecoder(says([2]))
    drafter, sources = CopyDrafter(target, GREEDY), [[3, 4, 5, 6, END], [3, 6, END], [3, END]]
    drafter.start(target.encode(sources), sources)
    draft = drafter.draft([[START, 3]] * 3, [0, 1, 2], [3] * 3, DraftRule(3))
    assert draft.tokens == [[4, 5, 6], [6], []]
    assert draft.q.logits.shape == (3, 3, 8)
    drafter.reorder([2, 0])
    assert drafter.draft([[START, 3]] * 2, [2, 0], [3, 2], DraftRule(3)).tokens == [[], [4, 5]]


def test_a_row_that_begins_with_its_source_is_one_text() -> None:
    """As rows of a decoder-only model do."""
    draft = started_copy([5, 6, 7, 8]).draft([[5, 6, 7, 8, 6]], [0], [5], DraftRule(5))
    assert draft.tokens == [[7, 8, 6]]


def test_what_follows_a_whole_draft() -> None:
    """The next token of the copy where there is one; else any ordinary token, one as likely as the other."""
    target = PrefixDecoder(says([2]))
    drafter, sources = CopyDrafter(target, GREEDY), [[3, 4, 5, END], [6, END]]
    drafter.start(target.encode(sources), sources)
    block = drafter.predict_next([[START, 3, 4], [START, 6]], [0, 1])
    assert block.scores[:, 0].tolist() == [[0, 0, 0, 0, 0, 1, 0, 0], pytest.approx([0, 0] + [1 / 6] * 6)]
    assert drafter.predict_next([[START, 3, 4], [START, 6]], [1]).scores[:, 0].tolist() == [pytest.approx([0, 0] + [1 / 6] * 6)]


def test_random_tokens_are_ordinary_and_evenly_spread() -> None:
    target, rows = PrefixDecoder(says([2], vocabulary=12)), 3000
    drafter = RandomDrafter(target, GREEDY, TokenSource(0))
    draft = drafter.draft([[START, 5]] * rows, range(rows), [4] * rows, DraftRule(4))
    drawn = Counter(token for tokens in draft.tokens for token in tokens)
    assert set(drawn) == set(range(2, 12))
    assert stats.chisquare(list(drawn.values())).pvalue > FALSE_ALARM
    assert draft.q.scores[7].argmax(-1).tolist() == draft.tokens[7]
    assert draft.steps == [0] * rows


def test_special_tokens_anywhere_are_left_out() -> None:
    class Odd(PrefixDecoder):
        specials = frozenset((0, 3, 4, 7))

    drafter = RandomDrafter(Odd(says([2])), GREEDY, TokenSource(0))
    draft = drafter.draft([[0]], [0], [200], DraftRule(200))
    assert set(draft.tokens[0]) == {1, 2, 5, 6}


def test_random_tokens_are_keyed() -> None:
    drafter = RandomDrafter(PrefixDecoder(says([2], vocabulary=64)), GREEDY, TokenSource(0))
    rule = DraftRule(8)
    first, second = drafter.draft([[0, 5], [0, 5]], [3, 4], [8, 8], rule).tokens
    assert first != second
    assert drafter.draft([[0, 5]], [4], [8], rule).tokens == [second]
    assert drafter.draft([[0, 5, 6]], [4], [7], rule).tokens != [second[1:]]


# No drafter changes what an exact method emits.

LIMIT = 16
SOURCES = toy_sources(104)


@functools.cache
def table_sources(rows: int) -> Rows:
    """Random sources of a small vocabulary, long enough to copy from."""
    chance = random.Random(rows)
    return [[chance.randrange(2, 8) for _ in range(chance.randint(1, 12))] + [END] for _ in range(rows)]


@pytest.fixture(scope="module")
def pair(toys: Toys) -> Pair:
    """The toy T5s, and what the large one writes on other inputs."""
    written = decode("vanilla_large", VanillaSettings(), toys.cached, toy_sources(60, seed=8), Request(LIMIT))
    return dataclasses.replace(toys.cached, calibration=[one.tokens for one in written])


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("drafter", UNTRAINED)
def test_greedy_output_is_vanilla_on_models(pair: Pair, drafter: str, draft_length: int) -> None:
    vanilla = decode("vanilla_large", VanillaSettings(), pair, SOURCES, Request(LIMIT))
    settings = SpeculativeSettings(draft_length=draft_length, drafter=drafter)
    generations = decode("speculative", settings, pair, SOURCES, Request(LIMIT))
    assert [one.tokens for one in generations] == [one.tokens for one in vanilla]
    counts = total(generations)
    assert counts.accepted > (100 if drafter == "bigram" else 5)
    assert counts.rollbacks > 20
    assert counts.large_calls < counts.tokens
    assert counts.small_steps == 0


@pytest.mark.parametrize("draft_length", [1, 4])
@pytest.mark.parametrize("drafter", UNTRAINED)
def test_greedy_output_is_vanilla_on_random_tables(drafter: str, draft_length: int) -> None:
    sources, request = table_sources(300), Request(12)
    pair = prefix_pair(says([2]), random_table("large", agreement=0, sharpness=4.0, end=-1.0))
    vanilla = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, request)]
    pair = dataclasses.replace(pair, calibration=[text for text in vanilla if text[-1] == END])
    settings = SpeculativeSettings(draft_length=draft_length, drafter=drafter)
    generations = decode("speculative", settings, pair, sources, request)
    assert [one.tokens for one in generations] == vanilla
    counts = total(generations)
    assert min(counts.accepted, counts.rollbacks) > 100


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", UNTRAINED)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("speculative", SpeculativeSettings(draft_length=3)),
        ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=1.5, max_draft=4)),
    ],
)
def test_batched_equals_one_at_a_time(pair: Pair, method: str, settings: Any, drafter: str, sampling: SamplingSettings) -> None:
    settings = dataclasses.replace(settings, drafter=drafter)
    sources, request = SOURCES[:20], Request(12, sampling, seed=2)
    alone = [decode(method, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({tuple(one.tokens) for one in alone}) > 8
    for batch_size in (7, 20):
        assert decode_all(method, settings, pair, sources, request, batch_size) == alone


def large(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
    """The large model of the tests of sampling, whatever the source: so the law is one, and what is copied differs."""
    return LARGE(SOURCE, prefix)


def drawing_pair() -> Pair:
    return dataclasses.replace(prefix_pair(says([2]), large), calibration=TEXTS)


@pytest.mark.parametrize("sampling", [SAMPLINGS["plain"], SAMPLINGS["all three"]], ids=["plain", "all three"])
@pytest.mark.parametrize("drafter", UNTRAINED)
def test_speculative_sampling_follows_the_large_model(drafter: str, sampling: SamplingSettings) -> None:
    settings = SpeculativeSettings(draft_length=2, drafter=drafter)
    generations = decode("speculative", settings, drawing_pair(), table_sources(DRAWS), Request(4, sampling))
    assert p_value(generations, law_of(large, sampling, 4)) > FALSE_ALARM
    counts = total(generations)
    assert min(counts.accepted, counts.rollbacks) > 300


@pytest.mark.parametrize("drafter", UNTRAINED)
def test_a_token_is_accepted_with_probability_sum_of_minima(drafter: str) -> None:
    """Σ min(p, q) for tables; for what is proposed as certain, its probability: 1/6 of all ordinary ones' for random tokens."""
    sampling = SAMPLINGS["plain"]
    settings = SpeculativeSettings(draft_length=1, drafter=drafter)
    method = METHODS["speculative"].build(drawing_pair(), settings, sampling, TokenSource(0))
    assert isinstance(method, SpeculativeLoop)
    p = torch.softmax(large(SOURCE, (START,)).double(), -1)
    if isinstance(method.drafter, TableDrafter):
        expected = float(torch.minimum(p, torch.softmax(method.drafter.look_up(START).double(), -1)).sum())
    else:
        expected = float(p[2:].sum() / 6) if drafter == "random" else 0.0
    accepted = total(generate(method, table_sources(DRAWS), range(DRAWS), 2)).accepted
    assert stats.binomtest(accepted, DRAWS, expected).pvalue > FALSE_ALARM
    assert (accepted == 0) == (drafter == "copy")


def test_a_rule_that_reads_the_drafter_after_its_draft_reads_the_table_there() -> None:
    """Toward ½ (q + p), that is what is emitted, at the place after a whole draft as well; and no run is counted."""
    sampling, pair = SAMPLINGS["plain"], drawing_pair()
    drafter = table_drafter(BigramDrafter, sampling)

    def mixture(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
        q, p = (torch.softmax(logits, -1) for logits in (drafter.look_up(prefix[-1]), large(source, prefix)))
        return ((q + p) / 2).log()

    rule = match_target(lambda q, p: (q.dist + p.dist) / 2)
    method = SpeculativeLoop(pair.large, rule, sampling, TokenSource(0), drafter, DraftRule(window=1))
    generations = generate(method, table_sources(DRAWS), range(DRAWS), 3)
    assert p_value(generations, law_of(mixture, sampling, 3)) > FALSE_ALARM
    assert p_value(generations, law_of(large, sampling, 3)) < 1e-12
    assert total(generations).small_steps == 0


@pytest.mark.parametrize("drafter", ["unigram", "bigram"])
@pytest.mark.parametrize("max_draft", [1, 4])
def test_bild_with_tables_is_algorithm_1(drafter: str, max_draft: int) -> None:
    sources = table_sources(25)
    target: Predict = random_table("large", agreement=0, sharpness=3.0, end=-1.0)
    pair = dataclasses.replace(
        prefix_pair(says([2]), target), calibration=[*TEXTS, [5, 6, 7, 6, 7, 2, 2, END], [6, 7, 5, 6, 2, END]]
    )
    table = make_drafter(drafter, pair, GREEDY, TokenSource(0))
    assert isinstance(table, TableDrafter)

    def small(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
        return table.look_up(prefix[-1])

    seen: Counter[str] = Counter()
    for fallback in (0.0, 0.3, 0.6, 1.0):
        for rollback in (0.5, 2.0, float("inf")):
            settings = BildSettings(
                fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft, drafter=drafter
            )
            generations = decode("bild", settings, pair, sources, Request(12))
            expected = [algorithm_1(small, target, tuple(one), settings, 12) for one in sources]
            assert runs_of(generations) == [without_runs(one) for one in expected]
            counts = total(generations)
            seen += Counter(accepted=counts.accepted, fallbacks=counts.fallbacks, rollbacks=counts.rollbacks)
    assert min(seen[name] for name in ("accepted", "fallbacks", "rollbacks")) > 20


def without_runs(run: Run) -> Run:
    """Look-ups are not counted."""
    return dataclasses.replace(run, small_steps=0)
