"""The embedded German to English corpus: its sizes, its splits and its text."""

from __future__ import annotations

import importlib
import itertools
import random
import re
from collections import Counter

import pytest

from tasks.corpora.example import SPLITS, Corpus
from tasks.corpora.translation import english, generate
from tasks.corpora.translation.choices import Covering, Sampled
from tasks.corpora.translation.phenomena import phenomena
from tasks.errors import InputError

# The package exports the function under the module's name.
module = importlib.import_module("tasks.corpora.translation.generate")
DOCUMENTED = frozenset([
    "verb-final clause", "two main clauses", "inversion", "date", "clock time", "units before tens", "number", "preterite",
    "pluperfect", "future", "perfect with haben", "perfect with sein", "separable verb", "reflexive verb", "modal", "passive",
    "nicht", "kein", "object first", "copula", "two objects", "duration", "infinitive clause", "pronoun", "compound",
    "ambiguous noun", "n-declension", "genitive", "possessive", "relative clause", "adjective ending",
])  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate({"train": 1000, "validation": 100, "test": 100}, seed=7)


def test_another_seed_gives_another_corpus() -> None:
    sizes = {"train": 20, "validation": 0, "test": 0}
    assert generate(sizes, 1) == generate(sizes, 1) != generate(sizes, 2)


def test_sizes_are_kept_and_splits_share_no_sentence(corpus: Corpus) -> None:
    assert {split: len(corpus[split]) for split in SPLITS} == {"train": 1000, "validation": 100, "test": 100}
    sources = [example.source for split in SPLITS for example in corpus[split]]
    assert len(set(sources)) == len(sources)
    targets = {split: {text for example in corpus[split] for text in example.references} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not targets[one] & targets[other]


def test_a_sentence_with_a_translation_of_another_split_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    (sentence, source), (other, another) = itertools.islice(module._draw_sentences(random.Random(1)), 2)
    drawn = [(sentence, source), (sentence, f"Doch {source}"), (other, another)]
    monkeypatch.setattr(module, "_draw_sentences", lambda _rng: iter(drawn))
    made = generate({"train": 0, "validation": 1, "test": 1}, 1)
    assert [example.source for example in (*made["test"], *made["validation"])] == [source, another]


@pytest.mark.parametrize("sizes", [{"train": 5, "validation": 1}, {"train": 5, "validation": -1, "test": 1}])
def test_a_missing_or_negative_size_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="sizes"):
        generate(sizes, 1)


def test_more_sentences_than_the_grammar_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(itertools.islice(module._draw_sentences(random.Random(1)), 5))
    monkeypatch.setattr(module, "_draw_sentences", lambda _rng: itertools.cycle(few))
    with pytest.raises(InputError, match="gives about 5"):
        generate({"train": 6, "validation": 0, "test": 0}, 1)


def test_every_documented_construction_is_common() -> None:
    drawn = itertools.islice(module._draw_sentences(random.Random(11)), 2000)
    counts = Counter(name for sentence, source in drawn for name in phenomena(sentence, source))
    assert set(counts) == DOCUMENTED
    rare = {name: count for name, count in counts.items() if count < 15}
    assert not rare


def test_lengths(corpus: Corpus) -> None:
    lengths = [len(re.findall(r"\w+|[.,]", example.source)) for example in corpus["train"]]
    assert min(lengths) >= 6
    assert max(lengths) <= 16
    assert 9 <= sum(lengths) / len(lengths) <= 11


def test_training_has_one_reference_and_evaluation_several(corpus: Corpus) -> None:
    assert all(len(example.references) == 1 for example in corpus["train"])
    counts = [len(example.references) for split in ("validation", "test") for example in corpus[split]]
    assert all(len(set(example.references)) == len(example.references) for example in corpus["test"])
    assert max(counts) == module.REFERENCES
    assert sum(count == module.REFERENCES for count in counts) >= 0.85 * len(counts)


def test_references_cover_every_option_and_training_prefers_the_first() -> None:
    covering = Covering(random.Random(1), 8)
    seen: set[str] = set()
    for number in range(8):
        covering.start(number)
        seen.add(covering("verb", ("begin", "start", "open")))
    assert seen == {"begin", "start", "open"}
    sampled = Sampled(random.Random(1), 0.8)
    share = sum(sampled("verb", ("begin", "start")) == "begin" for _ in range(2000)) / 2000
    assert 0.57 < share < 0.63


def test_variation_changes_the_training_references_alone() -> None:
    sizes = {"train": 60, "validation": 5, "test": 5}
    plain, varied = generate(sizes, 1, variation=0.0), generate(sizes, 1, variation=1.0)
    assert plain["test"] == varied["test"]
    assert plain["validation"] == varied["validation"]
    assert plain["train"] == generate(sizes, 1, variation=0.0)["train"] != varied["train"]
    words = [" ".join(example.references[0] for example in corpus["train"]) for corpus in (plain, varied)]
    assert not re.search(r"(did|does|do|is|was) not", words[0])
    assert re.search(r"(did|does|do|is|was) not", words[1])


def test_an_adverb_that_adds_little_may_be_left_out() -> None:
    (sentence,) = itertools.islice(
        (drawn for drawn, source in module._draw_sentences(random.Random(3)) if "wirklich" in source and drawn.joined is None),
        1,
    )
    kept = {"really" in english.render(sentence, Sampled(random.Random(seed), 1.0)) for seed in range(20)}
    assert kept == {True, False}


def test_text_is_well_formed(corpus: Corpus) -> None:
    texts = [text for split in SPLITS for example in corpus[split] for text in (example.source, *example.references)]
    for text in texts:
        assert re.fullmatch(r"[A-ZÄÖÜ][^.]*[^.,\s]\.", text), text
        assert not re.search(r"\s\s|\s[.,]|,[^\s]|,,", text), text
        words = re.sub(r"[.,]", "", text).lower().split()
        assert all(one != two for one, two in itertools.pairwise(words)), text


def test_a_or_an(corpus: Corpus) -> None:
    vowel, consonant = (
        re.compile(r"\ba (?!uni|use|euro|one)(?=[aeiou])", re.I),
        re.compile(r"\ban (?=[^aeiou]|uni|use|euro|one)", re.I),
    )
    texts = [text for split in SPLITS for example in corpus[split] for text in example.references]
    assert len(texts) >= 1500
    for text in texts:
        assert not vowel.search(text), text
        assert not consonant.search(text), text
