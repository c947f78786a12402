"""The embedded German to English corpus: its grammar, its words, its choices and its splits."""

from __future__ import annotations

import importlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tasks.corpora.example import SPLITS, Corpus
from tasks.corpora.translation import english, english_forms, generate, german, lexeme_count, lexicon, morphology, numerals
from tasks.corpora.translation.choices import Covering, Sampled
from tasks.corpora.translation.lexicon import Noun, Verb, Words
from tasks.corpora.translation.phenomena import phenomena
from tasks.corpora.translation.structure import (
    Agreement,
    Clause,
    Complement,
    Gap,
    Joined,
    Link,
    NounPhrase,
    Place,
    Pronoun,
    Sentence,
    Tense,
)
from tasks.errors import InputError

T = TypeVar("T")
# The package exports the function under the module's name.
module = importlib.import_module("tasks.corpora.translation.generate")
PAST, PERFECT, PRESENT = Tense("preterite", "past"), Tense("perfect", "past"), Tense("present", "present")
PROMISED = frozenset([
    "verb-final clause", "two main clauses", "inversion", "date", "clock time", "units before tens", "number", "preterite",
    "pluperfect", "future", "perfect with haben", "perfect with sein", "separable verb", "reflexive verb", "modal", "passive",
    "nicht", "kein", "object first", "copula", "two objects", "duration", "infinitive clause", "pronoun", "compound",
    "ambiguous noun", "n-declension", "genitive", "possessive", "relative clause", "adjective ending",
])  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate({"train": 2000, "validation": 150, "test": 150}, seed=7)


def first(_point: str, options: Sequence[T], /) -> T:
    return options[0]


def noun(lemma: str, meaning: str) -> Noun:
    return next(noun for noun in (*lexicon.NOUNS, *lexicon.COMPOUNDS) if noun.lemma == lemma and noun.english[0][0] == meaning)


def verb(prefix: str, base: str, meaning: str) -> Verb:
    return next(verb for verb in lexicon.VERBS if (verb.prefix, verb.base, verb.english[0]) == (prefix, base, meaning))


def the(lemma: str, meaning: str) -> NounPhrase:
    return NounPhrase(noun(lemma, meaning), "der")


def both_languages(sentence: Sentence) -> tuple[str, str]:
    return module.join_words(german.render(sentence)), module.join_words(english.render(sentence, first))


def doing(verb_: Verb, subject: NounPhrase | Pronoun, *fillers: NounPhrase | Pronoun, tense: Tense = PERFECT) -> Clause:
    return Clause(verb_, subject, tense, tuple(zip(verb_.slots, fillers, strict=False)))


TEACHER = the("Lehrer", "teacher")


def test_another_seed_gives_another_corpus() -> None:
    sizes = {"train": 20, "validation": 0, "test": 0}
    assert generate(sizes, 1) == generate(sizes, 1) != generate(sizes, 2)


def test_sizes_are_kept_and_splits_share_no_sentence(corpus: Corpus) -> None:
    assert {split: len(corpus[split]) for split in SPLITS} == {"train": 2000, "validation": 150, "test": 150}
    sources = [example.source for split in SPLITS for example in corpus[split]]
    assert len(set(sources)) == len(sources)
    targets = {split: {text for example in corpus[split] for text in example.references} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not targets[one] & targets[other]


def test_a_sentence_whose_translation_another_split_has_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (sentence, source), (other, another) = itertools.islice(module._draw_sentences(random.Random(1)), 2)
    drawn = [(sentence, source), (sentence, f"Doch {source}"), (other, another)]
    monkeypatch.setattr(module, "_draw_sentences", lambda _rng: iter(drawn))
    made = generate({"train": 0, "validation": 1, "test": 1}, 1)
    assert [example.source for example in (*made["test"], *made["validation"])] == [source, another]


@pytest.mark.parametrize("sizes", [{"train": 5, "validation": 1}, {"train": 5, "validation": -1, "test": 1}])
def test_a_missing_or_negative_size_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="sizes"):
        generate(sizes, 1)


def test_more_than_the_grammar_gives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(itertools.islice(module._draw_sentences(random.Random(1)), 5))
    monkeypatch.setattr(module, "_draw_sentences", lambda _rng: itertools.cycle(few))
    with pytest.raises(InputError, match="gives about 5"):
        generate({"train": 6, "validation": 0, "test": 0}, 1)


