"""Draws nominals, phrases of place and phrases of time whose words fit each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tasks.corpora.translation import lexicon, numerals
from tasks.corpora.translation.lexicon import Noun, Tags, Verb, Words
from tasks.corpora.translation.structure import Agreement, Name, Nominal, NounPhrase, Place, Pronoun

T = TypeVar("T")

PERSON = frozenset({"person"})
ME, US = Agreement(1, False, "m"), Agreement(1, True, "pl")
_OWNED = frozenset([
    "clothes", "small", "car", "bike", "device", "furniture", "mail", "pet", "relation", "instrument", "load", "home", "cloth",
])  # fmt: skip
# Things that are counted in dozens at most.
_FEW = frozenset([
    "building", "person", "animal", "furniture", "room", "vehicle", "public", "event", "counter", "topic", "instrument",
    "device", "show", "queue", "goal", "firm",
])  # fmt: skip
_NEAR = (
    ("neben", ("next to", "beside")),
    ("vor", ("in front of", "outside")),
    ("hinter", ("behind",)),
)


class Phrases:
    """Draws the small parts of a sentence from one random generator."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def happens(self, probability: float) -> bool:
        """Return true with the given probability."""
        return self.rng.random() < probability

    def pick(self, weighted: Sequence[tuple[T, float]]) -> T:
        """Draw one of the values by weight."""
        values, weights = zip(*weighted, strict=True)
        chosen: T = self.rng.choices(values, weights)[0]
        return chosen

    def noun(self, tags: Tags) -> Noun:
        """Draw a noun that fits `tags`; compounds and ambiguous nouns are drawn more often than their share."""
        nouns, compounds, settled = lexicon.nouns_for(tags), lexicon.compounds_for(tags), lexicon.settled_for(tags)
        if not tags & PERSON and self.happens(min(0.3, 3 * len(settled) / len(nouns))):
            return self.rng.choice(settled)
        return self.rng.choice(compounds if self.happens(min(0.25, len(compounds) / len(nouns))) else nouns)

    def number_of(self, noun: Noun) -> bool:
        """Draw whether the noun is used in the plural."""
        if "plural" in noun.tags:
            return True
        return bool(noun.plural) and not noun.tags & {"mass", "one"} and self.happens(0.22)

    def subject(self, tags: Tags, owner: Agreement | None = None) -> Nominal:
        """Draw a subject, often a person: a pronoun, a name, or a noun such as a profession."""
        if tags & PERSON and self.happens(0.8 if len(tags) > 1 else 1.0):
            tags = PERSON
            kind = self.pick((("noun", 0.7), ("name", 0.18), ("pronoun", 0.12)))
            if kind == "pronoun":
                return Pronoun(self.rng.choice((ME, US)))
            if kind == "name":
                return self.name()
        return self.phrase(self.noun(tags), owner, as_subject=True)

    def name(self) -> Name:
        """Draw a person's name."""
        name, gender = self.rng.choice(lexicon.NAMES)
        return Name(name, Agreement(3, False, gender))

    def phrase(self, noun: Noun, owner: Agreement | None, *, as_subject: bool = False, plain: bool = False) -> NounPhrase:
        """Draw a noun with a determiner, perhaps an adjective, a number or a possessor; `plain` keeps it definite and short."""
        many = self.number_of(noun)
        determiner, count = self._determiner(noun, many, owner, as_subject, plain)
        if determiner == "possessor":
            return NounPhrase(noun, "der", many, self.adjective(noun, 0.2), possessor=self.possessor())
        if determiner == "number":
            return NounPhrase(noun, determiner, True, self.adjective(noun, 0.3), count=count)
        owner = owner if owner is not None else self.rng.choice((ME, US))
        adjective = self.adjective(noun, 0.15 if plain or determiner in ("dieser", "jeder") else 0.38)
        return NounPhrase(noun, determiner, many, adjective, owner)

    def _determiner(self, noun: Noun, many: bool, owner: Agreement | None, as_subject: bool, plain: bool) -> tuple[str, int]:
        if "family" in noun.tags:
            return ("poss" if self.happens(0.7) else "possessor"), 0
        ownable = bool(noun.tags & _OWNED) and not plain
        if ownable and self.happens(0.12 if as_subject else 0.08):
            return "possessor", 0
        if ownable and (owner is not None or as_subject) and self.happens(0.3):
            return "poss", 0
        if plain or "one" in noun.tags:
            return "der", 0
        if "mass" in noun.tags:
            return ("der" if as_subject or self.happens(0.4) else ""), 0
        if many:
            kind = self.pick((("der", 0.45), ("number", 0.4), ("", 0.03 if as_subject else 0.25), ("dieser", 0.06)))
            few = as_subject or bool(noun.tags & _FEW) or self.happens(0.1)
            return kind, self.rng.randint(2, 12) if few else self.rng.randint(13, 99)
        if as_subject:
            return self.pick((("der", 0.67), ("ein", 0.22), ("dieser", 0.11))), 0
        return self.pick((("der", 0.55), ("ein", 0.35), ("dieser", 0.06), ("jeder", 0.04))), 0

    def adjective(self, noun: Noun, probability: float) -> lexicon.Adjective | None:
        """Draw an adjective that stands before the noun, or none."""
        fitting = [adjective for adjective in lexicon.adjectives_for(noun) if not adjective.predicate_only]
        return self.rng.choice(fitting) if fitting and self.happens(probability) else None

    def possessor(self) -> NounPhrase | Name:
        """Draw a possessor: a name, the teacher, my sister."""
        if self.happens(0.35):
            return self.name()
        noun = self.noun(PERSON)
        if "family" in noun.tags:
            return NounPhrase(noun, "poss", owner=self.rng.choice((ME, US)))
        return NounPhrase(noun, "der", "plural" in noun.tags)

    def place(self, tags: Tags = frozenset()) -> Place:
        """Draw a location: in a room, next to a building, in a city; `tags` limit its kind."""
        if self.happens(0.12):
            return Place("in", "dat", ("in",), self.rng.choice(lexicon.CITIES))
        if not tags and self.happens(0.22):
            german, english = self.rng.choice(_NEAR)
            return Place(german, "dat", english, self.phrase(self.noun(frozenset({"building"})), None, plain=True))
        noun = self.rng.choice([noun for noun in lexicon.place_nouns() if not tags or noun.tags & tags])
        kind = lexicon.PLACE_KINDS[noun.place]
        return Place(kind.there, "dat", kind.english_there, self._landmark(noun))

    def goal(self, tags: Tags, english: str) -> Place:
        """Draw a destination; `english` is the preposition that the verb requires, if any."""
        if "town" in tags and self.happens(0.3):
            return self.city()
        noun = self.rng.choice([noun for noun in lexicon.place_nouns() if not tags or noun.tags & tags])
        kind = lexicon.PLACE_KINDS[noun.place]
        return Place(kind.towards, kind.case, (english,) if english else kind.english_towards, self._landmark(noun))

    def _landmark(self, noun: Noun) -> NounPhrase:
        return NounPhrase(noun, "der", adjective=self.adjective(noun, 0.2))

    def city(self) -> Place:
        """Draw a city as destination."""
        return Place("nach", "dat", ("to",), self.rng.choice(lexicon.CITIES))

    def time(self, frame: str, lasting: bool = False) -> Words:
        """Draw a time that fits the frame (past, now, habit, future or since); `lasting` allows a duration in the past."""
        if frame == "past" and lasting and self.happens(0.5):
            return numerals.span(self.rng, "for")
        if frame == "since":
            return numerals.span(self.rng, "since")
        fixed = self.rng.choice([words for words in lexicon.TIMES if frame in words.kinds])
        if frame == "now":
            return fixed
        if frame == "habit":
            day = self.pick(((fixed, 0.5), (numerals.weekday(self.rng, frame), 0.5)))
            return self._at(day) if day is not fixed and self.happens(0.5) else day
        made = self.pick(
            (
                (fixed, 0.42),
                (numerals.weekday(self.rng, frame), 0.2),
                (numerals.random_date(self.rng), 0.16),
                (numerals.span(self.rng, "ago" if frame == "past" else "ahead"), 0.1),
                (numerals.random_clock(self.rng), 0.1),
            )
        )
        fits_clock = made.german in (
            "gestern",
            "vorgestern",
            "heute",
            "morgen",
            "übermorgen",
        ) or made.german.startswith(("letzten ", "am "))
        return self._at(made) if fits_clock and "Monat" not in made.german and self.happens(0.3) else made

    def _at(self, day: Words) -> Words:
        hour = numerals.random_clock(self.rng)
        pairs = [f"{at} {on}" for on, at in zip(day.english * 2, hour.english * 2, strict=False)]
        return Words(f"{day.german} {hour.german}", tuple(dict.fromkeys(pairs))[:4])

    def manner(self, verb: Verb, subject: Agreement) -> Words:
        """Draw an adverb of manner that fits the verb."""
        able = verb.flags | {"person"} | ({"group"} if subject.many else set())
        return self.rng.choice([words for words in lexicon.MANNERS if words.kinds & able])
