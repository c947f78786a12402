from __future__ import annotations

import random
import re
from collections.abc import Iterable
from statistics import fmean

import pytest
from rouge_score.rouge_scorer import RougeScorer

from tasks.corpora import summarization
from tasks.corpora.example import SPLITS, Corpus, Example
from tasks.corpora.summarization import generate
from tasks.corpora.summarization.grammar import choose, fill, polish, write
from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact
from tasks.corpora.summarization.kinds import DAYS, KINDS, SURNAMES, TOWNS
from tasks.corpora.summarization.measures import follow_score
from tasks.corpora.summarization.stories import Event, draw_event, summarise, write_report
from tasks.errors import InputError

SIZES = {"train": 600, "validation": 100, "test": 200}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate(SIZES, seed=1)


def everything(corpus: Corpus) -> list[Example]:
    return [example for split in SPLITS for example in corpus[split]]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def rouge(references: Iterable[str], text: str) -> float:
    scorer = RougeScorer(["rougeL"])
    return max(100 * float(scorer.score(reference, text)["rougeL"].fmeasure) for reference in references)


def test_sizes_and_references(corpus: Corpus) -> None:
    assert {split: len(examples) for split, examples in corpus.items()} == SIZES
    for split, count in (("train", 1), ("validation", 8), ("test", 8)):
        assert {len(set(example.references)) for example in corpus[split]} == {count}


def test_splits_share_no_report_and_no_summary(corpus: Corpus) -> None:
    reports = [example.source for example in everything(corpus)]
    assert len(set(reports)) == len(reports)
    summaries = [{text for example in corpus[split] for text in example.references} for split in SPLITS]
    assert len(set().union(*summaries)) == sum(map(len, summaries))


def test_an_event_whose_summary_another_split_has_is_drawn_again() -> None:
    first = summarization._draw("test", 4, random.Random(1), set(), set())
    taken = set(first[0].references)
    again = summarization._draw("test", 4, random.Random(1), set(), taken)
    assert again[0] == first[1]
    assert all(taken.isdisjoint(example.references) for example in again)


def test_lengths(corpus: Corpus) -> None:
    for example in everything(corpus):
        assert 5 <= len(sentences(example.source)) <= 8
        assert 48 <= len(example.source.split()) <= 95
        assert all(10 <= len(text.split()) <= 25 and len(sentences(text)) <= 2 for text in example.references)


def test_one_seed_one_corpus() -> None:
    sizes = dict.fromkeys(SPLITS, 30)
    assert generate(sizes, seed=3) == generate(sizes, seed=3)
    assert generate(sizes, seed=3)["test"] != generate(sizes, seed=4)["test"]


def test_more_training_examples_leave_the_held_out_splits_alone(corpus: Corpus) -> None:
    larger = generate({**SIZES, "train": 700}, seed=1)
    assert larger["test"] == corpus["test"] and larger["validation"] == corpus["validation"]


def test_every_name_and_figure_of_a_summary_stands_in_the_report(corpus: Corpus) -> None:
    names = {*TOWNS, *SURNAMES, *DAYS}
    for example in everything(corpus):
        words = set(re.findall(r"\w+", example.source))
        for text in example.references:
            stated = {word for word in re.findall(r"\w+", text) if word in names or word.isdigit()}
            assert stated <= words, (text, stated - words)


def test_the_first_sentence_is_a_poor_summary(corpus: Corpus) -> None:
    assert fmean(rouge(example.references, sentences(example.source)[0]) for example in corpus["test"]) < 40


def test_no_single_sentence_will_do(corpus: Corpus) -> None:
    best = (max(rouge(example.references, line) for line in sentences(example.source)) for example in corpus["test"][:60])
    assert fmean(best) < 60


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_summaries_of_one_event_vary_but_far_less_than_those_of_two(kind: ReportKind) -> None:
    rng = random.Random(2)
    same, other = [], []
    for _ in range(25):
        event = draw_event(kind, rng)
        references = summarise(event, rng, 8)
        same.append(rouge(references, summarise(event, rng, 1)[0]))
        other.append(rouge(references, summarise(draw_event(kind, rng), rng, 1)[0]))
    assert 75 < fmean(same) < 99
    assert fmean(other) < fmean(same) - 15


def test_references_take_every_core_second_and_order() -> None:
    cores = tuple(f"{mark} a b c d e f g h i" for mark in ("core1", "core2"))
    side_facts = (SideFact("", "second1"), SideFact("", "second2"))
    event = Event(KINDS["football"], Outcome((), cores), side_facts, {})
    texts = summarise(event, random.Random(4), 8)
    assert len({tuple(re.findall(r"(core\d|second\d)", text.lower())) for text in texts}) == 8


def test_the_vocabulary_is_small(corpus: Corpus) -> None:
    texts = (text for example in everything(corpus) for text in (example.source, *example.references))
    assert 800 < len({word for text in texts for word in re.findall(r"\w+", text.lower())}) <= 1500


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_template_can_be_filled(kind: ReportKind) -> None:
    rng = random.Random(7)
    for _ in range(20):
        event = draw_event(kind, rng)
        briefs = [second.brief for second in kind.side_facts] + [second.fact for second in kind.side_facts]
        outcomes = (*kind.outcomes, event.outcome)
        templates = [text for outcome in outcomes for text in (*outcome.facts, *outcome.cores)]
        for template in (*kind.openings, *kind.distractors, *briefs, *templates):
            text = write(template, event.slots, rng)
            assert text[-1] == "." and not re.search(r"[\[\]{}|%]|  | [,.]|\.\.|,\.|^[a-z]|\. [a-z]", text), text


