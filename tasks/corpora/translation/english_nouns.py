"""Renders nominals and phrases of place in English."""

from __future__ import annotations

from tasks.corpora.translation import english_forms as forms
from tasks.corpora.translation.choices import Choose
from tasks.corpora.translation.lexicon import Words
from tasks.corpora.translation.numerals import english_number
from tasks.corpora.translation.structure import Agreement, Gap, Name, Nominal, NounPhrase, Place, Pronoun

_SUBJECTS = {"m": "he", "f": "she", "n": "it"}
_OBJECTS = {"m": "him", "f": "her", "n": "it"}
_OWNERS = {"m": "his", "f": "her", "n": "its"}


def pronoun(agreement: Agreement, subject: bool) -> str:
    """Return the personal pronoun; things are `it`, whatever their German gender."""
    if agreement.person == 1:
        return ("we" if subject else "us") if agreement.many else ("I" if subject else "me")
    if agreement.many:
        return "they" if subject else "them"
    return (_SUBJECTS if subject else _OBJECTS)[agreement.gender if agreement.human else "n"]


def owner(agreement: Agreement) -> str:
    """Return the possessive determiner."""
    if agreement.person == 1:
        return "our" if agreement.many else "my"
    return "their" if agreement.many else _OWNERS[agreement.gender if agreement.human else "n"]


def nominal(phrase: Nominal, choose: Choose, negative: str, subject: bool) -> list[str]:
    """Return a nominal without its relative clause; `negative`, any or no, translates kein."""
    if isinstance(phrase, Pronoun):
        return [pronoun(phrase.agreement, subject)]
    if isinstance(phrase, Name):
        return [phrase.name]
    if isinstance(phrase, Gap):
        return _noun_words(phrase.owned, choose) if phrase.owned is not None else []
    return _determined(phrase, choose, negative)


def _noun_words(phrase: NounPhrase, choose: Choose) -> list[str]:
    one, many = choose(f"noun {phrase.noun.lemma}", phrase.noun.english)
    noun = (many if phrase.many else one).split()
    if phrase.adjective is None:
        return noun
    return [*choose(f"adjective {phrase.adjective.stem}", phrase.adjective.english).split(), *noun]


def _determined(phrase: NounPhrase, choose: Choose, negative: str) -> list[str]:
    words = _noun_words(phrase, choose)
    if isinstance(phrase.possessor, Name):
        return [*forms.possessive([phrase.possessor.name], False), *words]
    if phrase.possessor is not None:
        possessor = nominal(phrase.possessor, choose, "", subject=False)
        if choose("genitive", ("s", "of")) == "s":
            return [*forms.possessive(possessor, phrase.possessor.many), *words]
        return ["the", *words, "of", *possessor]
    return [*_determiner(phrase, choose, negative), *words]


def _determiner(phrase: NounPhrase, choose: Choose, negative: str) -> list[str]:
    mass = phrase.many or "mass" in phrase.noun.tags
    kind = phrase.determiner
    if kind == "poss":
        return [owner(phrase.owner)]
    if kind == "number":
        return [
            choose(
                "number",
                (english_number(phrase.count), str(phrase.count)) if phrase.count > 12 else (english_number(phrase.count),),
            )
        ]
    if kind == "kein":
        return ["no"] if negative == "no" else ["any" if mass else "a"]
    if kind == "dieser":
        return ["these" if phrase.many else "this"]
    if kind == "jeder":
        return [choose("every", ("every", "each"))]
    if kind == "der":
        return ["the"]
    if kind == "ein":
        return ["a"]
    return choose("some", ("", "some")).split()


def relativizer(gap: Gap, subject: Nominal, choose: Choose) -> list[str]:
    """Return the relative pronoun: who, which or that, or nothing unless it is the subject."""
    if gap.owned is not None:
        return ["whose"]
    who = "who" if gap.agreement.human else "which"
    if subject is gap:
        return [choose("relative", (who, "that") if who == "who" else ("that", who))]
    if isinstance(subject, NounPhrase) and (
        subject.adjective is not None or subject.possessor is not None or subject.determiner != "poss"
    ):
        return [choose("relative object", ("that", "whom" if who == "who" else who))]
    return choose("relative object", ("that", "", "whom" if who == "who" else who)).split()


def place(where: Place | None, choose: Choose) -> list[str]:
    """Return a phrase of place with its English preposition."""
    if where is None:
        return []
    before = choose(f"place {where.german} {where.case}", where.english).split()
    if isinstance(where.where, Words):
        return [*before, where.where.english[0]]
    return [*before, *nominal(where.where, choose, "", subject=False)]
