"""The abstract sentence, independent of either language, and the grammar that draws sentences whose words fit each other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from tasks.corpora.translation import lexicon
from tasks.corpora.translation.lexicon import MONTHS, NUMBERS, Adjective, Noun, Slot, Tags, Verb, Words

T = TypeVar("T")


class Agreement(NamedTuple):
    """What verbs and pronouns agree with: `key` is ich, wir, m, f, n or pl; `human` tells he and she from it."""

    key: str
    human: bool = True

    @property
    def form(self) -> int:
        """The index of a finite form in `VerbForms`."""
        return {"ich": 0, "wir": 2, "pl": 2}.get(self.key, 1)

    @property
    def english(self) -> str:
        """The key of the English pronoun: things are it, whatever their German gender."""
        return self.key if self.human or self.form == 2 else "n"


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
    """The position of the relative pronoun in its clause."""

    agreement: Agreement


class NounPhrase(NamedTuple):
    """A noun with its determiner, adjective, possessor and relative clause.

    `determiner` is der, dieser, jeder, ein, kein, poss (of `owner`), number (`quantity`) or empty.
    """

    noun: Noun
    determiner: str
    many: bool = False
    adjective: Adjective | None = None
    owner: Agreement = Agreement("ich")
    quantity: int = 0
    possessor: NounPhrase | Name | None = None
    relative: Clause | None = None

    @property
    def agreement(self) -> Agreement:
        return Agreement("pl" if self.many else self.noun.gender, "person" in self.noun.tags)

    @property
    def definite(self) -> bool:
        """Whether it precedes nicht and may precede manner and place."""
        return self.determiner in ("der", "dieser", "poss") or self.possessor is not None


Nominal = NounPhrase | Pronoun | Name | Gap


def relative_of(nominal: Nominal) -> Clause | None:
    """Return the relative clause of a nominal."""
    return nominal.relative if isinstance(nominal, NounPhrase) else None


class Place(NamedTuple):
    """A phrase of place or direction: `where` is a nominal, or the name of a city."""

    german: str
    case: str
    english: tuple[str, ...]
    where: NounPhrase | Words


class Tense(NamedTuple):
    """Tense and aspect of the verb: `german` is present, preterite, perfect, pluperfect or future.

    `english` is present, progressive, since, will, past, either (past or present perfect), pluperfect or reported.
    """

    german: str
    english: str


@dataclass(frozen=True)
class Complement:
    """A clause that a verb requires: `kind` is zu, ing, both, dass, ob or purpose (um ... zu)."""

    kind: str
    clause: Clause


class Clause(NamedTuple):
    """A verb with its arguments and adverbials.

    `arguments` pairs each slot of the verb with its filler; `front` names what stands first in a German main clause: subject,
    time or object.
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
    place: Place | None = None
    goal: Place | None = None
    complement: Complement | None = None
    front: str = "subject"


@dataclass(frozen=True)
class Link:
    """How two clauses are joined: `order` is final, second (deshalb) or main (und) for the German of the second."""

    german: str
    english: tuple[str, ...]
    order: str


class Sentence(NamedTuple):
    """A main clause, perhaps with a second one joined to it, which comes before it if `second_first`."""

    main: Clause
    link: Link | None = None
    second: Clause | None = None
    second_first: bool = False

    def clauses(self) -> Iterator[Clause]:
        """Yield all clauses, including embedded ones."""
        waiting = [self.main, *([] if self.second is None else [self.second])]
        while waiting:
            clause = waiting.pop(0)
            yield clause
            inner = [relative_of(filler) for filler in (clause.subject, *(filler for _, filler in clause.arguments))]
            inner.append(None if clause.complement is None else clause.complement.clause)
            waiting += [one for one in inner if one is not None]


_PERSON = frozenset({"person"})
_SPEAKERS = (Agreement("ich"), Agreement("wir"))
_OWNED = lexicon.expand(frozenset({"owned"}))
_FEW = lexicon.expand(frozenset({"few"}))
"""Things that are counted in dozens at most."""
_SPANS = (("Tagen", "days"), ("Wochen", "weeks"), ("Monaten", "months"), ("Jahren", "years"))
_CLAUSAL = frozenset({"zu", "ing", "both", "dass", "ob"})


def _kinds(verb: Verb) -> set[str]:
    return {slot.kind for slot in verb.slots}


