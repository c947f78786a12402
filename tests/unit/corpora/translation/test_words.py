"""The words of both languages: inflection, numbers, dates, and the classes of the lexicon."""

from __future__ import annotations

import pytest

from tasks.corpora.translation import english_forms, lexeme_count, lexicon, morphology, numerals
from tasks.corpora.translation.lexicon import Words


def test_lexemes() -> None:
    assert lexeme_count() >= 400


def test_every_required_class_has_unambiguous_words() -> None:
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
