"""Sentences written by hand in both languages: compounds, word order, negation, ambiguous words and relative clauses."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tasks.corpora.translation import english, german, lexicon
from tasks.corpora.translation.lexicon import Noun, Verb, Words
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

T = TypeVar("T")
# The package exports the function under the module's name.
module = importlib.import_module("tasks.corpora.translation.generate")
PAST, PERFECT, PRESENT = Tense("preterite", "past"), Tense("perfect", "past"), Tense("present", "present")


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


@pytest.mark.parametrize(
    ("lemma", "meaning"),
    [("Küchentisch", "kitchen table"), ("Kinderschuh", "children's shoe"), ("Schultür", "school door"),
     ("Arbeitsvertrag", "work contract"), ("Versicherungsvertrag", "insurance contract"), ("Käsesuppe", "cheese soup")],
)  # fmt: skip
def test_compounds(lemma: str, meaning: str) -> None:
    assert noun(lemma, meaning).compound


def test_the_verb_is_last_in_a_subordinate_clause_and_second_in_a_main_clause() -> None:
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


def test_the_final_prefix_selects_the_verb() -> None:
    coat = the("Mantel", "coat")
    worn = [
        doing(verb(*entry), TEACHER, coat, tense=PRESENT)
        for entry in (("an", "ziehen", "put +on"), ("aus", "ziehen", "take +off"))
    ]
    assert [both_languages(Sentence(clause)) for clause in worn] == [
        ("Der Lehrer zieht den Mantel an.", "The teacher puts on the coat."),
        ("Der Lehrer zieht den Mantel aus.", "The teacher takes off the coat."),
    ]


def test_the_participle_resolves_an_ambiguous_noun() -> None:
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


def test_a_relative_clause_resolves_an_ambiguous_noun() -> None:
    grammar = importlib.import_module("tasks.corpora.translation.grammar").Grammar(random.Random(4))
    goods = frozenset({"goods"})
    phrases = [grammar.related(goods, "past") for _ in range(200)]
    ambiguous = [phrase for phrase in phrases if phrase.noun in lexicon.ambiguous_for(goods)]
    assert len(ambiguous) > 10
    for phrase in ambiguous:
        asked = [slot.tags for slot, filler in phrase.relative.arguments if isinstance(filler, Gap)]
        asked += [phrase.relative.verb.subject] if isinstance(phrase.relative.subject, Gap) else []
        assert lexicon.resolved(phrase.noun, goods, *asked)
