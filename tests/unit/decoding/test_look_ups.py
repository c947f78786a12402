"""Drafters that run no model: what each proposes, by hand."""

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest
import torch
from scipy import stats

from tasks.decoding.decoder import Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters import look_ups
from tasks.decoding.loop import SpeculativeLoop, make_drafter
from tasks.decoding.method import CALIBRATED, DRAFTERS, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.rules import match_target
from tasks.errors import InputError
from tests.branching import enumerated, total_variation
from tests.distributions import FALSE_ALARM, LARGE, SAMPLINGS, SOURCE, model_distribution
from tests.toys import END, START, Prefix, PrefixDecoder, Toys, prefix_pair, says, toy_sources

GREEDY = SamplingSettings()
SPECIALS = frozenset((START, END))
TEXTS = [[2, 3, 2, 4, END], [2, 3, END], [2, 3, END], [2, 2, 5, END]]
"""Of 15 tokens 2 is six, 3 three, 4 and 5 one each, the end token four. A text begins with 2; after 2 come 3 three times
and 2, 4 and 5 once each; after 3 the end twice and 2 once; after 4 and 5 the end; after 6 and 7 nothing was seen."""


def table_drafter(*, bigrams: bool, sampling: SamplingSettings = GREEDY) -> look_ups.TableDrafter:
    tables = look_ups.count_ngrams(TEXTS, 8, SPECIALS)
    tables = tables if bigrams else dataclasses.replace(tables, bigram={})
    return look_ups.TableDrafter(tables, PrefixDecoder(says([2])), sampling, TokenSource(0))


def frequencies(drafter: look_ups.TableDrafter, last: int) -> list[float]:
    found: list[float] = torch.softmax(drafter.look_up(last), -1).tolist()
    return found


def test_tables_are_relative_frequencies() -> None:
    everywhere = pytest.approx([0, 4 / 15, 6 / 15, 3 / 15, 1 / 15, 1 / 15, 0, 0])
    unigram, bigram = (table_drafter(bigrams=one) for one in (False, True))
    for token in range(8):
        assert frequencies(unigram, token) == everywhere
    assert frequencies(bigram, START) == pytest.approx([0, 0, 1, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 2) == pytest.approx([0, 0, 1 / 6, 3 / 6, 1 / 6, 1 / 6, 0, 0])
    assert frequencies(bigram, 3) == pytest.approx([0, 2 / 3, 1 / 3, 0, 0, 0, 0, 0])
    assert frequencies(bigram, 5) == pytest.approx([0, 1, 0, 0, 0, 0, 0, 0])
    for unseen in (6, 7):
        assert frequencies(bigram, unseen) == everywhere


@pytest.mark.parametrize(
    ("bigrams", "text", "rule", "proposed", "fallback"),
    [
        pytest.param(False, [], DraftRule(3), [2, 2, 2], False, id="the most frequent token"),
        pytest.param(True, [], DraftRule(5), [2, 3, END], False, id="nothing after the end token"),
        pytest.param(True, [], DraftRule(2), [2, 3], False, id="the window"),
        pytest.param(True, [2], DraftRule(5), [3, END], False, id="the token before"),
        pytest.param(True, [2, 7], DraftRule(5), [2, 3, END], False, id="back-off where it was never seen"),
        pytest.param(True, [], DraftRule(5, fallback_threshold=0.51), [2], True, id="not above threshold"),
        pytest.param(True, [], DraftRule(5, fallback_threshold=0.49), [2, 3, END], False, id="above it"),
        pytest.param(True, [7], DraftRule(5, fallback_threshold=0.41), [], True, id="back-off is unsure"),
        pytest.param(True, [], DraftRule(5, stop_below=0.6), [2, 3], False, id="the product falls"),
    ],
)
def test_what_tables_propose(bigrams: bool, text: list[int], rule: DraftRule, proposed: list[int], fallback: bool) -> None:
    draft = table_drafter(bigrams=bigrams).draft([[START, *text]], [0], [rule.window], rule)
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [fallback], [0])
    if proposed:
        assert draft.q.scores.shape == (1, len(proposed), 8)


