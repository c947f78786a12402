"""Makes clauses at random: a verb, what it asks for, tense, negation, and the circumstances."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tasks.corpora.translation import lexicon
from tasks.corpora.translation.lexicon import Slot, Verb
from tasks.corpora.translation.phrases import PERSON, Phrases
from tasks.corpora.translation.structure import Agreement, Clause, Complement, Gap, Nominal, NounPhrase, Pronoun, Tense, agreement_of

_CLAUSAL = frozenset({"zu", "ing", "both", "dass", "ob"})
_PLACED = frozenset({"dir", "loc", "city"})
PLAIN = tuple(verb for verb in lexicon.VERBS if not any(slot.kind in _CLAUSAL for slot in verb.slots))
ASKING = tuple(verb for verb in lexicon.VERBS if any(slot.kind in ("dass", "ob") for slot in verb.slots))
CONTROL = tuple(verb for verb in lexicon.VERBS if any(slot.kind in ("zu", "ing", "both") for slot in verb.slots))
_ACTIONS = tuple(verb for verb in PLAIN if PERSON & verb.subject and "state" not in verb.flags and "like" not in verb.flags)
_MODALS = ("müssen", "können", "wollen", "sollen", "dürfen")
_BE = Verb("", "sein", ("be",), frozenset(), (), "", frozenset({"state"}))


@dataclass(frozen=True)
class Setting:
    """What a clause must agree with: its frame (past, now, habit, future, since) and how rich it may be.

    `tense` fixes the tense, where a link asks for one; `told` marks a sentence with a definite past, which has no present
    perfect in English; `rich` is how many circumstances may be added; `short` forbids heavy objects.
    """

    frame: str
    tense: Tense | None = None
    told: bool = False
    rich: int = 3
    main: bool = True


class Clauses(Phrases):
    """Draws clauses."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)

    def tense(self, setting: Setting) -> Tense:
        """The tense of the frame."""
        if setting.tense is not None:
            return setting.tense
        if setting.frame == "past":
            if self.chance(0.35):
                return Tense("preterite", "past")
            return Tense("perfect", "past" if setting.told else "either")
        if setting.frame == "future":
            return Tense("present" if self.chance(0.6) else "future", "will")
        return Tense("present", {"now": "progressive", "habit": "present", "since": "since"}[setting.frame])

    def verb_for(self, setting: Setting) -> Verb:
        """A verb that can be used in the frame."""
        if setting.frame == "since":
            return self.rng.choice([verb for verb in PLAIN if "dur" in verb.flags])
        verb = self.rng.choice(PLAIN)
        return verb if setting.frame != "now" or "state" not in verb.flags else self.rng.choice(_ACTIONS)

    def arguments(self, verb: Verb, owner: Agreement, filled: dict[Slot, Nominal], plain: bool = False) -> tuple[tuple[Slot, Nominal], ...]:
        """Fillers for the slots of the verb that nominals fill; `filled` gives those that are known."""
        pairs: list[tuple[Slot, Nominal]] = []
        for slot in verb.slots:
            if slot.kind in _CLAUSAL | _PLACED:
                continue
            if slot in filled:
                pairs.append((slot, filled[slot]))
            elif slot.kind == "dat" and slot.tags == PERSON and self.chance(0.15):
                pairs.append((slot, self.name()))
            elif slot.kind == "prep" and slot is not verb.slots[0] and self.chance(0.4):
                continue
            else:
                pairs.append((slot, self.phrase(self.noun(slot.tags), owner, plain=plain)))
        return tuple(pairs)

    def clause(self, setting: Setting, verb: Verb | None = None, subject: Nominal | None = None, filled: dict[Slot, Nominal] | None = None) -> Clause:
        """A clause in its setting; subject and some of the fillers may be given."""
        verb = self.verb_for(setting) if verb is None else verb
        if subject is None:
            subject = self.subject(verb.subject)
        owner = subject.agreement if not isinstance(subject, Gap) else agreement_of(subject)
        arguments = self.arguments(verb, owner, {} if filled is None else filled)
        made = Clause(verb, subject, self.tense(setting), arguments)
        made = self._placed(made)
        if "like" not in verb.flags:
            made = self._with_modal(made, setting)
            made = self._negated(made)
            if setting.main and not filled:
                made = self._passive(made)
        return self._circumstances(made, setting)

    def predicate(self, setting: Setting, subject: Nominal) -> Clause | None:
        """A copula clause about `subject` (war müde), or None where no adjective fits."""
        tags = subject.noun.tags if isinstance(subject, NounPhrase) else PERSON
        fitting = [adjective for adjective in lexicon.ADJECTIVES if adjective.tags & tags]
        if not fitting:
            return None
        tense = Tense("preterite", "past") if setting.frame == "past" else Tense("present", "present")
        return Clause(_BE, subject, tense, predicate=self.rng.choice(fitting), negated=self.chance(0.2))

    def _placed(self, made: Clause) -> Clause:
        kinds = {slot.kind for slot in made.verb.slots}
        if "dir" in kinds:
            return replace(made, goal=self.goal())
        if "city" in kinds:
            return replace(made, goal=self.city())
        return replace(made, place=self.place()) if "loc" in kinds else made

    def _with_modal(self, made: Clause, setting: Setting) -> Clause:
        person = agreement_of(made.subject).human
        if not person or made.tense.german not in ("present", "preterite", "perfect") or "state" in made.verb.flags:
            return made
        if setting.frame in ("since", "now") or setting.tense is not None or not self.chance(0.2):
            return made
        tense = Tense("preterite", "past") if setting.frame == "past" else Tense("present", "present")
        return replace(made, modal=self.rng.choice(_MODALS), tense=tense)

    def _negated(self, made: Clause) -> Clause:
        if not self.chance(0.17):
            return made
        pairs = list(made.arguments)
        for index, (slot, filler) in enumerate(pairs):
            if slot.kind == "acc" and isinstance(filler, NounPhrase) and filler.determiner in ("ein", ""):
                pairs[index] = (slot, replace(filler, determiner="kein"))
                return replace(made, arguments=tuple(pairs))
        counted = any(isinstance(filler, NounPhrase) and filler.determiner in ("ein", "", "number") for _, filler in pairs)
        return made if counted else replace(made, negated=True)

    def _passive(self, made: Clause) -> Clause:
        if "act" not in made.verb.flags or len(made.arguments) != 1 or not self.chance(0.2):
            return made
        slot, theme = made.arguments[0]
        simple = isinstance(theme, NounPhrase) and theme.determiner in ("der", "dieser", "number", "poss") and theme.owner is None
        if slot.kind != "acc" or not simple or not isinstance(made.subject, NounPhrase) or made.tense.english in ("progressive", "since"):
            return made
        agent = made.subject if self.chance(0.7) else None
        tense = replace(made.tense, german="preterite") if made.tense.german in ("pluperfect",) else made.tense
        if tense.german == "future":
            tense = replace(tense, german="present")
        return replace(made, subject=theme, arguments=(), passive=True, agent=agent, tense=tense)

    def _circumstances(self, made: Clause, setting: Setting) -> Clause:
        rich = setting.rich
        human = agreement_of(made.subject).human and not made.passive
        active = human and "state" not in made.verb.flags and "like" not in made.verb.flags
        if setting.main and (setting.frame in ("now", "since") or self.chance(0.75)):
            made = replace(made, time=self.time(setting.frame))
        elif setting.main and setting.frame == "habit":
            made = replace(made, time=self.time("habit"))
        if rich > 0 and setting.frame != "since" and not made.negated and self.chance(0.2):
            fitting = [words for words in lexicon.ADVERBS if setting.frame in words.kinds and (setting.main or "mid" in words.kinds)]
            if fitting:
                made = replace(made, adverb=self.rng.choice(fitting))
        if rich > 1 and active and "dur" not in made.verb.flags and self.chance(0.25):
            made = replace(made, manner=self.manner(made.verb, agreement_of(made.subject)))
        if rich > 1 and active and made.manner is None and self.chance(0.15):
            made = replace(made, companion=self.companion(agreement_of(made.subject)))
        if rich > 1 and active and made.goal is None and made.place is None and self.chance(0.4):
            made = replace(made, place=self.place())
        if "shop" in made.verb.flags and self.chance(0.5):
            made = replace(made, price=self.price())
        late = not made.negated and self.chance(0.4)
        return replace(made, object_late=late, front=self._front(made))

    def _front(self, made: Clause) -> str:
        options: list[tuple[str, float]] = [("subject", 0.5)]
        options += [("time", 0.4)] if made.time is not None else []
        options += [("adverb", 0.1)] if made.adverb is not None and "front" in made.adverb.kinds else []
        options += [("place", 0.06)] if made.place is not None and made.place.nominal is not None else []
        return self.pick(options)

    def companion(self, owner: Agreement) -> NounPhrase:
        """With whom: mit seinem Bruder."""
        return self.phrase(self.rng.choice([noun for noun in lexicon.nouns_for(PERSON) if noun.tags & {"family", "relation"}]), owner)

    def price(self) -> lexicon.Words:
        """For how much."""
        from tasks.corpora.translation.numerals import price

        return price(self.rng.randint(5, 480))

    def infinitive(self, owner: Agreement, kind: str) -> Complement:
        """An infinitive clause whose unsaid subject is `owner`."""
        verb = self.rng.choice([verb for verb in _ACTIONS if verb.slots and not verb.reflexive])
        made = Clause(verb, Pronoun(owner), Tense("present", "present"), self.arguments(verb, owner, {}))
        return Complement(kind, self._placed(made))
