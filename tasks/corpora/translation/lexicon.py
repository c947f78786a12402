"""Reads the tables of words into nouns, verbs, adjectives and adverbials, and finds the words that fit a place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tasks.corpora.translation import lexicon_nouns, lexicon_verbs, lexicon_words
from tasks.corpora.translation.english_forms import plural
from tasks.corpora.translation.morphology import feminine, linked

Tags = frozenset[str]


def _rows(table: str) -> list[list[str]]:
    """The cells of a table: one row a line, two spaces or more between cells; missing last cells are empty."""
    return [[*re.split(r"\s{2,}", line.strip()), ""] for line in table.strip().splitlines()]


@dataclass(frozen=True)
class Noun:
    """One sense of a noun: `english` holds (singular, plural) pairs."""

    lemma: str
    gender: str
    genitive: str
    plural: str
    english: tuple[tuple[str, str], ...]
    tags: Tags
    compound: bool = False

    @property
    def place(self) -> str:
        """The key into `PLACE_KINDS`, empty where the noun is no place."""
        return next((kind for kind in lexicon_nouns.PLACE_KINDS if kind in self.tags), "")


@dataclass(frozen=True)
class Slot:
    """What a verb asks for: `kind` is acc, dat, prep, dir, loc, city, zu, ing, both, dass or ob."""

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


def _english_noun(cell: str) -> tuple[tuple[str, str], ...]:
    forms = []
    for word in cell.replace("_", " ").split("|"):
        singular, _, irregular = word.partition(":")
        forms.append((singular, irregular if irregular else plural(singular)))
    return tuple(forms)


def _nouns() -> list[Noun]:
    nouns = []
    for table in lexicon_nouns.TABLES:
        for lemma, gender, genitive, many, english, tags, *_ in _rows(table):
            marks = frozenset(tags.split())
            noun = Noun(lemma, gender, genitive, "" if many == "-" else many, _english_noun(english), marks - {"+in"})
            nouns.append(noun)
            if "+in" in marks:
                lady = feminine(lemma)
                nouns.append(Noun(lady, "f", "-", lady + "nen", noun.english, noun.tags))
    return nouns


def _slot(cell: str) -> Slot:
    head, _, tags = cell.partition(":")
    moves = ">" in head and head.startswith("dat")
    case, _, english = head.replace("=", ">").partition(">")
    preposition, dot, after = case.partition(".")
    kind, case, preposition = ("prep", after, preposition) if dot else (case, case, "")
    return Slot(kind, case, preposition, english, frozenset(tags.split(",")) if tags else frozenset(), moves)


def _verbs() -> list[Verb]:
    verbs = []
    for table in (lexicon_verbs.HANDLING, lexicon_verbs.MIND, lexicon_verbs.MOTION, lexicon_verbs.CLAUSAL):
        for infinitive, english, subject, slots, flags, *_ in ([*row, ""] for row in _rows(table)):
            prefix, bar, base = infinitive.partition("|")
            cells = [cell for cell in slots.split() if cell != "-"]
            reflexive = {"sich": "acc", "sich3": "dat"}.get(cells[0], "") if cells else ""
            needed = tuple(_slot(cell) for cell in cells[bool(reflexive) :])
            parts = (prefix, base) if bar else ("", infinitive)
            verbs.append(
                Verb(
                    *parts,
                    tuple(english.split(";")),
                    frozenset(subject.split(",")),
                    needed,
                    reflexive,
                    frozenset(flags.split()),
                )
            )
    return verbs


def _adjectives() -> list[Adjective]:
    adjectives = []
    for word, english, tags, *_ in _rows(lexicon_words.ADJECTIVES):
        stem, colon, bare = word.partition(":")
        classes, _, use = tags.partition(" ")
        fits = frozenset(classes.split(","))
        adjectives.append(Adjective(stem, bare if colon else stem, tuple(english.split("|")), fits, use == "pred"))
    return adjectives


def _words(table: str) -> list[Words]:
    return [Words(row[0], tuple(row[1].split("|")), frozenset(row[2].split(","))) for row in _rows(table)]


NOUNS = tuple(_nouns())
VERBS = tuple(_verbs())
ADJECTIVES = tuple(_adjectives())
TIMES = tuple(_words(lexicon_words.TIMES))
ADVERBS = tuple(_words(lexicon_words.ADVERBS))
MANNERS = tuple(_words(lexicon_words.MANNERS))
NAMES = tuple(tuple(pair.split()) for pair in lexicon_words.NAMES.split("; "))
CITIES = tuple(Words(german, (english,)) for german, english in (pair.split() for pair in lexicon_words.CITIES.split("; ")))

GROUPS = {
    "goods": "fruit vegetable baked clothes car bike furniture device small instrument flowers sold load cloth spare image",
    "goods2": "fruit baked small flowers text",
    "lost": "small clothes document mail pet",
    "portable": "small load clothes text flowers",
    "gift": "flowers small clothes instrument image text",
}


@cache
def expand(tags: Tags) -> Tags:
    """The classes themselves, where some are names of `GROUPS`."""
    return frozenset(tag for name in tags for tag in GROUPS.get(name, name).split())


@cache
def senses(lemma: str) -> tuple[Noun, ...]:
    """Every noun that is written `lemma`."""
    return tuple(noun for noun in NOUNS if noun.lemma == lemma)


def fits(noun: Noun, tags: Tags) -> bool:
    """Whether `noun` may stand where `tags` are asked for."""
    return bool(noun.tags & expand(tags))


def resolved(noun: Noun, *places: Tags) -> bool:
    """Whether the classes asked for around the noun leave it as the only sense of its word."""
    others = (other for other in senses(noun.lemma) if other is not noun)
    return all(any(not fits(other, tags) for tags in places) for other in others)


@cache
def nouns_for(tags: Tags) -> tuple[Noun, ...]:
    """The nouns that fit, ambiguous ones only where `tags` alone decide."""
    return tuple(noun for noun in NOUNS if fits(noun, tags) and resolved(noun, tags))


@cache
def ambiguous_for(tags: Tags) -> tuple[Noun, ...]:
    """The nouns that fit, but of which `tags` alone leave another sense."""
    return tuple(noun for noun in NOUNS if fits(noun, tags) and not resolved(noun, tags))


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that suit `noun`."""
    return tuple(adjective for adjective in ADJECTIVES if fits(noun, adjective.tags))


