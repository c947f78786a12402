"""Draws clauses: a verb with its arguments, tense, negation, and adverbials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.corpora.translation import lexicon, numerals
from tasks.corpora.translation.lexicon import Slot, Verb
from tasks.corpora.translation.phrases import PERSON, Phrases
from tasks.corpora.translation.structure import (
    Agreement,
    Clause,
    Complement,
    Gap,
    Nominal,
    NounPhrase,
    Pronoun,
    Tense,
    agreement_of,
)

_CLAUSAL = frozenset({"zu", "ing", "both", "dass", "ob"})
_PLACED = frozenset({"dir", "loc", "city"})
PLAIN = tuple(verb for verb in lexicon.VERBS if not any(slot.kind in _CLAUSAL for slot in verb.slots))
ASKING = tuple(verb for verb in lexicon.VERBS if any(slot.kind in ("dass", "ob") for slot in verb.slots))
CONTROL = tuple(verb for verb in lexicon.VERBS if any(slot.kind in ("zu", "ing", "both") for slot in verb.slots))
OF_PEOPLE = tuple(verb for verb in PLAIN if PERSON & verb.subject and "like" not in verb.flags)
_ACTIONS = tuple(verb for verb in OF_PEOPLE if not verb.flags & {"state", "luck"})
_MODALS = ("müssen", "können", "wollen", "sollen", "dürfen")
_BE = Verb("", "sein", ("be",), frozenset(), (), "", frozenset({"state"}))


@dataclass(frozen=True)
class ClauseContext:
    """The conditions for a clause: its time frame (past, now, habit, future, since) and how much it may contain.

    `tense` fixes the tense if a conjunction requires one; `definite_past` marks a sentence about a definite time in the past,
    where English has no present perfect; `rich` (0 to 2) is how much may be added; `timed` allows a time, `negatable` a
    negation.
    """

    frame: str
    tense: Tense | None = None
    definite_past: bool = False
    rich: int = 3
    main: bool = True
    timed: bool = True
    negatable: bool = True


class Clauses(Phrases):
    """Draws clauses."""

    def tense(self, context: ClauseContext, verb: Verb) -> Tense:
        """Return a tense that fits the frame."""
        if context.tense is not None:
            return context.tense
        if context.frame == "past":
            if self.happens(0.35):
                return Tense("preterite", "past")
            return Tense("perfect", "past" if context.definite_past else "either")
        if context.frame == "future":
            return (
                Tense("present", "present")
                if "state" in verb.flags and not context.timed
                else Tense("present" if self.happens(0.6) else "future", "will")
            )
        return Tense("present", {"now": "progressive", "habit": "present", "since": "since"}[context.frame])

    def verb_for(self, context: ClauseContext, verbs: Sequence[Verb] = PLAIN) -> Verb:
        """Draw one of `verbs` that can be used in the frame."""
        if context.frame == "since":
            return self.rng.choice([verb for verb in verbs if "dur" in verb.flags])
        unfit = {"now": {"state", "luck", "like"}, "habit": {"luck"}, "future": {"luck"}}.get(context.frame, set())
        return self.rng.choice([verb for verb in verbs if not verb.flags & unfit])

    def arguments(self, verb: Verb, owner: Agreement, filled: dict[Slot, Nominal]) -> tuple[tuple[Slot, Nominal], ...]:
        """Draw nominals for the slots of the verb; `filled` holds the fillers that are given."""
        pairs: list[tuple[Slot, Nominal]] = []
        for slot in verb.slots:
            if slot.kind in _CLAUSAL | _PLACED:
                continue
            if slot in filled:
                pairs.append((slot, filled[slot]))
            elif slot.kind == "dat" and slot.tags == PERSON and self.happens(0.15):
                pairs.append((slot, self.name()))
            elif slot.kind == "prep" and slot is not verb.slots[0] and "full" not in verb.flags and self.happens(0.4):
                continue
            else:
                phrase = self.phrase(self.noun(slot.tags), owner)
                phrase = replace(phrase, determiner="der") if slot.kind == "prep" and phrase.determiner == "jeder" else phrase
                foreign = "get" in verb.flags and phrase.determiner == "poss" and "family" not in phrase.noun.tags
                pairs.append((slot, replace(phrase, determiner="der") if foreign else phrase))
        return tuple(pairs)

    def clause(
        self,
        context: ClauseContext,
        verb: Verb | None = None,
        subject: Nominal | None = None,
        filled: dict[Slot, Nominal] | None = None,
    ) -> Clause:
        """Draw a clause; the subject and some of the fillers may be given."""
        verb = self.verb_for(context) if verb is None else verb
        if subject is None:
            subject = self.subject(verb.subject)
        owner = subject.agreement if not isinstance(subject, Gap) else agreement_of(subject)
        arguments = self.arguments(verb, owner, {} if filled is None else filled)
        made = Clause(verb, subject, self.tense(context, verb), arguments)
        made = self._placed(made)
        if "like" not in verb.flags:
            made = self._with_modal(made, context)
            made = self._negated(made) if context.negatable and context.frame != "habit" else made
            if context.main and not filled:
                made = self._passive(made)
        return self._circumstances(made, context)

    def predicate(self, context: ClauseContext, subject: Nominal) -> Clause | None:
        """Draw a copula clause about `subject` (war müde); None if no adjective fits."""
        tags = subject.noun.tags if isinstance(subject, NounPhrase) else PERSON
        fitting = [adjective for adjective in lexicon.ADJECTIVES if adjective.tags & tags]
        if not fitting:
            return None
        tense = Tense("preterite", "past") if context.frame == "past" else Tense("present", "present")
        return Clause(_BE, subject, tense, predicate=self.rng.choice(fitting), negated=self.happens(0.2))

    def _placed(self, made: Clause) -> Clause:
        kinds = {slot.kind for slot in made.verb.slots}
        goal = next((slot for slot in made.verb.slots if slot.kind == "dir"), None)
        if goal is not None:
            return replace(made, goal=self.goal(goal.tags, goal.english))
        if "city" in kinds:
            return replace(made, goal=self.city())
        loc = next((slot for slot in made.verb.slots if slot.kind == "loc"), None)
        return made if loc is None else replace(made, place=self.place(loc.tags))

    def _with_modal(self, made: Clause, context: ClauseContext) -> Clause:
        person = agreement_of(made.subject).human
        if not person or made.tense.german not in ("present", "preterite", "perfect") or made.verb.flags & {"state", "luck"}:
            return made
        if any(slot.kind in _CLAUSAL for slot in made.verb.slots):
            return made
        if context.frame in ("since", "now") or context.tense is not None or not self.happens(0.2):
            return made
        tense = Tense("preterite", "past") if context.frame == "past" else Tense("present", "present")
        return replace(made, modal=self.rng.choice(_MODALS), tense=tense)

    def _negated(self, made: Clause) -> Clause:
        if not self.happens(0.17):
            return made
        pairs = list(made.arguments)
        for index, (slot, filler) in enumerate(pairs):
            if slot.kind != "acc" or not isinstance(filler, NounPhrase) or filler.relative is not None:
                continue
            if filler.determiner in ("ein", ""):
                pairs[index] = (slot, replace(filler, determiner="kein"))
                return replace(made, arguments=tuple(pairs))
        counted = any(
            isinstance(filler, NounPhrase) and filler.determiner in ("ein", "", "number", "jeder") for _, filler in pairs
        )
        return made if counted else replace(made, negated=True)

    def _passive(self, made: Clause) -> Clause:
        if "act" not in made.verb.flags or len(made.arguments) != 1 or not self.happens(0.4):
            return made
        slot, theme = made.arguments[0]
        simple = isinstance(theme, NounPhrase) and theme.determiner in ("der", "dieser", "number")
        if (
            slot.kind != "acc"
            or not simple
            or not isinstance(made.subject, NounPhrase)
            or made.tense.english in ("progressive", "since", "will")
        ):
            return made
        agent = made.subject if self.happens(0.7) else None
        return replace(made, subject=theme, arguments=(), passive=True, agent=agent)

    def _circumstances(self, made: Clause, context: ClauseContext) -> Clause:
        rich = context.rich
        human = agreement_of(made.subject).human and not made.passive
        active = human and not made.verb.flags & {"state", "like", "luck"}
        heavy = any(isinstance(filler, NounPhrase) and filler.relative is not None for _, filler in made.arguments)
        alone = not any(filler.agreement.human for _, filler in made.arguments)
        if context.timed and (context.frame in ("now", "since") or self.happens(0.8)):
            made = replace(made, time=self.time(context.frame, "dur" in made.verb.flags))
            if context.frame == "past" and made.tense.english == "either":
                made = replace(made, tense=Tense(made.tense.german, "past"))
        if made.time is None and made.tense == Tense("present", "will") and not made.modal:
            made = replace(made, tense=Tense("future", "will"))
        if rich > 0 and context.frame != "since" and not _negative(made) and self.happens(0.2):
            fitting = [
                words for words in lexicon.ADVERBS if context.frame in words.kinds and (context.main or "mid" in words.kinds)
            ]
            if made.time is not None and (context.frame == "past" or made.time.german.startswith("jede")):
                fitting = [words for words in fitting if "habit" not in words.kinds or "front" in words.kinds]
            if fitting:
                made = replace(made, adverb=self.rng.choice(fitting))
        if rich > 1 and active and not _negative(made) and "dur" not in made.verb.flags and self.happens(0.25):
            made = replace(made, manner=self.manner(made.verb, agreement_of(made.subject)))
        if rich > 1 and active and alone and made.manner is None and self.happens(0.15):
            made = replace(made, companion=self.companion(agreement_of(made.subject)))
        if rich > 1 and active and made.goal is None and made.place is None and self.happens(0.4):
            made = replace(made, place=self.place())
        if "shop" in made.verb.flags and not heavy and self.happens(0.5):
            made = replace(made, price=self.price())
        late = not made.negated and self.happens(0.4)
        return replace(made, object_late=late, front=self._front(made))

    def _front(self, made: Clause) -> str:
        options: list[tuple[str, float]] = [("subject", 0.5)]
        options += [("time", 0.4)] if made.time is not None else []
        options += [("adverb", 0.1)] if made.adverb is not None and "front" in made.adverb.kinds else []
        options += [("object", 0.22)] if self._object_first(made) else []
        options += [("place", 0.06)] if made.place is not None and isinstance(made.place.where, NounPhrase) else []
        return self.pick(options)

    def _object_first(self, made: Clause) -> bool:
        """Whether the object may come first, which needs a visible case (den Schlüssel hat der Lehrer verloren)."""
        if not made.arguments or isinstance(made.subject, Pronoun | Gap):
            return False
        slot, filler = made.arguments[0]
        shown = slot.kind == "dat" or (slot.kind == "acc" and filler.agreement.gender == "m")
        return shown and isinstance(filler, NounPhrase) and filler.determiner in ("der", "dieser") and filler.relative is None

    def companion(self, owner: Agreement) -> NounPhrase:
        """Draw a companion: mit seinem Bruder."""
        return self.phrase(
            self.rng.choice([noun for noun in lexicon.nouns_for(PERSON) if noun.tags & {"family", "relation"}]), owner
        )

    def price(self) -> lexicon.Words:
        """Draw a price."""
        return numerals.price(self.rng.randint(5, 199))

    def infinitive(self, owner: Agreement, kind: str) -> Complement:
        """Draw an infinitive clause whose implied subject is `owner`."""
        verb = self.rng.choice([verb for verb in _ACTIONS if verb.slots and not verb.reflexive])
        made = Clause(verb, Pronoun(owner), Tense("present", "present"), self.arguments(verb, owner, {}))
        return Complement(kind, self._placed(made))


def _negative(made: Clause) -> bool:
    return made.negated or any(isinstance(filler, NounPhrase) and filler.determiner == "kein" for _, filler in made.arguments)
