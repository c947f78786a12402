"""The embedded German to English corpus: its splits, its text, and sentences written by hand in both languages."""

import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.corpora import translation
from tasks.corpora.example import SPLITS, Corpus
from tasks.corpora.translation import chooser, draw_sentences, english, generate, german, grammar, join_words, lexicon
from tasks.corpora.translation.grammar import Clause, NounPhrase, Pronoun, Sentence, Tense
from tasks.corpora.translation.lexicon import Noun, Verb, Words
from tasks.errors import InputError

ROOT = Path(__file__).parents[3]
DIGEST = "afaea5960738b86d2ea76ec7323f1fa77e8ab3311f019783ff776180bac5416c"
PAST, PERFECT, PRESENT = Tense("preterite", "past"), Tense("perfect", "past"), Tense("present", "present")


def digest() -> str:
    """SHA-256 over all texts of a small corpus."""
    corpus = generate({"train": 200, "validation": 10, "test": 30}, 0)
    texts = [text for split in corpus.values() for example in split for text in (example.source, *example.references)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def test_a_seed_gives_the_texts_that_it_always_gave() -> None:
    """Published numbers are about these texts; neither they nor the order of sets may change them."""
    assert digest() == DIGEST
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    code = "from tests.unit.corpora.test_translation import digest; print(digest())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout.strip() == DIGEST


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate({"train": 600, "validation": 60, "test": 60}, seed=7)


def texts_of(corpus: Corpus, split: str) -> list[str]:
    return [text for example in corpus[split] for text in example.references]


def test_splits_have_their_sizes_and_share_no_sentence(corpus: Corpus) -> None:
    assert {split: len(corpus[split]) for split in SPLITS} == {"train": 600, "validation": 60, "test": 60}
    sources = [example.source for split in SPLITS for example in corpus[split]]
    assert len(set(sources)) == len(sources)
    for one, other in itertools.combinations(SPLITS, 2):
        assert not set(texts_of(corpus, one)) & set(texts_of(corpus, other))
    sizes = {"train": 10, "validation": 0, "test": 0}
    assert generate(sizes, 1) != generate(sizes, 2)


def test_a_sentence_with_a_translation_of_another_split_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    (other, another), (sentence, source) = (
        (Sentence(OPENS), "Die Frau macht auf."),
        (Sentence(SLEPT), "Der Lehrer schläft ein."),
    )
    drawn = [(sentence, source), (sentence, f"Doch {source}"), (other, another)]
    monkeypatch.setattr(translation, "draw_sentences", lambda _rng: iter(drawn))
    made = generate({"train": 0, "validation": 1, "test": 1}, 1)
    assert [example.source for example in (*made["test"], *made["validation"])] == [source, another]


def test_sizes_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes in ({"train": 5, "validation": 1}, {"train": 5, "validation": -1, "test": 1}):
        with pytest.raises(InputError, match="sizes"):
            generate(sizes, 1)
    few = list(itertools.islice(draw_sentences(random.Random(1)), 5))
    monkeypatch.setattr(translation, "draw_sentences", lambda _rng: itertools.cycle(few))
    with pytest.raises(InputError, match="gives about 5"):
        generate({"train": 6, "validation": 0, "test": 0}, 1)


def test_lengths_and_numbers_of_references(corpus: Corpus) -> None:
    lengths = [len(re.findall(r"\w+|[.,]", example.source)) for example in corpus["train"]]
    assert min(lengths) >= 6
    assert max(lengths) <= 16
    assert 8 <= sum(lengths) / len(lengths) <= 11
    assert all(len(example.references) == 1 for example in corpus["train"])
    counts = [len(set(example.references)) for example in corpus["test"]]
    assert sum(count == translation.REFERENCES for count in counts) >= 0.7 * len(counts)


def test_variation_changes_the_training_references_alone() -> None:
    sizes = {"train": 60, "validation": 5, "test": 5}
    plain, varied = generate(sizes, 1, variation=0.0), generate(sizes, 1, variation=1.0)
    assert (plain["test"], plain["validation"]) == (varied["test"], varied["validation"])
    assert [example.source for example in plain["train"]] == [example.source for example in varied["train"]]
    words = [" ".join(texts_of(corpus, "train")) for corpus in (plain, varied)]
    assert [bool(re.search(r"(did|does|do|is|was) not", text)) for text in words] == [False, True]
    share = sum(chooser(random.Random(seed), 0.8)(("begin", "start")) == "begin" for seed in range(2000)) / 2000
    assert 0.57 < share < 0.63


def test_text_is_well_formed(corpus: Corpus) -> None:
    english_texts = [text for split in SPLITS for text in texts_of(corpus, split)]
    for text in [*english_texts, *(example.source for split in SPLITS for example in corpus[split])]:
        assert re.fullmatch(r"[A-ZÄÖÜ][^.]*[^.,\s]\.", text), text
        assert not re.search(r"\s\s|\s[.,]|,[^\s]|,,", text), text
        words = re.sub(r"[.,]", "", text).lower().split()
        assert all(one != two for one, two in itertools.pairwise(words)), text
    for text in english_texts:
        assert not re.search(r"\ba (?!uni|use|euro|one)(?=[aeiou])|\ban (?=[^aeiou]|uni|use|euro|one)", text, re.I), text


def test_every_class_that_a_verb_asks_for_has_unambiguous_nouns() -> None:
    known = {tag for noun in lexicon.NOUNS for tag in noun.tags}
    for verb in lexicon.VERBS:
        assert verb.base in lexicon.GERMAN_VERBS
        assert {words.split()[0] for words in verb.english} <= lexicon.ENGLISH_VERBS.keys()
        for tags in (verb.subject, *(slot.tags for slot in verb.slots)):
            assert lexicon.expand(tags) <= known, verb
            assert not tags or lexicon.nouns_for(tags), verb
    assert all(adjective.tags <= known for adjective in lexicon.ADJECTIVES)


def commonest(options: Sequence[str]) -> str:
    return options[0]


def noun(lemma: str, meaning: str) -> Noun:
    return next(noun for noun in lexicon.NOUNS if (noun.lemma, noun.english[0][0]) == (lemma, meaning))


def verb(name: str, meaning: str) -> Verb:
    prefix, _, base = name.rpartition("|")
    return next(one for one in lexicon.VERBS if (one.prefix, one.base, one.english[0]) == (prefix, base, meaning))


def the(lemma: str, meaning: str) -> NounPhrase:
    return NounPhrase(noun(lemma, meaning), "der")


def doing(verb_: Verb, subject: NounPhrase | Pronoun, *fillers: NounPhrase | grammar.Gap, tense: Tense = PERFECT) -> Clause:
    return Clause(verb_, subject, tense, tuple(zip(verb_.slots, fillers, strict=False)))


TEACHER = the("Lehrer", "teacher")
SLEPT = doing(verb("ein|schlafen", "fall asleep"), TEACHER)
OPENS = doing(verb("auf|machen", "open"), the("Frau", "woman"), the("Tür", "door"), tense=PRESENT)
BECAUSE = grammar.Link("weil", ("because",), "final")
BUY, REPAIR = verb("kaufen", "buy"), verb("reparieren", "repair")
HELPED = doing(verb("helfen", "help"), Pronoun(grammar.Agreement("wir")), grammar.Gap(grammar.Agreement("m")))
CAR = the("Auto", "car")
PUTS_ON = doing(verb("an|ziehen", "put on"), TEACHER, the("Mantel", "coat"), tense=PRESENT)
REPLACED = doing(verb("wechseln", "replace"), TEACHER, the("Birne", "bulb"))
NOT_ALONE = doing(BUY, TEACHER, the("Haus", "house"))._replace(negated=True, manner=Words("allein", ("alone",)))
NO_APPLE = doing(BUY, TEACHER, NounPhrase(noun("Apfel", "apple"), "kein"))
YESTERDAY, TO_THE_PARK = Words("gestern", ("yesterday",)), grammar.Place("in", "acc", ("to",), the("Park", "park"))
WENT = Clause(verb("gehen", "go"), TEACHER, PERFECT, time=YESTERDAY, goal=TO_THE_PARK)
LAUGHED = doing(verb("lachen", "laugh"), NounPhrase(noun("Mann", "man"), "der", relative=HELPED), tense=PAST)
OPENED = doing(OPENS.verb, Pronoun(TEACHER.agreement), the("Fenster", "window"))


@pytest.mark.parametrize(
    ("sentence", "source", "reference"),
    [
        (
            Sentence(SLEPT, BECAUSE, OPENS),
            "Der Lehrer ist eingeschlafen, weil die Frau die Tür aufmacht.",
            "The teacher fell asleep because the woman opens the door.",
        ),
        (
            Sentence(OPENS, BECAUSE, SLEPT, second_first=True),
            "Weil der Lehrer eingeschlafen ist, macht die Frau die Tür auf.",
            "Because the teacher fell asleep, the woman opens the door.",
        ),
        (Sentence(PUTS_ON), "Der Lehrer zieht den Mantel an.", "The teacher puts on the coat."),
        (Sentence(REPLACED), "Der Lehrer hat die Birne gewechselt.", "The teacher replaced the bulb."),
        (Sentence(WENT), "Der Lehrer ist gestern in den Park gegangen.", "The teacher went to the park yesterday."),
        (Sentence(NOT_ALONE), "Der Lehrer hat das Haus nicht allein gekauft.", "The teacher didn't buy the house alone."),
        (Sentence(NO_APPLE), "Der Lehrer hat keinen Apfel gekauft.", "The teacher didn't buy an apple."),
        (
            Sentence(Clause(REPAIR, CAR, PRESENT, modal="müssen", passive=True)),
            "Das Auto muss repariert werden.",
            "The car has to be repaired.",
        ),
        (
            Sentence(Clause(REPAIR, CAR, PERFECT, passive=True, negated=True, agent=TEACHER)),
            "Das Auto ist nicht von dem Lehrer repariert worden.",
            "The car wasn't repaired by the teacher.",
        ),
        (
            Sentence(Clause(verb("versuchen", "try"), TEACHER, PERFECT, complement=grammar.Complement("zu", OPENED))),
            "Der Lehrer hat versucht, das Fenster aufzumachen.",
            "The teacher tried to open the window.",
        ),
        (Sentence(LAUGHED), "Der Mann, dem wir geholfen haben, lachte.", "The man that we helped laughed."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sentences_in_both_languages(sentence: Sentence, source: str, reference: str) -> None:
    # An agent contracts with its preposition: von dem becomes vom.
    assert join_words(german.render(sentence)) == source.replace("von dem", "vom")
    assert join_words(english.render(sentence, commonest)) == reference