@pytest.mark.parametrize(
    ("course", "deciding"),
    [("W", 0), ("WW", 0), ("WLW", 2), ("LWW", 2), ("WLWW", 2), ("LW", 1), ("LWLW", 3), ("WLLW", 3), ("LLWWWW", 4)],
)
def test_the_goal_that_decides(course: str, deciding: int) -> None:
    assert follow_score(course)[1] == deciding


def test_the_scorer_named_made_the_last_lead_or_level() -> None:
    rng = random.Random(11)
    for _ in range(60):
        event = draw_event(KINDS["football"], rng)
        report, summary = write_report(event, rng), summarise(event, rng, 1)[0]
        final = re.search(r"(?:It ended|The match finished|The final score was) (\d)-(\d)\.", report)
        assert final is not None and f"{final[1]}-{final[2]}" in summary
        reached = f"{final[1]}-{final[2]}" if final[1] == final[2] else f"{int(final[2]) + 1}-{final[2]}"
        goals = [line for line in sentences(report) if "minutes" in line and reached in line]
        assert any(event.slots["hero"] in line for line in goals) and event.slots["hero"] in summary


def test_the_place_named_has_the_largest_reading() -> None:
    rng = random.Random(12)
    for _ in range(60):
        event = draw_event(KINDS["weather"], rng)
        lines = [line for line in sentences(write_report(event, rng)) if re.search(r"\d", line) and "record" not in line]
        largest = max(lines, key=lambda line: int(re.findall(r"\d+", line)[0]))
        towns = [town for town in TOWNS if town in largest]
        assert towns and all(towns[0] in text for text in summarise(event, rng, 8))


def test_the_product_named_moved_most_the_way_profit_did() -> None:
    rng = random.Random(13)
    for _ in range(60):
        event = draw_event(KINDS["company"], rng)
        report = write_report(event, rng)
        rose = bool(re.search(r"more money was left|was better|larger payment", report))
        way = r"went up|grew|percent more" if rose else r"went down|shrank|percent (?:less|fewer)"
        changes = [line for line in sentences(report) if "percent" in line and re.search(way, line)]
        largest = max(changes, key=lambda line: int(re.findall(r"\d+", line)[0]))
        assert f" {event.slots['change1']} percent" in largest and len(changes) == 2
        assert all(event.slots["product1_brief"] in text.lower() for text in summarise(event, rng, 8))


@pytest.mark.parametrize(
    ("kind", "slot"),
    [
        (KINDS["traffic"], "cause{}_brief"),
        (KINDS["laboratory"], "cause{}_brief"),
        (KINDS["harbour"], "reason{}_brief"),
        (KINDS["festival"], "theme{}_brief"),
        (KINDS["school"], "fix{}_brief"),
        (KINDS["expedition"], "find{}_brief"),
    ],
)
def test_what_was_only_suspected_is_not_stated(kind: ReportKind, slot: str) -> None:
    rng = random.Random(14)
    for _ in range(40):
        event = draw_event(kind, rng)
        true, *others = (event.slots[slot.format(number)] for number in (1, 2, 3))
        stated = [text.lower() for text in summarise(event, rng, 8)]
        assert any(true in text for text in stated)
        assert not any(re.search(rf"\b{re.escape(other)}\b", text) for text in stated for other in others)


def test_sizes_must_name_the_splits() -> None:
    with pytest.raises(InputError, match="must name train, validation, test"):
        generate({"train": 5, "test": 5}, seed=0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_split_needs_an_example(size: int) -> None:
    with pytest.raises(InputError, match=r"test is .*at least 1"):
        generate({"train": 5, "validation": 5, "test": size}, seed=0)


def test_too_many_examples_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="give at most"):
        generate({"train": 10**12, "validation": 5, "test": 5}, seed=0)


def test_running_out_of_distinct_examples_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    core = "[the bridge|the station] was closed on a cold and windy day in spring"
    poor = ReportKind(
        ("it was cold",), (Outcome(("it was windy",), (core, core)),), (SideFact("x", "a"), SideFact("y", "b")), ()
    )
    monkeypatch.setattr(summarization, "KINDS", {"poor": poor})
    with pytest.raises(InputError, match=r"only \d+ distinct examples found; ask for fewer than 500"):
        generate({"train": 5, "validation": 5, "test": 500}, seed=0)


def test_the_notation() -> None:
    assert fill("{a} and {b}", {"a": "[x|{b}]", "b": "y"}) == "[x|y] and y"
    assert {choose("[a|b [c|d]|]", random.Random(seed)) for seed in range(50)} == {"a", "b c", "b d", ""}
    assert polish("a  eagle saw a Osterby man , [x]. then it left") == "An eagle saw an Osterby man, [x]. Then it left."
