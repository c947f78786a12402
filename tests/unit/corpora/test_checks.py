"""The report of a corpus: what it counts, what it warns of, and what ends the stage."""

import dataclasses
import json
import random
from typing import Any

import pytest

from tasks.corpora.checks import CorpusReport, count_texts, measure_corpus, summary, text_errors, token_errors, warnings
from tasks.corpora.example import Corpus, Example

UNKNOWN = 2


def examples(count: int, seed: int = 0) -> list[Example]:
    """Different sentences, whose two texts share no word."""
    rng, words = random.Random(seed), [f"w{number}" for number in range(18)]
    draws = [" ".join(rng.choices(words, k=8)) for _ in range(count)]
    return [Example(draw, (draw.replace("w", "v"),)) for draw in draws]


def tokenise(texts: list[str]) -> list[list[int]]:
    """A token for each word, the end token last; words in capitals are unknown."""
    return [[*(UNKNOWN if word.isupper() else 3 for word in text.split()), 1] for text in texts]


def report_of(limits: tuple[int, int] = (20, 20), **splits: list[Example]) -> CorpusReport:
    corpus: Corpus = {"train": examples(400), "validation": examples(50, 1), "test": examples(50, 2), **splits}
    return measure_corpus("toy", corpus, count_texts(corpus), (tokenise, tokenise), UNKNOWN, limits)


def errors(report: CorpusReport) -> list[str]:
    return [*text_errors(report.splits), *token_errors(report)]


def test_a_clean_corpus_says_nothing() -> None:
    report = report_of()
    assert warnings(report) == errors(report) == []
    assert len(summary(report)) == 5 and summary(report)[1].split()[:2] == ["train", "400"]
    assert json.loads(json.dumps(dataclasses.asdict(report)))["splits"]["test"]["examples"] == 50


def test_lengths_are_counted_with_the_end_token() -> None:
    texts = [Example(" ".join("w" * count), ("one two",)) for count in range(1, 101)]
    found = report_of((95, 2), test=texts).splits["test"]
    assert (found.sources.p50, found.sources.p95, found.sources.longest) == (51, 96, 101)
    assert found.sources.cut_off == pytest.approx(0.06)  # 96 to 101 tokens
    assert found.targets is not None and found.targets.cut_off == 1.0


def test_what_repeats_and_what_train_knows_is_counted_apart_from_case_and_space() -> None:
    train = [Example("a  b", ("x",)), Example("A b", ("x",)), Example("a b", ("y",)), Example("c", ("z", "z2"))]
    test = [Example("C", ("other", "Z2")), Example("c", ("new",)), Example("d", ("z",))]
    report = report_of(train=train, test=test, unlabelled=[Example("D", ())])
    assert report.splits["train"].repeated_examples == 1
    found = report.splits["test"]
    assert (found.sources_in_train, found.examples_in_train, found.sources_in_unlabelled) == (2, 1, 1)
    assert report.splits["unlabelled"].targets is None and report.splits["train"].sources_in_train == 0


def swapped(found: list[Example]) -> list[Example]:
    return [Example(one.references[0], (one.source,)) for one in found]


LONG, GOOD = Example("w " * 30, ("w " * 30,)), examples(50, 3)


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"test": [*GOOD, LONG]}, "sources longer than text.max_source_tokens, 20, are cut off: 2.0% of test; raise it (95 %"),
        ({"test": [*GOOD, *GOOD[:5]]}, "test: 5 of 55 examples (9.1%) repeat an earlier example, and intervals take them for"),
        ({"test": [*GOOD, *examples(2)]}, "test: the sources of 2 of 52 examples (3.8%) are also in train, 2 of them with"),
        ({"test": [*GOOD, Example("a", ("wort B",))]}, "test: 0.22% of the target tokens are unknown to the tokenizer"),
        ({"test": [*GOOD, Example("a", ("",))]}, "test: 1 of 51 examples (2.0%) have an empty reference; that is right for"),
        ({"test": [Example(one.source, (one.source,)) for one in GOOD[:25]] + GOOD[25:]}, "test: the reference equals the"),
        ({"test": [*GOOD, Example("a\ufffdb", ("c",))]}, "test: 1 texts hold a NUL or U+FFFD"),
        ({"unlabelled": [Example(GOOD[0].source.replace(" ", "  "), ())], "test": GOOD}, "also unlabelled, apart from case"),
    ],
)
def test_each_warning_names_its_split_its_number_and_the_fix(splits: dict[str, Any], words: str) -> None:
    found = warnings(report_of(**splits))
    assert any(words in line for line in found), found
    assert all("\n" not in line and ("; " in line or ": " in line) for line in found)
    assert errors(report_of(**splits)) == []


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": [Example(one.source, ("same",)) for one in GOOD]}, "train: all 50 references are the same text"),
        ({"train": [Example(one.source, (one.source,)) for one in GOOD]}, "train: the reference equals the source in 50 of 50"),
        ({"test": [*GOOD, Example(" ", ("x",))]}, "test: 1 of 51 sources are empty"),
        ({"test": [Example("a", ("",)), Example("b", ("",))]}, "test: every reference is empty"),
        ({"train": [Example(one.source.upper(), one.references) for one in GOOD]}, "train: 89% of the source tokens are"),
        (
            {"test": examples(50)},
            "test: 50 of 50 examples (100.0%) are in train as they are, which would measure memory; give test other",
        ),
        ({"validation": GOOD, "test": GOOD}, "validation: 50 of 50 examples (100.0%) are in test as they are"),
        ({"train": [*examples(400)[:370], *swapped(examples(400)[370:])]}, "train: 8% of the examples have source and target"),
        ({"test": swapped(GOOD)}, "test: 100% of the examples have source and target swapped"),
        ({"test": [*GOOD[::2], *swapped(GOOD[1::2])]}, "test: 50% of the examples have source and target swapped"),
        ({"train": [*examples(400)[:280], *swapped(examples(400)[280:])]}, "train: 30% of the examples have source and target"),
    ],
)
def test_what_makes_training_senseless_is_an_error(splits: dict[str, Any], words: str) -> None:
    assert any(words in line for line in errors(report_of(**splits)))
