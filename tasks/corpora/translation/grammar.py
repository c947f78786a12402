"""Draws sentences by patterns, some of which join two clauses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tasks.corpora.translation import lexicon
from tasks.corpora.translation.clauses import ASKING, CONTROL, OF_PEOPLE, ClauseContext
from tasks.corpora.translation.lexicon import Slot
from tasks.corpora.translation.phrases import PERSON
from tasks.corpora.translation.relatives import Relatives
from tasks.corpora.translation.structure import (
    Clause,
    Complement,
    Joined,
    Link,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
    Tense,
)

_PAST = Tense("preterite", "past")
_BECAUSE = (
    Link("weil", ("because", "since"), "final"),
    Link("da", ("since", "as"), "final"),
    Link("denn", ("because", "for"), "main"),
    Link("deshalb", ("so", "which is why"), "second"),
)
_DESPITE = (
    Link("obwohl", ("although", "even though"), "final"),
    Link("aber", ("but",), "main"),
    Link("trotzdem", ("yet", "but even so"), "second"),
)
_AND = (Link("und", ("and",), "main"),)
_BEFORE = (
    Link("bevor", ("before",), "final"),
    Link("während", ("while",), "final"),
    Link("als", ("when", "as"), "final"),
)
_AFTER = (Link("nachdem", ("after",), "final"), Link("sobald", ("as soon as", "once"), "final"))
_WHEN = (Link("wenn", ("when", "if"), "final"), Link("sobald", ("as soon as", "once"), "final"))
_FRAMES = (("past", 0.42), ("future", 0.14), ("habit", 0.12), ("now", 0.12), ("since", 0.2))
_SINGLE_OBJECT = tuple(
    verb for verb in OF_PEOPLE if len(verb.slots) == 1 and verb.slots[0].kind == "acc" and not verb.reflexive
)
_WITH_PURPOSE = tuple(
    verb
    for verb in OF_PEOPLE
    if "luck" not in verb.flags and any(slot.kind in ("dir", "city") or slot.tags & {"goods", "lost"} for slot in verb.slots)
)


class Grammar(Relatives):
    """Draws sentences."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._patterns: tuple[tuple[Callable[[], Sentence], float], ...] = (
            (self._simple, 0.2),
            (self._reasoned, 0.2),
            (self._in_time, 0.13),
            (self._about_object, 0.08),
            (self._with_relative_subject, 0.1),
            (self._with_relative_object, 0.1),
            (self._reported, 0.11),
            (self._controlled, 0.1),
            (self._purpose, 0.06),
        )

    def sentence(self) -> Sentence:
        """Draw a sentence of any pattern."""
        return self.pick(self._patterns)()

    def _simple(self) -> Sentence:
        return Sentence(self.clause(ClauseContext(self.pick(_FRAMES))))

    def _follow_up(self, context: ClauseContext, subject: Nominal) -> Clause:
        """Draw a second clause, about the same subject or another one."""
        again = _again(subject)
        if self.happens(0.3):
            predicate = self.predicate(context, subject)
            if predicate is not None:
                return replace(predicate, subject=again)
        if again.agreement.human and self.happens(0.5):
            return self.clause(context, verb=self.verb_for(context, OF_PEOPLE), subject=again)
        return self.clause(context)

    def _reasoned(self) -> Sentence:
        """Draw two clauses of which one is the reason for the other, stands in contrast to it, or is merely added."""
        frame = self.pick((("past", 0.6), ("future", 0.2), ("habit", 0.2)))
        main = self._of_person(ClauseContext(frame, rich=1))
        link = self.rng.choice(self.pick(((_BECAUSE, 0.5), (_DESPITE, 0.35), (_AND, 0.15))))
        definite_past = main.time is not None
        second = self._follow_up(
            ClauseContext(frame, definite_past=definite_past, rich=1, main=False, timed=False), main.subject
        )
        return self._joined(main, link, second)

    def _in_time(self) -> Sentence:
        """Draw two clauses of which one takes place before, after or during the other."""
        frame = self.pick((("past", 0.7), ("future", 0.18), ("habit", 0.12)))
        main = self._of_person(ClauseContext(frame, definite_past=True, rich=1, timed=self.happens(0.6)))
        if frame == "past":
            link = self.rng.choice(self.pick(((_BEFORE, 0.55), (_AFTER, 0.45))))
            tense = Tense("pluperfect", "reported") if link in _AFTER else _PAST
        else:
            link = self.rng.choice(_WHEN if frame == "future" else _BEFORE[:2] + _WHEN)
            tense = Tense("present", "present")
        context = ClauseContext(frame, tense, definite_past=True, rich=0, main=False, timed=False, negatable=False)
        if main.subject.agreement.human and self.happens(0.55):
            return self._joined(main, link, self.clause(context, self.verb_for(context, OF_PEOPLE), _again(main.subject)))
        return self._joined(main, link, self.clause(context))

    def _of_person(self, context: ClauseContext) -> Clause:
        return self.clause(context, self.verb_for(context, OF_PEOPLE), self.subject(PERSON))

    def _joined(self, main: Clause, link: Link, second: Clause) -> Sentence:
        """Return the two clauses in either order; the first one names a shared subject."""
        shared = isinstance(second.subject, Pronoun) and not isinstance(main.subject, Pronoun)
        if link.order != "final" or not self.happens(0.4):
            return Sentence(main, Joined(link, second, swaps=not (shared and main.passive)))
        if shared:
            main, second = replace(main, subject=second.subject), replace(second, subject=main.subject)
        return Sentence(main, Joined(link, second, first=True, swaps=not shared))

    def _about_object(self) -> Sentence:
        """Draw two clauses about an object, a pronoun in the second (er sucht den Schlüssel, weil er ihn verloren hat)."""
        frame = self.pick((("past", 0.75), ("future", 0.25)))
        context = ClauseContext(frame, definite_past=True, rich=1)
        main = self.clause(context, self.verb_for(context, _SINGLE_OBJECT), self.subject(PERSON))
        thing = main.arguments[0][1] if main.arguments else main.subject
        if not isinstance(thing, NounPhrase) or thing.determiner in ("kein", "jeder", "") or main.passive:
            return Sentence(main)
        verbs = [verb for verb in _SINGLE_OBJECT if lexicon.fits(thing.noun, verb.slots[0].tags) and verb is not main.verb]
        if not verbs:
            return Sentence(main)
        verb = self.rng.choice(verbs)
        link = self.rng.choice(self.pick(((_BECAUSE, 0.5), (_DESPITE, 0.3), (_AND, 0.2))))
        filled: dict[Slot, Nominal] = {verb.slots[0]: Pronoun(thing.agreement)}
        second = self.clause(replace(context, main=False, timed=False), verb, _again(main.subject), filled)
        return Sentence(main, Joined(link, second, swaps=False))

    def _with_relative_subject(self) -> Sentence:
        frame = self.pick((("past", 0.6), ("future", 0.2), ("habit", 0.2)))
        context = ClauseContext(frame, definite_past=True, rich=1)
        verb = self.verb_for(context)
        subject = self.related(PERSON if verb.subject >= PERSON else verb.subject, frame)
        return Sentence(self.clause(context, verb, subject))

    def _with_relative_object(self) -> Sentence:
        frame = self.pick((("past", 0.65), ("future", 0.2), ("habit", 0.15)))
        context = ClauseContext(frame, definite_past=True, rich=0)
        verb = self.verb_for(context, _SINGLE_OBJECT)
        thing = self.related(verb.slots[0].tags, frame)
        return Sentence(self.clause(context, verb=verb, subject=self.subject(PERSON), filled={verb.slots[0]: thing}))

    def _reported(self) -> Sentence:
        verb = self.rng.choice(ASKING)
        past = self.happens(0.6)
        frame = "past" if past else "habit"
        kind = next(slot.kind for slot in verb.slots if slot.kind in ("dass", "ob"))
        subject = self.subject(PERSON)
        timed = past and "state" not in verb.flags and self.happens(0.5)
        main = self.clause(
            ClauseContext(frame, _PAST if past else Tense("present", "present"), rich=0, timed=timed),
            verb=verb,
            subject=subject,
        )
        main = replace(main, negated=False, adverb=None)
        inner = self._told(past, kind, subject)
        return Sentence(replace(main, complement=Complement(kind, inner)))

    def _told(self, past: bool, kind: str, subject: Nominal) -> Clause:
        who = _again(subject) if self.happens(0.4) else None
        if past:
            tense = Tense(self.pick((("perfect", 0.6), ("pluperfect", 0.4))), "reported")
            context = ClauseContext("past", tense, rich=2, main=False, timed=False)
        else:
            frame = self.pick((("future", 0.5), ("past", 0.35), ("habit", 0.15))) if kind == "dass" else "future"
            context = ClauseContext(frame, rich=2, main=False)
        return self.clause(context, self.verb_for(context, OF_PEOPLE) if who is not None else None, who)

    def _controlled(self) -> Sentence:
        verb = self.rng.choice(CONTROL)
        frame = "past" if "state" in verb.flags else self.pick((("past", 0.7), ("future", 0.3)))
        main = self.clause(
            ClauseContext(frame, definite_past=True, rich=0, timed=self.happens(0.7)), verb=verb, subject=self.subject(PERSON)
        )
        main = replace(main, adverb=None)
        kind = next(slot.kind for slot in verb.slots if slot.kind in ("zu", "ing", "both"))
        owner = main.arguments[0][1].agreement if main.arguments else main.subject.agreement
        return Sentence(replace(main, complement=self.infinitive(owner, kind)))

    def _purpose(self) -> Sentence:
        frame = self.pick((("past", 0.7), ("future", 0.3)))
        verb = self.rng.choice(_WITH_PURPOSE)
        subject = self.subject(PERSON)
        main = self.clause(ClauseContext(frame, definite_past=True, rich=0), verb=verb, subject=subject)
        main = replace(main, negated=False, adverb=None)
        if main.passive:
            return Sentence(main)
        return Sentence(replace(main, complement=self.infinitive(main.subject.agreement, "purpose")))


def _again(subject: Nominal) -> Pronoun:
    """Return the pronoun for a subject that was named before."""
    return subject if isinstance(subject, Pronoun) else Pronoun(subject.agreement)