@pytest.mark.parametrize("rows", [[], [[]]])
def test_tables_need_a_calibration_set_of_the_large_model_s_tokens(rows: Rows) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=rows)
    for name in CALIBRATED:
        with pytest.raises(InputError, match=r"calibration set and there is none; run the stage calibrate"):
            METHODS["speculative"].make(SpeculativeSettings(drafter=name), pair, Request(8))
    for name in ("copy", "random"):
        make_drafter(name, pair, GREEDY, TokenSource(0))
    with pytest.raises(InputError, match=f"no drafter 'trigram'; name one of {', '.join(DRAFTERS)}$"):
        make_drafter("trigram", pair, GREEDY, TokenSource(0))
    with pytest.raises(InputError, match="a token 9, outside the large model's vocabulary of 8"):
        look_ups.count_ngrams([[2, 9, END]], 8, SPECIALS)


def test_tables_are_counted_once_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = dataclasses.replace(prefix_pair(says([2]), says([2])), calibration=TEXTS)
    other = dataclasses.replace(pair, calibration=[[7, END]])
    first = look_ups.tables_of(pair)
    monkeypatch.setattr(look_ups, "count_ngrams", None)
    drafter = make_drafter("bigram", pair, GREEDY, TokenSource(0))
    assert isinstance(drafter, look_ups.TableDrafter)
    assert drafter.tables is first
    monkeypatch.undo()
    assert look_ups.tables_of(other).unigram.tolist() != first.unigram.tolist()


def started_copy(source: list[int], sampling: SamplingSettings = GREEDY) -> look_ups.CopyDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = look_ups.CopyDrafter(target, sampling)
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
    """With a threshold, a draft that ends early counts as a fallback; certainty does not exceed a threshold of 1."""
    drafter, rows = started_copy([5, 6, 7, END]), [[START, 5]]
    for threshold, budget, proposed, fallback in ((0.5, 2, [6, 7], False), (0.5, 3, [6, 7], True), (1.0, 2, [], True)):
        draft = drafter.draft(rows, [0], [budget], DraftRule(budget, fallback_threshold=threshold))
        assert (draft.tokens, draft.fallback) == ([proposed], [fallback])
    assert drafter.draft(rows, [0], [0], DraftRule(3, fallback_threshold=0.5)).fallback == [False]


def test_a_row_that_begins_with_its_source_is_one_text() -> None:
    """Rows of a decoder-only model begin with their source."""
    draft = started_copy([5, 6, 7, 8]).draft([[5, 6, 7, 8, 6]], [0], [5], DraftRule(5))
    assert draft.tokens == [[7, 8, 6]]


def test_what_follows_a_whole_draft() -> None:
    """The next token of the copy if there is one, otherwise a uniform distribution over ordinary tokens."""
    target = PrefixDecoder(says([2]))
    drafter, sources = look_ups.CopyDrafter(target, GREEDY), [[3, 4, 5, END], [6, END]]
    drafter.start(target.encode(sources), sources)
    block = drafter.predict_next([[START, 3, 4], [START, 6]], [0, 1])
    assert block.scores[:, 0].tolist() == [[0, 0, 0, 0, 0, 1, 0, 0], pytest.approx([0, 0] + [1 / 6] * 6)]
    assert drafter.predict_next([[START, 3, 4], [START, 6]], [1]).scores[:, 0].tolist() == [pytest.approx([0, 0] + [1 / 6] * 6)]


def test_random_tokens_are_ordinary_and_evenly_spread() -> None:
    target, rows = PrefixDecoder(says([2], vocabulary=12)), 3000
    drafter = look_ups.RandomDrafter(target, GREEDY, TokenSource(0))
    draft = drafter.draft([[START, 5]] * rows, range(rows), [4] * rows, DraftRule(4))
    drawn = Counter(token for tokens in draft.tokens for token in tokens)
    assert set(drawn) == set(range(2, 12))
    assert stats.chisquare(list(drawn.values())).pvalue > FALSE_ALARM
    assert draft.q.scores[7].argmax(-1).tolist() == draft.tokens[7]
    assert draft.steps == [0] * rows


ENDS = frozenset((END,))
TEXTS_SUFFIXES = [[2, 3, 4, 5, END], [2, 3, 4, 6, END], [7, 3, 4, 6, 8, END], [9, 3, 5, END]]
"""After 3 come 4 three times and 5 once; after 3 4 come 6 twice and 5 once; after 2 3 4 come 5 and then 6, once each."""


def started(source: list[int], texts: list[list[int]] = TEXTS_SUFFIXES) -> look_ups.SuffixDrafter:
    target = PrefixDecoder(says([2], vocabulary=12))
    drafter = look_ups.SuffixDrafter(look_ups.outputs_tree(texts, 12, SPECIALS, ENDS), target, SamplingSettings())
    drafter.start(target.encode([source]), [source])
    return drafter