def test_lexemes() -> None:
    assert lexeme_count() >= 400


def test_every_class_that_is_asked_for_has_unambiguous_words() -> None:
    known = {tag for word in lexicon.NOUNS for tag in word.tags}
    for entry in lexicon.VERBS:
        for slot in entry.slots:
            assert lexicon.expand(slot.tags) <= known, entry
            assert not slot.tags or lexicon.nouns_for(slot.tags), entry
        assert lexicon.expand(entry.subject) <= known, entry
    for adjective in lexicon.ADJECTIVES:
        assert adjective.tags <= known, adjective


@pytest.mark.parametrize(
    ("kind", "gender", "case", "phrase"),
    [
        ("der", "m", "acc", "den alten"),
        ("der", "n", "nom", "das alte"),
        ("der", "f", "dat", "der alten"),
        ("ein", "m", "nom", "ein alter"),
        ("ein", "n", "acc", "ein altes"),
        ("mein", "pl", "dat", "meinen alten"),
        ("dieser", "m", "gen", "dieses alten"),
        ("kein", "f", "acc", "keine alte"),
    ],
)
def test_articles_and_adjective_endings(kind: str, gender: str, case: str, phrase: str) -> None:
    assert f"{morphology.article(kind, gender, case)} {morphology.adjective('alt', kind, gender, case)}" == phrase


def test_strong_adjectives_and_nouns() -> None:
    assert morphology.adjective("müde", "", "m", "nom") == "müder"
    assert morphology.noun("Student", "weak", "Studenten", "acc", False) == "Studenten"
    assert morphology.noun("Junge", "weak", "Jungen", "dat", False) == "Jungen"
    assert morphology.noun("Apfel", "s", "Äpfel", "dat", True) == "Äpfeln"
    assert morphology.noun("Haus", "es", "Häuser", "gen", False) == "Hauses"


@pytest.mark.parametrize(
    ("prefix", "base", "third", "past", "participle"),
    [
        ("auf", "machen", "macht", "machte", "aufgemacht"),
        ("", "verkaufen", "verkauft", "verkaufte", "verkauft"),
        ("", "reparieren", "repariert", "reparierte", "repariert"),
        ("", "unterschreiben", "unterschreibt", "unterschrieb", "unterschrieben"),
        ("an", "fangen", "fängt", "fing", "angefangen"),
        ("", "öffnen", "öffnet", "öffnete", "geöffnet"),
        ("", "gehören", "gehört", "gehörte", "gehört"),
        ("ein", "schlafen", "schläft", "schlief", "eingeschlafen"),
    ],
)
def test_verb_forms(prefix: str, base: str, third: str, past: str, participle: str) -> None:
    assert morphology.finite(base, "present", 3, False) == third
    assert morphology.finite(base, "past", 3, False) == past
    assert morphology.participle(prefix, base) == participle


@pytest.mark.parametrize(
    ("number", "spoken", "translated"),
    [(21, "einundzwanzig", "twenty-one"), (16, "sechzehn", "sixteen"), (77, "siebenundsiebzig", "seventy-seven"),
     (30, "dreißig", "thirty"), (105, "einhundertfünf", "one hundred and five")],
)  # fmt: skip
def test_numbers(number: int, spoken: str, translated: str) -> None:
    assert numerals.german_number(number) == spoken
    assert numerals.english_number(number) == translated


@pytest.mark.parametrize(
    ("hour", "minute", "spoken", "translated"),
    [
        (7, 30, "um halb acht", ("at half past seven", "at 7:30")),
        (8, 45, "um Viertel vor neun", ("at a quarter to nine", "at 8:45")),
        (12, 35, "um fünf nach halb eins", ("at twenty-five to one", "at 12:35")),
        (1, 0, "um ein Uhr", ("at one o'clock", "at one")),
        (3, 5, "um fünf nach drei", ("at five past three", "at 3:05")),
    ],
)
def test_clock_times(hour: int, minute: int, spoken: str, translated: tuple[str, ...]) -> None:
    assert numerals.clock(hour, minute) == Words(spoken, translated)


