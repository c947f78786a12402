"""Draws relative clauses, some of which resolve ambiguous nouns."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tasks.corpora.translation import lexicon
from tasks.corpora.translation.clauses import OF_PEOPLE, PLAIN, ClauseContext, Clauses
from tasks.corpora.translation.lexicon import Noun, Slot, Tags, Verb
from tasks.corpora.translation.phrases import PERSON
from tasks.corpora.translation.structure import Agreement, Clause, Gap, NounPhrase

_LIVING = frozenset({"person", "animal", "pet", "farm"})


@cache
def _as_object(noun: Noun, tags: Tags) -> tuple[tuple[Verb, Slot], ...]:
    """Return the verbs and slots that the noun fits and that, together with `tags`, determine its sense."""
    return tuple(
        (verb, slot)
        for verb in PLAIN
        for slot in verb.slots[:1]
        if slot.kind in ("acc", "dat", "prep") and PERSON & verb.subject
        if lexicon.fits(noun, slot.tags) and lexicon.resolved(noun, tags, slot.tags)
    )


@cache
def _as_subject(noun: Noun, tags: Tags) -> tuple[Verb, ...]:
    return tuple(
        verb
        for verb in PLAIN
        if "like" not in verb.flags and lexicon.fits(noun, verb.subject) and lexicon.resolved(noun, tags, verb.subject)
    )


class Relatives(Clauses):
    """Draws nominals with relative clauses."""

    def related(self, tags: Tags, frame: str) -> NounPhrase:
        """Draw a nominal that fits `tags`, with a relative clause; often a noun whose sense only that clause determines."""
        ambiguous = [noun for noun in lexicon.ambiguous_for(tags) if _as_object(noun, tags) or _as_subject(noun, tags)]
        noun = (
            self.rng.choice(ambiguous) if ambiguous and self.happens(0.25 if tags & PERSON else 0.5) else self._relatable(tags)
        )
        many = self.number_of(noun)
        determiner = "der" if many or "one" in noun.tags or "mass" in noun.tags or self.happens(0.7) else "ein"
        phrase = NounPhrase(noun, determiner, many, self.adjective(noun, 0.25))
        return replace(phrase, relative=self._relative(phrase.agreement, noun, tags, frame))

    def _relatable(self, tags: Tags) -> Noun:
        while True:
            noun = self.noun(tags)
            if "family" not in noun.tags and (_as_object(noun, tags) or _as_subject(noun, tags)):
                return noun

    def _relative(self, agreement: Agreement, noun: Noun, tags: Tags, frame: str) -> Clause:
        context = ClauseContext(
            "habit" if frame in ("habit", "now") and self.happens(0.5) else "past",
            rich=1,
            main=False,
            timed=frame != "past" and self.happens(0.5),
        )
        subjects, objects = _as_subject(noun, tags), _as_object(noun, tags)
        if noun.tags & PERSON and self.happens(0.25):
            kin = self.rng.choice(lexicon.nouns_for(frozenset({"family"})))
            return self.clause(context, subject=Gap(agreement, NounPhrase(kin, "")), verb=self.verb_for(context, OF_PEOPLE))
        if subjects and (not objects or self.happens(0.7 if noun.tags & _LIVING else 0.3)):
            return self.clause(context, verb=self.rng.choice(subjects), subject=Gap(agreement))
        verb, slot = self.rng.choice(objects)
        return self.clause(context, verb=verb, filled={slot: Gap(agreement)})
