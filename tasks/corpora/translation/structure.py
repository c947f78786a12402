"""The abstract sentence, independent of either language: nominals, clauses and how they are joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.corpora.translation.lexicon import Adjective, Noun, Slot, Verb, Words


@dataclass(frozen=True)
class Agreement:
    """The features with which verbs, pronouns and possessives agree.

    `gender` is m, f, n or pl for German; `human` tells he and she from it.
    """

    person: int = 3
    many: bool = False
    gender: str = "m"
    human: bool = True


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun."""

    agreement: Agreement


@dataclass(frozen=True)
class Name:
    """A person's first name."""

    name: str
    agreement: Agreement


@dataclass(frozen=True)
class Gap:
    """The position of the relative pronoun in its clause; `owner` makes it a possessive (dessen Bruder, whose brother)."""

    agreement: Agreement
    owned: NounPhrase | None = None


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner, adjective, possessor and relative clause.

    `determiner` is der, dieser, jeder, ein, kein, poss (of `owner`), number (`count`) or empty.
    """

    noun: Noun
    determiner: str
    many: bool = False
    adjective: Adjective | None = None
    owner: Agreement = Agreement()
    count: int = 0
    possessor: NounPhrase | Name | None = None
    relative: Clause | None = None

    @property
    def agreement(self) -> Agreement:
        human = "person" in self.noun.tags
        return Agreement(3, self.many, "pl" if self.many else self.noun.gender, human)


Nominal = NounPhrase | Pronoun | Name | Gap


def agreement_of(nominal: Nominal) -> Agreement:
    """Return the features of a verb whose subject is `nominal`."""
    if isinstance(nominal, Gap) and nominal.owned is not None:
        return nominal.owned.agreement
    return nominal.agreement


@dataclass(frozen=True)
class Place:
    """A prepositional phrase of place: `where` is a nominal, or the name of a city."""

    german: str
    case: str
    english: tuple[str, ...]
    where: NounPhrase | Words


@dataclass(frozen=True)
class Tense:
    """Tense and aspect of the verb: `german` is present, preterite, perfect, pluperfect or future.

    `english` is present, progressive, since, will, past, either (past or present perfect), pluperfect or reported.
    """

    german: str
    english: str


@dataclass(frozen=True)
class Clause:
    """A verb with its arguments and adverbials.

    `arguments` pairs each slot of the verb with its filler; `front` names what stands first in a German main clause: subject,
    time, place, adverb or nothing (a subordinate clause or a link word stands there); `object_late` puts a definite object
    behind manner and place.
    """

    verb: Verb
    subject: Nominal
    tense: Tense
    arguments: tuple[tuple[Slot, Nominal], ...] = ()
    predicate: Adjective | None = None
    modal: str = ""
    passive: bool = False
    agent: NounPhrase | None = None
    negated: bool = False
    time: Words | None = None
    adverb: Words | None = None
    manner: Words | None = None
    companion: NounPhrase | None = None
    price: Words | None = None
    place: Place | None = None
    goal: Place | None = None
    complement: Complement | None = None
    front: str = "subject"
    object_late: bool = False


@dataclass(frozen=True)
class Complement:
    """A clause that a verb requires: `kind` is zu, ing, both, dass, ob or purpose (um ... zu)."""

    kind: str
    clause: Clause


@dataclass(frozen=True)
class Link:
    """How two clauses are joined: `order` is final, second (deshalb) or main (und) for the German of the second."""

    german: str
    english: tuple[str, ...]
    order: str


@dataclass(frozen=True)
class Joined:
    """A second clause, before the main clause if `first`; `swaps` if English may reverse the order of the two.

    The two do not swap if a pronoun would come before the noun that it refers to.
    """

    link: Link
    clause: Clause
    first: bool = False
    swaps: bool = True


@dataclass(frozen=True)
class Sentence:
    """A main clause, perhaps with another one joined to it."""

    main: Clause
    joined: Joined | None = None


def clauses_of(sentence: Sentence) -> Iterator[Clause]:
    """Yield all clauses of a sentence, including embedded ones."""
    waiting = [sentence.main, *([sentence.joined.clause] if sentence.joined is not None else [])]
    while waiting:
        clause = waiting.pop(0)
        yield clause
        fillers = (clause.subject, *(filler for _, filler in clause.arguments))
        waiting += [filler.relative for filler in fillers if isinstance(filler, NounPhrase) and filler.relative is not None]
        waiting += [clause.complement.clause] if clause.complement is not None else []