@pytest.mark.parametrize(
    ("source", "text", "budget", "proposed"),
    [
        pytest.param([], [11, 3], 1, [4], id="the most frequent continuation"),
        pytest.param([], [11, 3], 8, [4, 6], id="at most α tokens for each token of the match"),
        pytest.param([], [11, 3, 4], 8, [6, 8, END], id="nothing after the end token"),
        pytest.param([], [2, 3, 4], 1, [6], id="of equally likely continuations the later output's"),
        pytest.param([], [], 8, [2, 3], id="an output begins like most of them"),
        pytest.param([], [9], 8, [3, 5, END], id="the beginning belongs to the match"),
        pytest.param([], [11], 8, [], id="no match"),
        pytest.param([11, 3, 10, END], [11, 3], 1, [10], id="the source, where it is surer than earlier outputs"),
        pytest.param([10, 11, 3, END], [11], 8, [3], id="up to the end of the source, which is not copied"),
        pytest.param([], [10, 11, 10], 8, [11, 10], id="the text itself, up to its last token"),
        pytest.param([10, 11, 9, 10, 11, 8, END], [10, 11], 1, [8], id="of equally frequent ones the latest"),
        pytest.param([10, 11, 8, 10, 11, 8, 11, 9, END], [11], 1, [8], id="the most frequent, not the latest"),
        pytest.param([5, 6, 10, 11], [], 4, [2, 3], id="no match over the border of source and text"),
        pytest.param([10, 30, 11], [10], 4, [], id="no token that the target does not know"),
    ],
)
def test_what_is_proposed(source: list[int], text: list[int], budget: int, proposed: list[int]) -> None:
    draft = started(source).draft([[START, *text]], [0], [budget], DraftRule(budget))
    assert (draft.tokens, draft.fallback, draft.steps) == ([proposed], [False], [0])
    if proposed:
        assert draft.q.scores[0].argmax(-1).tolist() == proposed


def test_a_row_that_begins_with_its_source_is_one_text_whose_output_has_a_beginning() -> None:
    drafter = started([10, 11, 10])
    assert drafter.propose(0, [10, 11, 10], 0, 4) == [11, 10], "the prompt itself, which is surer than how outputs begin"
    assert drafter.propose(0, [10, 11, 10, 9], 0, 4) == [3, 5, END]


def test_the_expected_number_of_accepted_tokens_decides() -> None:
    """After 3 the sum of D(N) is ¾ + ¾ · ⅔ = 1.25; after 2 3, over twice as many tokens, 1 + ½ + ½ = 2."""
    drafter = started([])
    for context, budget, expected in (([3], 2, 1.25), ([2, 3], 3, 2.0), ([4, 6], 1, 0.5)):
        *_, node = look_ups.matches(drafter.outputs, context)
        drafted, score = drafter._follow(node, budget)
        assert len(drafted) == budget
        assert score == pytest.approx(expected)


def test_a_match_is_as_long_as_it_occurs_and_ends_at_a_break() -> None:
    tree = look_ups.outputs_tree(TEXTS_SUFFIXES, 12, SPECIALS, ENDS)
    assert len(list(look_ups.matches(tree, [11, 2, 3, 4]))) == 3
    assert len(list(look_ups.matches(tree, [6, look_ups.BREAK, 2, 3]))) == 3, "with the beginning, and nothing before it"
    assert len(list(look_ups.own_matches([4, look_ups.BREAK, 5, 6, 4, look_ups.BREAK, 5, 6]))) == 2, "before a break"


def test_a_match_has_at_most_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    context = [2, 3] * 20
    tree = look_ups.outputs_tree([[*context, END]], 12, SPECIALS, ENDS)
    assert len(list(look_ups.matches(tree, context))) == len(list(look_ups.own_matches(context))) == 16
    monkeypatch.setattr(look_ups, "_LONGEST_SUFFIX_MATCH", 3)
    assert len(list(look_ups.matches(tree, context))) == len(list(look_ups.own_matches(context))) == 3


