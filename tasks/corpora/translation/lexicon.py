"""The vocabulary: the tables of `words/` with all inflected forms, and the words that fit a context."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Tags = frozenset[str]
"""Classes of nouns, flags of verbs, or time frames."""
CASES = ("nom", "acc", "dat", "gen")
_WORDS = Path(__file__).parent / "words"


def _table(name: str) -> list[dict[str, str]]:
    with (_WORDS / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


def _items(cell: str, separator: str = ",") -> tuple[str, ...]:
    return tuple(cell.split(separator)) if cell else ()


def _tags(cell: str) -> Tags:
    return frozenset(_items(cell))


@dataclass(frozen=True, eq=False)
class Noun:
    """One sense of a noun; its forms are ordered as `CASES`, its English alternatives are (singular, plural) pairs."""

    gender: str
    singular: tuple[str, ...]
    plural: tuple[str, ...]
    """Empty for a noun without a plural."""
    english: tuple[tuple[str, ...], ...]
    tags: Tags
    place: str
    """A key of `PLACE_KINDS`; empty for a noun that names no place."""
    compound: bool

    @property
    def lemma(self) -> str:
        return self.singular[0]


@dataclass(frozen=True, eq=False)
class Slot:
    """A complement that a verb requires: `kind` is acc, dat, prep, dir, loc, city, zu, ing, both, dass or ob."""

    kind: str
    case: str
    preposition: str
    english: str
    tags: Tags
    moves: bool
    """Whether English may put it before the direct object: give it to her, give her it."""


@dataclass(frozen=True, eq=False)
class Verb:
    """One sense of a verb, with its separable prefix apart; `reflexive` is sich (accusative), sich3 (dative) or empty."""

    prefix: str
    base: str
    english: tuple[str, ...]
    subject: Tags
    slots: tuple[Slot, ...]
    reflexive: str
    flags: Tags


@dataclass(frozen=True, eq=False)
class Adjective:
    """One sense of an adjective: `stem` takes endings, `bare` stands after a copula."""

    stem: str
    bare: str
    english: tuple[str, ...]
    tags: Tags
    predicate_only: bool


@dataclass(frozen=True)
class Words:
    """A fixed phrase: its German, its English alternatives, and the frames or flags that it goes with."""

    german: str
    english: tuple[str, ...]
    kinds: Tags = frozenset()


@dataclass(frozen=True)
class VerbForms:
    """The forms of a verb: finite ones for ich, er and wir, as in English."""

    present: tuple[str, ...]
    past: tuple[str, ...]
    participle: str
    gerund: str = ""


def _noun(row: dict[str, str]) -> Noun:
    singular, plural = _items(row["singular"]), _items(row["plural"])
    english = tuple(_items(cell, ":") for cell in _items(row["english"], "|"))
    return Noun(row["gender"], singular, plural, english, _tags(row["classes"]), row["place"], row["compound"] == "yes")


def _slot(cell: str) -> Slot:
    """Read a slot such as `acc:goods`, `auf.acc>for:mail` or `dat>to:person`; `=` in place of `>` never moves."""
    head, _, classes = cell.partition(":")
    moves = ">" in head and head.startswith("dat")
    case, _, english = head.replace("=", ">").partition(">")
    preposition, dot, after = case.partition(".")
    kind, case, preposition = ("prep", after, preposition) if dot else (case, case, "")
    return Slot(kind, case, preposition, english, _tags(classes), moves)


def _verb(row: dict[str, str]) -> Verb:
    prefix, _, base = row["infinitive"].rpartition("|")
    cells = row["slots"].split()
    reflexive = cells.pop(0) if cells and cells[0] in ("sich", "sich3") else ""
    english, slots = _items(row["english"], "|"), tuple(map(_slot, cells))
    return Verb(prefix, base, english, _tags(row["subject"]), slots, reflexive, _tags(row["flags"]))


def _adjective(row: dict[str, str]) -> Adjective:
    english, predicate_only = _items(row["english"], "|"), row["predicate_only"] == "yes"
    return Adjective(row["stem"], row["bare"], english, _tags(row["classes"]), predicate_only)


def _phrases(name: str) -> tuple[Words, ...]:
    return tuple(Words(row["german"], _items(row["english"], "|"), _tags(row.get("kinds", ""))) for row in _table(name))


def _verb_forms(name: str) -> dict[str, VerbForms]:
    return {
        row["infinitive"]: VerbForms(_items(row["present"]), _items(row["past"]), row["participle"], row.get("gerund", ""))
        for row in _table(name)
    }


NOUNS = tuple(map(_noun, _table("nouns")))
VERBS = tuple(map(_verb, _table("verbs")))
ADJECTIVES = tuple(map(_adjective, _table("adjectives")))
TIMES, ADVERBS, MANNERS, CITIES, CLOCK = map(_phrases, ("times", "adverbs", "manners", "cities", "clock"))
NAMES = tuple((row["name"], row["gender"]) for row in _table("names"))
MONTHS = tuple((row["german"], row["english"]) for row in _table("months"))
PLACE_KINDS = {row["kind"]: row for row in _table("place_kinds")}
LINKS = _table("links")
CONTRACTIONS = {row["words"]: row["contracted"] for row in _table("contractions")}
NUMBERS = {int(row["number"]): row for row in _table("numbers")}
PRONOUNS = {row["key"]: row for row in _table("pronouns")}
ENDINGS = {(row["word"], row["gender"]): row for row in _table("endings")}
"""Articles, possessives and relative pronouns by word and gender, and the endings of adjectives (weak, mixed, strong)."""
GERMAN_VERBS, ENGLISH_VERBS = _verb_forms("german_verbs"), _verb_forms("english_verbs")
MODALS = {(row["modal"], row["tense"], row["negated"] == "yes"): _items(row["english"], "|") for row in _table("modals")}
_CLASS_GROUPS = {row["group"]: _items(row["classes"]) for row in _table("class_groups")}


@cache
def expand(tags: Tags) -> Tags:
    """Replace names of groups of classes by the classes in them."""
    return frozenset(tag for name in tags for tag in _CLASS_GROUPS.get(name, (name,)))


def fits(noun: Noun, tags: Tags) -> bool:
    """Whether `noun` belongs to one of the classes `tags`."""
    return bool(noun.tags & expand(tags))


@cache
def nouns_for(tags: Tags, *, compound: bool = False) -> tuple[Noun, ...]:
    """Return the simple or compound nouns that fit; of an ambiguous word only the sense that `tags` leave."""
    fitting = [noun for noun in NOUNS if fits(noun, tags)]
    lemmas = [noun.lemma for noun in fitting]
    return tuple(noun for noun in fitting if noun.compound == compound and lemmas.count(noun.lemma) == 1)


@cache
def adjectives_for(noun: Noun, *, predicate: bool = False) -> tuple[Adjective, ...]:
    """Return the adjectives that fit `noun`, before it or as predicate."""
    return tuple(one for one in ADJECTIVES if fits(noun, one.tags) and (predicate or not one.predicate_only))


@cache
def places_for(tags: Tags) -> tuple[Noun, ...]:
    """Return the nouns that name a place of one of the kinds `tags`, or any place."""
    return tuple(noun for noun in NOUNS if noun.place and not noun.compound and (not tags or noun.tags & tags))