def test_dates() -> None:
    assert numerals.date(3, 4) == Words("am dritten Mai", ("on 3 May", "on the third of May", "on May 3"))
    assert numerals.date(21, 0).german == "am einundzwanzigsten Januar"


@pytest.mark.parametrize(
    ("lemma", "meaning"),
    [("Küchentisch", "kitchen table"), ("Kinderschuh", "children's shoe"), ("Schultür", "school door"),
     ("Arbeitsvertrag", "work contract"), ("Versicherungsvertrag", "insurance contract"), ("Käsesuppe", "cheese soup")],
)  # fmt: skip
def test_compounds(lemma: str, meaning: str) -> None:
    assert noun(lemma, meaning).compound


def test_subordinate_verb_last_and_main_verb_second() -> None:
    opened = doing(verb("auf", "machen", "open"), the("Frau", "woman"), the("Tür", "door"), tense=PRESENT)
    slept = doing(verb("ein", "schlafen", "fall asleep"), TEACHER)
    because = Link("weil", ("because",), "final")
    assert both_languages(Sentence(slept, Joined(because, opened))) == (
        "Der Lehrer ist eingeschlafen, weil die Frau die Tür aufmacht.",
        "The teacher fell asleep because the woman opens the door.",
    )
    assert both_languages(Sentence(opened, Joined(because, slept, first=True)))[0] == (
        "Weil der Lehrer eingeschlafen ist, macht die Frau die Tür auf."
    )


def test_the_prefix_at_the_end_decides_the_verb() -> None:
    coat = the("Mantel", "coat")
    worn = [
        doing(verb(*entry), TEACHER, coat, tense=PRESENT)
        for entry in (("an", "ziehen", "put +on"), ("aus", "ziehen", "take +off"))
    ]
    assert [both_languages(Sentence(clause)) for clause in worn] == [
        ("Der Lehrer zieht den Mantel an.", "The teacher puts on the coat."),
        ("Der Lehrer zieht den Mantel aus.", "The teacher takes off the coat."),
    ]


def test_participle_decides_the_ambiguous_noun() -> None:
    eaten = doing(verb("", "essen", "eat"), TEACHER, the("Birne", "pear"))
    changed = doing(verb("", "wechseln", "replace"), TEACHER, the("Birne", "bulb"))
    assert [both_languages(Sentence(clause)) for clause in (eaten, changed)] == [
        ("Der Lehrer hat die Birne gegessen.", "The teacher ate the pear."),
        ("Der Lehrer hat die Birne gewechselt.", "The teacher replaced the bulb."),
    ]
    assert {word.english[0][0] for word in lexicon.nouns_for(frozenset({"food"})) if word.lemma == "Birne"} == {"pear"}
    assert "Birne" not in {word.lemma for word in lexicon.nouns_for(frozenset({"food", "spare"}))}


def test_perfect_with_sein_and_english_order_of_place_and_time() -> None:
    goal = Place("in", "acc", ("to",), the("Park", "park"))
    clause = Clause(verb("", "gehen", "go"), TEACHER, PERFECT, time=Words("gestern", ("yesterday",)), goal=goal)
    assert both_languages(Sentence(clause)) == (
        "Der Lehrer ist gestern in den Park gegangen.",
        "The teacher went to the park yesterday.",
    )


def test_negation_by_nicht_and_by_kein() -> None:
    buy = verb("", "kaufen", "buy")
    house = the("Haus", "house")
    plain = Clause(buy, TEACHER, PERFECT, ((buy.slots[0], house),), negated=True, manner=Words("allein", ("alone",)))
    assert both_languages(Sentence(plain)) == (
        "Der Lehrer hat das Haus nicht allein gekauft.",
        "The teacher didn't buy the house alone.",
    )
    nothing = doing(buy, TEACHER, NounPhrase(noun("Apfel", "apple"), "kein"))
    assert both_languages(Sentence(nothing)) == ("Der Lehrer hat keinen Apfel gekauft.", "The teacher didn't buy an apple.")