_PLAIN = tuple(verb for verb in lexicon.VERBS if not _kinds(verb) & _CLAUSAL)
_ASKING = tuple(verb for verb in lexicon.VERBS if _kinds(verb) & {"dass", "ob"})
_CONTROL = tuple(verb for verb in lexicon.VERBS if _kinds(verb) & {"zu", "ing", "both"})
_OF_PEOPLE = tuple(verb for verb in _PLAIN if _PERSON & verb.subject)
_ACTIONS = tuple(verb for verb in _OF_PEOPLE if not verb.flags & {"state", "luck"} and verb.slots and not verb.reflexive)
_WITH_OBJECT = tuple(verb for verb in _OF_PEOPLE if [slot.kind for slot in verb.slots] == ["acc"] and not verb.reflexive)
_GOING = tuple(verb for verb in _OF_PEOPLE if _kinds(verb) & {"dir", "city"})
_BE = Verb("", "sein", ("be",), frozenset(), (), "", frozenset({"state", "sein"}))
_PRESENT, _PAST = Tense("present", "present"), Tense("preterite", "past")
_REASONS, _BEFORE, _AFTER, _WHEN = (
    tuple(Link(row["german"], tuple(row["english"].split("|")), row["order"]) for row in lexicon.LINKS if row["use"] == use)
    for use in ("reason", "before", "after", "when")
)
_FRAMES = (("past", 0.42), ("future", 0.16), ("habit", 0.14), ("now", 0.12), ("since", 0.16))
_TOLD_FRAMES = (("past", 0.65), ("future", 0.2), ("habit", 0.15))


class Context(NamedTuple):
    """The conditions for a clause.

    `frame` is its time (past, now, habit, future, since); `tense` fixes the tense if a conjunction requires one; `single` is
    true for a sentence of one clause, which may have more adverbials; `timed` allows a time.
    """

    frame: str
    tense: Tense | None = None
    single: bool = False
    timed: bool = True


@cache
def _relatable(tags: Tags) -> tuple[Noun, ...]:
    """Return the nouns that fit `tags` and that a relative clause may be about."""
    return tuple(noun for noun in lexicon.nouns_for(tags) if "family" not in noun.tags and _relative_verbs(noun))


@cache
def _relative_verbs(noun: Noun) -> tuple[tuple[Verb, Slot | None], ...]:
    """Return the verbs that a relative clause about `noun` may have, with its slot there, or None for the subject."""
    found: list[tuple[Verb, Slot | None]] = [(verb, None) for verb in _PLAIN if noun in lexicon.nouns_for(verb.subject)]
    for verb in _OF_PEOPLE:
        slot = verb.slots[0] if verb.slots else None
        if slot is not None and slot.kind in ("acc", "dat", "prep") and noun in lexicon.nouns_for(slot.tags):
            found.append((verb, slot))
    return tuple(found)


# What many sentences ask for alike.

_VERBS = {"plain": _PLAIN, "of people": _OF_PEOPLE, "with object": _WITH_OBJECT}


@cache
def _usable(verbs: str, frame: str) -> tuple[Verb, ...]:
    """Return those of `_VERBS[verbs]` that can be used in the frame."""
    unfit = {"now": {"state", "luck"}, "habit": {"luck"}, "future": {"luck"}}.get(frame, set())
    return tuple(verb for verb in _VERBS[verbs] if not verb.flags & unfit and (frame != "since" or "dur" in verb.flags))


@cache
def _adverbs(frame: str) -> tuple[Words, ...]:
    fitting = (words for words in lexicon.ADVERBS if frame in words.kinds)
    return tuple(words for words in fitting if frame == "habit" or "habit" not in words.kinds)


@cache
def _times(frame: str) -> tuple[Words, ...]:
    return tuple(words for words in lexicon.TIMES if frame in words.kinds)