def _compounds() -> list[Noun]:
    modifiers = {row[0]: row for row in _rows(lexicon_nouns.COMPOUND_MODIFIERS)}
    made = []
    for firsts, heads in lexicon_nouns.COMPOUND_GROUPS:
        for head in (noun for lemma in heads.split() for noun in senses(lemma)[:1]):
            for word, link, english, *_ in (modifiers[first] for first in firsts.split()):
                first = linked(word, link)
                forms = tuple((f"{english} {one}", f"{english} {many}") for one, many in head.english)
                many = first + head.plural.lower() if head.plural else ""
                made.append(Noun(first + head.lemma.lower(), head.gender, head.genitive, many, forms, head.tags, compound=True))
    return made


COMPOUNDS = tuple(_compounds())


def lexeme_count() -> int:
    """How many dictionary words the grammar knows: lemmas by word class, senses, compounds and -in derivations not counted."""
    lady = {feminine(noun.lemma) for noun in NOUNS}
    nouns = {noun.lemma for noun in NOUNS} - lady
    verbs = {verb.prefix + verb.base for verb in VERBS}
    adjectives = {adjective.bare for adjective in ADJECTIVES}
    modifiers = {row[0] for row in _rows(lexicon_nouns.COMPOUND_MODIFIERS)} - nouns
    single = {words.german for words in (*TIMES, *ADVERBS, *MANNERS) if " " not in words.german}
    calendar = {*lexicon_words.WEEKDAYS.split(), *lexicon_words.MONTHS.split()}
    return len(nouns | modifiers) + len(verbs) + len(adjectives) + len(single) + len(calendar) + len(NAMES) + len(CITIES)


@cache
def settled_for(tags: Tags) -> tuple[Noun, ...]:
    """The ambiguous nouns of which `tags` leave one sense."""
    return tuple(noun for noun in nouns_for(tags) if len(senses(noun.lemma)) > 1)


@cache
def compounds_for(tags: Tags) -> tuple[Noun, ...]:
    """The compounds that fit."""
    return tuple(noun for noun in COMPOUNDS if fits(noun, tags))


@cache
def place_nouns() -> tuple[Noun, ...]:
    """The nouns that say where something happens, without another sense in which they could."""
    return tuple(noun for noun in NOUNS if noun.place)
