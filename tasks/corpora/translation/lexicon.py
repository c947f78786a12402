"""Reads nouns, verbs, adjectives and fixed phrases from the tables in `words/` and selects those that fit a context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tasks.corpora.tables import items, read_table
from tasks.corpora.translation.english_forms import plural
from tasks.corpora.translation.morphology import feminine, linked

Tags = frozenset[str]
"""Classes of nouns, flags of verbs, or time frames."""
_WORDS = Path(__file__).parent / "words"


def _table(name: str) -> list[dict[str, str]]:
    return read_table(_WORDS / f"{name}.tsv")


def _tags(cell: str) -> Tags:
    return frozenset(items(cell))


@dataclass(frozen=True)
class Noun:
    """One sense of a noun: `english` holds (singular, plural) pairs."""

    lemma: str
    gender: str
    genitive: str
    plural: str
    english: tuple[tuple[str, str], ...]
    tags: Tags
    place: str = ""
    """A key of `PLACE_KINDS`; empty for a noun that is no place."""
    compound: bool = False


@dataclass(frozen=True)
class Slot:
    """A complement that a verb requires: `kind` is acc, dat, prep, dir, loc, city, zu, ing, both, dass or ob."""

    kind: str
    case: str = ""
    preposition: str = ""
    english: str = ""
    tags: Tags = frozenset()
    moves: bool = False


@dataclass(frozen=True)
class Verb:
    """One sense of a verb, with its separable prefix apart; `reflexive` is the case of sich or empty."""

    prefix: str
    base: str
    english: tuple[str, ...]
    subject: Tags
    slots: tuple[Slot, ...]
    reflexive: str
    flags: Tags


@dataclass(frozen=True)
class Adjective:
    """One sense of an adjective: `stem` takes endings, `bare` stands after a copula."""

    stem: str
    bare: str
    english: tuple[str, ...]
    tags: Tags
    predicate_only: bool


@dataclass(frozen=True)
class Words:
    """A fixed phrase: its German, its English alternatives, and the frames or groups that it goes with."""

    german: str
    english: tuple[str, ...]
    kinds: Tags = frozenset()


@dataclass(frozen=True)
class PlaceKind:
    """The prepositions of a kind of place, for location and for direction; `case` is the one for direction."""

    there: str
    towards: str
    case: str
    english_there: tuple[str, ...]
    english_towards: tuple[str, ...]


def _english_noun(cell: str) -> tuple[tuple[str, str], ...]:
    forms = []
    for word in items(cell, "|"):
        singular, _, irregular = word.partition(":")
        forms.append((singular, irregular if irregular else plural(singular)))
    return tuple(forms)


def _nouns() -> list[Noun]:
    nouns = []
    for row in _table("nouns"):
        english, tags = _english_noun(row["english"]), _tags(row["classes"])
        nouns.append(Noun(row["lemma"], row["gender"], row["genitive"], row["plural"], english, tags, row["place"]))
        if row["feminine"]:
            lemma = feminine(row["lemma"])
            nouns.append(Noun(lemma, "f", "", f"{lemma}nen", english, tags, row["place"]))
    return nouns


def _slot(cell: str) -> Slot:
    head, _, classes = cell.partition(":")
    moves = ">" in head and head.startswith("dat")
    case, _, english = head.replace("=", ">").partition(">")
    preposition, dot, after = case.partition(".")
    kind, case, preposition = ("prep", after, preposition) if dot else (case, case, "")
    return Slot(kind, case, preposition, english, _tags(classes), moves)


def _verb(row: dict[str, str]) -> Verb:
    prefix, _, base = row["infinitive"].rpartition("|")
    cells = row["slots"].split()
    reflexive = {"sich": "acc", "sich3": "dat"}.get(cells[0], "") if cells else ""
    slots = tuple(_slot(cell) for cell in cells[bool(reflexive) :])
    return Verb(prefix, base, items(row["english"], "|"), _tags(row["subject"]), slots, reflexive, _tags(row["flags"]))


def _adjective(row: dict[str, str]) -> Adjective:
    english, tags = items(row["english"], "|"), _tags(row["classes"])
    return Adjective(row["stem"], row["bare"], english, tags, row["predicate_only"] != "")


def _fixed_phrases(name: str) -> tuple[Words, ...]:
    return tuple(Words(row["german"], items(row["english"], "|"), _tags(row["kinds"])) for row in _table(name))


def _pairs(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((row["german"], row["english"]) for row in _table(name))


def _place_kind(row: dict[str, str]) -> PlaceKind:
    there, towards = (items(row[column], "|") for column in ("english_there", "english_towards"))
    return PlaceKind(row["there"], row["towards"], row["case"], there, towards)


NOUNS = tuple(_nouns())
VERBS = tuple(_verb(row) for row in _table("verbs"))
ADJECTIVES = tuple(_adjective(row) for row in _table("adjectives"))
TIMES = _fixed_phrases("times")
ADVERBS = _fixed_phrases("adverbs")
MANNERS = _fixed_phrases("manners")
NAMES = tuple((row["name"], row["gender"]) for row in _table("names"))
CITIES = tuple(Words(german, (english,)) for german, english in _pairs("cities"))
WEEKDAYS = _pairs("weekdays")
MONTHS = _pairs("months")
PLACE_KINDS = {row["kind"]: _place_kind(row) for row in _table("place_kinds")}
CLASS_GROUPS = {row["group"]: items(row["classes"]) for row in _table("class_groups")}


@cache
def expand(tags: Tags) -> Tags:
    """Replace names of `CLASS_GROUPS` by the classes in them."""
    return frozenset(tag for name in tags for tag in CLASS_GROUPS.get(name, (name,)))


@cache
def senses(lemma: str) -> tuple[Noun, ...]:
    """Return all nouns with the written form `lemma`."""
    return tuple(noun for noun in NOUNS if noun.lemma == lemma)


def fits(noun: Noun, tags: Tags) -> bool:
    """Whether `noun` belongs to one of the classes `tags`."""
    return bool(noun.tags & expand(tags))


def resolved(noun: Noun, *places: Tags) -> bool:
    """Whether the classes that the context requires leave only this sense of the word."""
    others = (other for other in senses(noun.lemma) if other is not noun)
    return all(any(not fits(other, tags) for tags in places) for other in others)


@cache
def nouns_for(tags: Tags) -> tuple[Noun, ...]:
    """Return the nouns that fit; ambiguous ones only if `tags` alone resolve them."""
    return tuple(noun for noun in NOUNS if fits(noun, tags) and resolved(noun, tags))


@cache
def ambiguous_for(tags: Tags) -> tuple[Noun, ...]:
    """Return the nouns that fit and that `tags` alone do not resolve."""
    return tuple(noun for noun in NOUNS if fits(noun, tags) and not resolved(noun, tags))


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that fit `noun`."""
    return tuple(adjective for adjective in ADJECTIVES if fits(noun, adjective.tags))