class Grammar:
    """Draws sentences from one random generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def sentence(self) -> Sentence:
        """Draw a sentence of any pattern."""
        patterns = (
            (self._simple, 0.18),
            (self._reasoned, 0.27),
            (self._in_time, 0.12),
            (self._with_relative, 0.26),
            (self._reported, 0.04),
            (self._controlled, 0.13),
        )
        return self._pick(patterns)()

    # Patterns

    def _simple(self) -> Sentence:
        return Sentence(self._clause(Context(self._pick(_FRAMES), single=True)))

    def _reasoned(self) -> Sentence:
        """Draw two clauses of which one is the reason for the other, stands in contrast to it, or is merely added."""
        context = Context(self._pick(_TOLD_FRAMES))
        main = self._of_person(context)
        second = self._second(context._replace(timed=False), main.subject)
        return self._joined(main, self._rng.choice(_REASONS), second)

    def _in_time(self) -> Sentence:
        """Draw two clauses of which one takes place before, after or during the other."""
        frame = self._pick(_TOLD_FRAMES)
        main = self._of_person(Context(frame, timed=self._happens(0.6)))
        links = self._rng.choice((_BEFORE, _AFTER)) if frame == "past" else _WHEN
        tense = _PRESENT if frame != "past" else _PAST if links is _BEFORE else Tense("pluperfect", "reported")
        second = self._second(Context(frame, tense, timed=False), main.subject)
        return self._joined(main, self._rng.choice(links), second)

    def _with_relative(self) -> Sentence:
        """Draw a clause whose subject or object has a relative clause."""
        context = Context(self._pick(_TOLD_FRAMES))
        if self._happens(0.5):
            verb = self._verb(context, "plain")
            return Sentence(self._clause(context, verb, self._related(verb.subject, context.frame)))
        verb = self._verb(context, "with object")
        return Sentence(self._clause(context, verb, None, self._related(verb.slots[0].tags, context.frame)))

    def _reported(self) -> Sentence:
        """Draw what somebody says, knows or asks."""
        verb, past = self._rng.choice(_ASKING), self._happens(0.6)
        kind = next(iter(_kinds(verb) & {"dass", "ob"}))
        context = Context("past" if past else "habit", _PAST if past else _PRESENT, timed=False)
        main = self._clause(context, verb, self._subject(_PERSON))._replace(adverb=None)
        inner = Context("past", Tense(self._rng.choice(("perfect", "pluperfect")), "reported"), timed=False)
        if not past:
            inner = Context("future" if kind == "ob" else self._pick(_TOLD_FRAMES))
        return Sentence(main._replace(complement=Complement(kind, self._second(inner, main.subject))))

    def _controlled(self) -> Sentence:
        """Draw what somebody tries or begins to do, or what they go somewhere for."""
        purpose = self._happens(0.25)
        verb = self._rng.choice(_GOING if purpose else _CONTROL)
        frame = "past" if "state" in verb.flags or self._happens(0.7) else "future"
        main = self._clause(Context(frame, timed=not purpose), verb, self._subject(_PERSON))._replace(adverb=None)
        kind = "purpose" if purpose else next(iter(_kinds(verb) & {"zu", "ing", "both"}))
        owner = (main.arguments[0][1] if main.arguments else main.subject).agreement
        action = self._rng.choice(_ACTIONS)
        inner = self._located(Clause(action, Pronoun(owner), _PRESENT, self._arguments(action, owner)))
        return Sentence(main._replace(negated=main.negated and not purpose, complement=Complement(kind, inner)))

    # Clauses

    def _joined(self, main: Clause, link: Link, second: Clause) -> Sentence:
        """Return two clauses in either order; the one in front names a shared subject."""
        if link.order != "final" or not self._happens(0.4):
            return Sentence(main, link, second)
        if isinstance(second.subject, Pronoun):
            main, second = main._replace(subject=second.subject), second._replace(subject=main.subject)
        return Sentence(main, link, second, second_first=True)

    def _second(self, context: Context, subject: Nominal) -> Clause:
        """Draw a further clause, about a person or thing that was named before or about another one."""
        again = subject if isinstance(subject, Pronoun) else Pronoun(subject.agreement)
        adjectives = lexicon.adjectives_for(subject.noun, predicate=True) if isinstance(subject, NounPhrase) else ()
        if adjectives and context.tense in (None, _PAST, _PRESENT) and self._happens(0.3):
            tense = _PAST if context.frame == "past" else _PRESENT
            return Clause(_BE, again, tense, predicate=self._rng.choice(adjectives), negated=self._happens(0.2))
        if again.agreement.human and self._happens(0.5):
            return self._clause(context, self._verb(context, "of people"), again)
        return self._clause(context)

    def _of_person(self, context: Context) -> Clause:
        return self._clause(context, self._verb(context, "of people"), self._subject(_PERSON))

    def _verb(self, context: Context, verbs: str) -> Verb:
        """Draw one of the verbs that can be used in the frame."""
        return self._rng.choice(_usable(verbs, context.frame))

    def _clause(
        self, context: Context, verb: Verb | None = None, subject: Nominal | None = None, first: Nominal | None = None
    ) -> Clause:
        """Draw a clause; verb, subject and the filler of the verb's first slot may be given."""
        verb = self._verb(context, "plain") if verb is None else verb
        subject = self._subject(verb.subject) if subject is None else subject
        timed = context.timed and (context.frame in ("now", "since") or self._happens(0.8))
        time = self._time(context.frame) if timed else None
        clause = Clause(verb, subject, self._tense(context, time), self._arguments(verb, subject.agreement, first))
        clause = self._located(clause._replace(time=time))
        plain = context.tense is None and context.frame not in ("since", "now") and not _kinds(verb) & _CLAUSAL
        if plain and subject.agreement.human and not verb.flags & {"state", "luck"} and self._happens(0.2):
            modal = self._rng.choice(("müssen", "können", "wollen", "sollen", "dürfen"))
            clause = clause._replace(modal=modal, tense=_PAST if context.frame == "past" else _PRESENT)
        if context.tense is None and context.frame != "habit" and self._happens(0.2):
            clause = self._negated(clause)
        if first is None and not clause.negated:
            clause = self._passive(clause)
        return self._with_adverbials(clause, context)

    def _tense(self, context: Context, time: Words | None) -> Tense:
        """Return a tense that fits the frame; English has no present perfect about a definite time."""
        if context.tense is not None:
            return context.tense
        if context.frame == "past":
            if self._happens(0.35):
                return _PAST
            return Tense("perfect", "either" if context.single and time is None else "past")
        if context.frame == "future":
            return Tense("present" if time is not None and self._happens(0.6) else "future", "will")
        return Tense("present", {"now": "progressive", "habit": "present", "since": "since"}[context.frame])

    def _arguments(self, verb: Verb, owner: Agreement, first: Nominal | None = None) -> tuple[tuple[Slot, Nominal], ...]:
        pairs: list[tuple[Slot, Nominal]] = []
        for position, slot in enumerate(verb.slots):
            if slot.kind in _CLAUSAL | {"dir", "loc", "city"}:
                continue
            if position == 0 and first is not None:
                pairs.append((slot, first))
            elif slot.kind == "dat" and slot.tags == _PERSON and self._happens(0.15):
                pairs.append((slot, self._name()))
            elif slot.kind != "prep" or position == 0 or "full" in verb.flags or self._happens(0.6):
                phrase = self._phrase(self._noun(slot.tags), owner)
                pairs.append((slot, phrase._replace(determiner="der") if phrase.determiner == "jeder" else phrase))
        return tuple(pairs)

    def _located(self, clause: Clause) -> Clause:
        """Add the place or goal that the verb requires."""
        for slot in clause.verb.slots:
            if slot.kind == "city" or (slot.kind == "dir" and "town" in slot.tags and self._happens(0.3)):
                return clause._replace(goal=Place("nach", "dat", ("to",), self._rng.choice(lexicon.CITIES)))
            if slot.kind in ("dir", "loc"):
                there = self._at(self._rng.choice(lexicon.places_for(slot.tags)), slot)
                return clause._replace(place=there) if slot.kind == "loc" else clause._replace(goal=there)
        return clause

    def _negated(self, clause: Clause) -> Clause:
        """Negate an indefinite object by kein, a clause without one by nicht; leave quantities as they are."""
        for position, (slot, filler) in enumerate(clause.arguments):
            if isinstance(filler, NounPhrase) and filler.determiner in ("ein", "", "number"):
                if slot.kind != "acc" or filler.determiner == "number" or filler.relative or filler.possessor:
                    return clause
                pairs = list(clause.arguments)
                pairs[position] = (slot, filler._replace(determiner="kein"))
                return clause._replace(arguments=tuple(pairs))
        return clause._replace(negated=True)

    def _passive(self, clause: Clause) -> Clause:
        """Turn a clause with a definite object into the passive, sometimes."""
        if "act" not in clause.verb.flags or len(clause.arguments) != 1 or clause.tense.german in ("pluperfect", "future"):
            return clause
        theme = clause.arguments[0][1]
        able = isinstance(theme, NounPhrase) and theme.determiner in ("der", "dieser", "number")
        if not able or not isinstance(clause.subject, NounPhrase) or clause.tense.english in ("progressive", "since", "will"):
            return clause
        if not self._happens(0.4):
            return clause
        agent = clause.subject if clause.subject.relative is None and self._happens(0.7) else None
        return clause._replace(subject=theme, arguments=(), passive=True, agent=agent)

    def _with_adverbials(self, clause: Clause, context: Context) -> Clause:
        """Add an adverb, a manner and a place, and choose what stands first."""
        negative = clause.negated or any(
            isinstance(filler, NounPhrase) and filler.determiner == "kein" for _, filler in clause.arguments
        )
        adverbs, habit = _adverbs(context.frame), context.frame == "habit"
        if adverbs and not negative and not (habit and clause.time is not None) and self._happens(0.2):
            clause = clause._replace(adverb=self._rng.choice(adverbs))
        active = clause.subject.agreement.human and not clause.passive and not clause.verb.flags & {"state", "luck"}
        if context.single and active:
            if not negative and "dur" not in clause.verb.flags and self._happens(0.25):
                able = clause.verb.flags | {"person", *(["group"] if clause.subject.agreement.key in ("wir", "pl") else [])}
                manners = [words for words in lexicon.MANNERS if words.kinds & able]
                clause = clause._replace(manner=self._rng.choice(manners))
            if clause.goal is None and clause.place is None and self._happens(0.4):
                clause = clause._replace(place=self._place())
        fronts = [("subject", 0.5)] + ([("time", 0.4)] if clause.time is not None else [])
        if clause.arguments and not isinstance(clause.subject, Pronoun | Gap):
            slot, filler = clause.arguments[0]
            # Only where the case shows: den Schlüssel hat der Lehrer verloren.
            shown = slot.kind == "dat" or (slot.kind == "acc" and filler.agreement.key == "m")
            plain = isinstance(filler, NounPhrase) and filler.determiner in ("der", "dieser") and filler.relative is None
            fronts += [("object", 0.22)] if shown and plain else []
        return clause._replace(front=self._pick(fronts))

    # Nominals

    def _noun(self, tags: Tags) -> Noun:
        compounds = lexicon.nouns_for(tags, compound=True)
        return self._rng.choice(compounds if compounds and self._happens(0.2) else lexicon.nouns_for(tags))

    def _subject(self, tags: Tags) -> Nominal:
        """Draw a subject, often a person: a pronoun, a name, or a noun such as a profession."""
        if tags & _PERSON and self._happens(0.8 if len(tags) > 1 else 1.0):
            tags = _PERSON
            kind = self._pick((("noun", 0.7), ("name", 0.18), ("pronoun", 0.12)))
            if kind != "noun":
                return self._name() if kind == "name" else Pronoun(self._rng.choice(_SPEAKERS))
        return self._phrase(self._noun(tags), None)

    def _name(self) -> Name:
        name, gender = self._rng.choice(lexicon.NAMES)
        return Name(name, Agreement(gender))

    def _phrase(self, noun: Noun, owner: Agreement | None) -> NounPhrase:
        """Draw a noun with a determiner, perhaps an adjective, a number or a possessor; a subject has no `owner` of things."""
        many = "plural" in noun.tags or (bool(noun.plural) and not noun.tags & {"mass", "one"} and self._happens(0.22))
        determiner, count = self._determiner(noun, many, owner is None), 0
        if determiner == "possessor":
            return NounPhrase(noun, "der", many, self._adjective(noun, 0.2), possessor=self._possessor())
        if determiner == "number":
            few = owner is None or bool(noun.tags & _FEW) or self._happens(0.1)
            many, count = True, self._rng.randint(2, 12) if few else self._rng.randint(13, 99)
        adjective = self._adjective(noun, 0.15 if determiner in ("dieser", "jeder") else 0.35)
        return NounPhrase(noun, determiner, many, adjective, owner or self._rng.choice(_SPEAKERS), count)

    def _determiner(self, noun: Noun, many: bool, as_subject: bool) -> str:
        if "family" in noun.tags:
            return "poss" if self._happens(0.7) else "possessor"
        if noun.tags & _OWNED and self._happens(0.35):
            return "poss" if self._happens(0.7) else "possessor"
        if "one" in noun.tags:
            return "der"
        if "mass" in noun.tags:
            return "der" if as_subject or self._happens(0.4) else ""
        if many:
            return self._pick((("der", 0.45), ("number", 0.4), ("", 0.03 if as_subject else 0.25), ("dieser", 0.06)))
        return self._pick((("der", 0.6), ("ein", 0.28), ("dieser", 0.08), ("jeder", 0.04)))

    def _adjective(self, noun: Noun, probability: float) -> Adjective | None:
        fitting = lexicon.adjectives_for(noun)
        return self._rng.choice(fitting) if fitting and self._happens(probability) else None

    def _possessor(self) -> NounPhrase | Name:
        """Draw a possessor: a name, the teacher, my sister."""
        if self._happens(0.35):
            return self._name()
        noun = self._noun(_PERSON)
        if "family" in noun.tags:
            return NounPhrase(noun, "poss", owner=self._rng.choice(_SPEAKERS))
        return NounPhrase(noun, "der", "plural" in noun.tags)

    def _related(self, tags: Tags, frame: str) -> NounPhrase:
        """Draw a nominal that fits `tags`, with a relative clause."""
        noun = self._rng.choice(_relatable(tags))
        many = "plural" in noun.tags
        determiner = "der" if many or noun.tags & {"one", "mass"} or self._happens(0.7) else "ein"
        phrase = NounPhrase(noun, determiner, many, self._adjective(noun, 0.25))
        verb, slot = self._rng.choice(_relative_verbs(noun))
        context, gap = Context("past", timed=frame != "past" and self._happens(0.5)), Gap(phrase.agreement)
        clause = self._clause(context, verb, gap) if slot is None else self._clause(context, verb, None, gap)
        return phrase._replace(relative=clause)

    # Places and times

    def _place(self) -> Place:
        """Draw a location: in a room, on a bridge, in a city."""
        if self._happens(0.12):
            return Place("in", "dat", ("in",), self._rng.choice(lexicon.CITIES))
        return self._at(self._rng.choice(lexicon.places_for(frozenset())))

    def _at(self, noun: Noun, slot: Slot | None = None) -> Place:
        """Return a place at the noun, or the way to it if the slot asks for a direction."""
        kind, where = lexicon.PLACE_KINDS[noun.place], NounPhrase(noun, "der", adjective=self._adjective(noun, 0.2))
        if slot is None or slot.kind == "loc":
            return Place(kind["there"], "dat", tuple(kind["english_there"].split("|")), where)
        return Place(kind["towards"], kind["case"], tuple((slot.english or kind["english_towards"]).split("|")), where)

    def _time(self, frame: str) -> Words:
        """Draw a time that fits the frame (past, now, habit, future or since)."""
        if frame == "since":
            return self._span("seit {}", "for {}")
        fixed = self._rng.choice(_times(frame))
        if frame in ("now", "habit"):
            return fixed
        kind = self._pick((("fixed", 0.6), ("date", 0.16), ("span", 0.12), ("clock", 0.12)))
        if kind == "date":
            return self._date()
        if kind == "span":
            return self._span("vor {}", "{} ago") if frame == "past" else self._span("in {}", "in {}")
        return self._rng.choice(lexicon.CLOCK) if kind == "clock" else fixed

    def _date(self) -> Words:
        """Draw a day of the year that exists in every month: am dritten Mai."""
        day, (german, english) = self._rng.randint(1, 28), self._rng.choice(MONTHS)
        ordinal = NUMBERS[day]
        options = (f"on {day} {english}", f"on the {ordinal['english_ordinal']} of {english}", f"on {english} {day}")
        return Words(f"am {ordinal['german_ordinal']}en {german}", options)

    def _span(self, german: str, english: str) -> Words:
        number, (unit, spoken) = NUMBERS[self._rng.randint(2, 12)], self._rng.choice(_SPANS)
        return Words(german.format(f"{number['german']} {unit}"), (english.format(f"{number['english']} {spoken}"),))

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, weighted: Sequence[tuple[T, float]]) -> T:
        """Draw one of the values by weight."""
        return self._rng.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]