def test_modal_passive_and_infinitive() -> None:
    repair = verb("", "reparieren", "repair")
    must = Clause(repair, the("Auto", "car"), PRESENT, modal="müssen", passive=True)
    assert both_languages(Sentence(must)) == ("Das Auto muss repariert werden.", "The car has to be repaired.")
    inner = doing(verb("auf", "machen", "open"), Pronoun(TEACHER.agreement), the("Fenster", "window"))
    tried = Clause(verb("", "versuchen", "try"), TEACHER, PERFECT, complement=Complement("zu", inner))
    assert both_languages(Sentence(tried)) == (
        "Der Lehrer hat versucht, das Fenster aufzumachen.",
        "The teacher tried to open the window.",
    )


def test_relative_clause_takes_its_case_from_its_own_verb() -> None:
    helped = doing(verb("", "helfen", "help"), Pronoun(Agreement(1, True, "pl")))
    man = NounPhrase(noun("Mann", "man"), "der")
    slot = helped.verb.slots[0]
    relative = Clause(helped.verb, helped.subject, PERFECT, ((slot, Gap(man.agreement)),))
    subject = NounPhrase(man.noun, "der", relative=relative)
    assert both_languages(Sentence(doing(verb("", "lachen", "laugh"), subject, tense=PAST))) == (
        "Der Mann, dem wir geholfen haben, lachte.",
        "The man that we helped laughed.",
    )


def test_an_ambiguous_noun_in_doubt_is_settled_by_its_relative_clause() -> None:
    grammar = importlib.import_module("tasks.corpora.translation.grammar").Grammar(random.Random(4))
    goods = frozenset({"goods"})
    phrases = [grammar.related(goods, "past") for _ in range(200)]
    ambiguous = [phrase for phrase in phrases if phrase.noun in lexicon.ambiguous_for(goods)]
    assert len(ambiguous) > 10
    for phrase in ambiguous:
        asked = [slot.tags for slot, filler in phrase.relative.arguments if isinstance(filler, Gap)]
        asked += [phrase.relative.verb.subject] if isinstance(phrase.relative.subject, Gap) else []
        assert lexicon.resolved(phrase.noun, goods, *asked)


def test_every_promised_construction_is_common() -> None:
    drawn = itertools.islice(module._draw_sentences(random.Random(11)), 2000)
    counts = Counter(name for sentence, source in drawn for name in phenomena(sentence, source))
    assert set(counts) == PROMISED
    rare = {name: count for name, count in counts.items() if count < 15}
    assert not rare


def test_lengths(corpus: Corpus) -> None:
    lengths = [len(re.findall(r"\w+|[.,]", example.source)) for example in corpus["train"]]
    assert min(lengths) >= 6
    assert max(lengths) <= 16
    assert 9 <= sum(lengths) / len(lengths) <= 11


def test_one_reference_to_train_on_and_several_to_score_with(corpus: Corpus) -> None:
    assert all(len(example.references) == 1 for example in corpus["train"])
    counts = [len(example.references) for split in ("validation", "test") for example in corpus[split]]
    assert all(len(set(example.references)) == len(example.references) for example in corpus["test"])
    assert max(counts) == module.REFERENCES
    assert sum(count >= 4 for count in counts) >= 0.9 * len(counts)
    assert sum(counts) / len(counts) >= 7


def test_references_cover_every_option_and_training_draws_favour_the_first() -> None:
    covering = Covering(random.Random(1), 8)
    seen: set[str] = set()
    for number in range(8):
        covering.start(number)
        seen.add(covering("verb", ("begin", "start", "open")))
    assert seen == {"begin", "start", "open"}
    sampled = Sampled(random.Random(1))
    share = sum(sampled("verb", ("begin", "start")) == "begin" for _ in range(2000)) / 2000
    assert 0.67 < share < 0.73


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
    assert len(texts) >= 2000
    for text in texts:
        assert not vowel.search(text), text
        assert not consonant.search(text), text


def test_english_forms() -> None:
    assert [english_forms.ing(word) for word in ("get", "cancel", "lie", "be")] == ["getting", "cancelling", "lying", "being"]
    assert [english_forms.past(word) for word in ("plan", "try", "buy", "cancel")] == [
        "planned",
        "tried",
        "bought",
        "cancelled",
    ]
    assert english_forms.possessive(["the", "teachers"], True) == ["the", "teachers'"]
    assert english_forms.possessive(["Thomas"], False) == ["Thomas's"]
    assert english_forms.with_articles(["a", "old", "house", "a", "university"]) == ["an", "old", "house", "a", "university"]