def _compounds() -> list[Noun]:
    modifiers = {row["word"]: row for row in _table("compound_modifiers")}
    compounds = []
    for row in _table("compounds"):
        for head in (noun for lemma in items(row["heads"]) for noun in senses(lemma)[:1]):
            for modifier in (modifiers[word] for word in items(row["modifiers"])):
                first, english = linked(modifier["word"], modifier["link"]), modifier["english"]
                lemma, many = first + head.lemma.lower(), first + head.plural.lower() if head.plural else ""
                forms = tuple((f"{english} {one}", f"{english} {several}") for one, several in head.english)
                compounds.append(Noun(lemma, head.gender, head.genitive, many, forms, head.tags, head.place, compound=True))
    return compounds


COMPOUNDS = tuple(_compounds())


def lexeme_count() -> int:
    """Return the number of dictionary words: lemmas by word class, without senses, compounds and derivations in -in."""
    derived = {feminine(noun.lemma) for noun in NOUNS}
    nouns = {noun.lemma for noun in NOUNS} - derived
    verbs = {verb.prefix + verb.base for verb in VERBS}
    adjectives = {adjective.bare for adjective in ADJECTIVES}
    modifiers = {row["word"] for row in _table("compound_modifiers")} - nouns
    single = {words.german for words in (*TIMES, *ADVERBS, *MANNERS) if " " not in words.german}
    calendar = {german for german, _ in (*WEEKDAYS, *MONTHS)}
    return len(nouns | modifiers) + len(verbs) + len(adjectives) + len(single) + len(calendar) + len(NAMES) + len(CITIES)


@cache
def settled_for(tags: Tags) -> tuple[Noun, ...]:
    """Return the ambiguous nouns that `tags` resolve."""
    return tuple(noun for noun in nouns_for(tags) if len(senses(noun.lemma)) > 1)


@cache
def compounds_for(tags: Tags) -> tuple[Noun, ...]:
    """Return the compounds that fit."""
    return tuple(noun for noun in COMPOUNDS if fits(noun, tags))


@cache
def place_nouns() -> tuple[Noun, ...]:
    """Return the nouns that name places."""
    return tuple(noun for noun in NOUNS if noun.place)