def test_both_ways_to_the_nodes_of_a_text_agree_with_counting() -> None:
    """On random texts, against all occurrences, one by one."""
    rng = random.Random(5)
    seen = 0
    for _ in range(300):
        text = [rng.choice((2, 3, 4, look_ups.BREAK)) for _ in range(rng.randint(1, 60))]
        for found in (look_ups.matches(look_ups.SuffixNode(text, range(len(text))), text), look_ups.own_matches(text)):
            for length, node in enumerate(found, start=1):
                behind = [
                    (text[end], end + 1)
                    for end in range(length, len(text))
                    if text[end - length : end] == text[-length:] and text[end] != look_ups.BREAK
                ]
                if not behind:
                    assert node.top() is None
                    continue
                counts = {token: [end for one, end in behind if one == token] for token, _ in behind}
                best = max(counts, key=lambda token: (len(counts[token]), counts[token][-1]))
                child = node.top()
                assert child[1] == best
                assert child[2] == pytest.approx(len(counts[best]) / len(behind))
                seen += length > 1
    assert seen > 300


def test_no_match_goes_from_one_output_into_another() -> None:
    assert started([], [[10, 3, END], [4, 3, 6, END]]).propose(0, [START, 3, END, 4], 0, 1) == [3]
    drafter = started([], [[10, 3], [4, 5, END]])
    assert drafter.propose(0, [START, 10], 0, 4) == [3], "an output that was cut off has no continuation"


def test_what_follows_a_whole_draft_of_suffixes() -> None:
    """The next token of the tree if there is one, otherwise a uniform distribution over ordinary tokens."""
    block = started([]).predict_next([[START, 9, 3]], [0])
    assert block.scores[0, 0].argmax() == 5
    assert block.scores[0, 0].max() == 1
    assert started([]).predict_next([[START, 11]], [0]).scores[0, 0].tolist() == pytest.approx([0, 0] + [0.1] * 10)


UNTRAINED = ("unigram", "bigram", "copy", "suffix", "random")
SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)
LIMIT = 16
SOURCES = toy_sources(40)


@pytest.fixture(scope="module")
def pair(toys: Toys) -> Pair:
    """The toy T5s, and what the large one writes on other inputs."""
    written = decode("vanilla_large", VanillaSettings(), toys.cached, toy_sources(60, seed=8), Request(LIMIT))
    return dataclasses.replace(toys.cached, calibration=[one.tokens for one in written])


BATCHED = [
    ("speculative", SpeculativeSettings(draft_length=3), SAMPLED),
    ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=1.5, max_draft=4), GREEDY),
]


@pytest.mark.parametrize("drafter", UNTRAINED)
@pytest.mark.parametrize(("method", "settings", "sampling"), BATCHED, ids=["sampled speculative", "greedy bild"])
def test_a_batch_equals_single_rows(pair: Pair, method: str, settings: Any, drafter: str, sampling: SamplingSettings) -> None:
    settings = dataclasses.replace(settings, drafter=drafter)
    sources, request = SOURCES[:5], Request(12, sampling, seed=2)
    alone = [decode(method, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({tuple(one.tokens) for one in alone}) > 3
    assert decode_all(method, settings, pair, sources, request, 3) == alone


def test_a_rule_may_read_the_table_after_a_draft() -> None:
    """The target ½ (q + p) is emitted after fully accepted drafts as well: all texts of two tokens, enumerated."""
    sampling, target, table = SAMPLINGS["plain"], PrefixDecoder(LARGE), table_drafter(bigrams=True)

    def build(draws: TokenSource) -> SpeculativeLoop:
        drafter = look_ups.TableDrafter(table.tables, target, sampling, draws)
        rule = match_target(lambda q, p: (q.dist + p.dist) / 2, lambda tokens, q, p: tokens == p.argmax)
        return SpeculativeLoop(target, rule, sampling, draws, drafter, DraftRule(window=1))

    def mixture(source: Prefix, prefix: Prefix) -> torch.Tensor:
        q, p = (torch.softmax(logits, -1) for logits in (table.look_up(prefix[-1]), LARGE(source, prefix)))
        return ((q + p) / 2).log()

    found = enumerated(build, SOURCE, 2)
    assert total_variation(found, model_distribution(mixture, sampling, 2)) < 1e-5
    assert total_variation(found, model_distribution(LARGE, sampling, 2)) > 0.02


def test_special_tokens_anywhere_are_left_out() -> None:
    class Odd(PrefixDecoder):
        specials = frozenset((0, 3, 4, 7))

    drafter = look_ups.RandomDrafter(Odd(says([2])), GREEDY, TokenSource(0))
    draft = drafter.draft([[0]], [0], [200], DraftRule(200))
    assert set(draft.tokens[0]) == {1, 2, 5, 6}
