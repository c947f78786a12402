"""Names the constructions in a sentence; tests count them to check what the corpus promises."""

from __future__ import annotations

import re

from tasks.corpora.translation.lexicon import MONTHS, senses
from tasks.corpora.translation.morphology import takes_sein
from tasks.corpora.translation.structure import Clause, Nominal, NounPhrase, Pronoun, Sentence, clauses_of

_UNITS_FIRST = re.compile(r"und(?:zwanz|dreiß|vierz|fünfz|sechz|siebz|achtz|neunz)ig")
_DATE = re.compile(rf"am \w+ten (?:{'|'.join(german for german, _ in MONTHS)})")
_CLOCK = re.compile(r"um (?:\w+ )+?(?:Uhr|eins|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf)\b")


def phenomena(sentence: Sentence, source: str) -> frozenset[str]:
    """The names of the constructions in a sentence; `source` is its German text."""
    found = {name for clause in clauses_of(sentence) for name in _of_clause(clause)}
    if sentence.joined is not None:
        found.add("verb-final clause" if sentence.joined.link.order == "final" else "two main clauses")
    if (sentence.joined is not None and sentence.joined.first) or sentence.main.front != "subject":
        found.add("inversion")
    if _DATE.search(source):
        found.add("date")
    if _CLOCK.search(source):
        found.add("clock time")
    if _UNITS_FIRST.search(source):
        found.add("units before tens")
    return frozenset(found)


def _of_clause(clause: Clause) -> set[str]:
    tense = clause.tense.german
    found = {tense} if tense in ("preterite", "pluperfect", "future") else set()
    if tense == "perfect" and not clause.passive:
        transitive = clause.verb.reflexive != "" or any(slot.kind == "acc" for slot, _ in clause.arguments)
        sein = takes_sein(clause.verb.prefix, clause.verb.base, transitive)
        found.add("perfect with sein" if sein else "perfect with haben")
    marks = {
        "separable verb": clause.verb.prefix != "",
        "reflexive verb": clause.verb.reflexive != "",
        "modal": clause.modal != "",
        "passive": clause.passive,
        "nicht": clause.negated,
        "object first": clause.front == "object",
        "copula": clause.predicate is not None,
        "two objects": {"acc", "dat"} <= {slot.kind for slot, _ in clause.arguments},
        "duration": clause.tense.english == "since" or (clause.time is not None and clause.time.german.endswith(" lang")),
    }
    found |= {name for name, holds in marks.items() if holds}
    if clause.complement is not None:
        found.add("verb-final clause" if clause.complement.kind in ("dass", "ob") else "infinitive clause")
    places = (place.where for place in (clause.place, clause.goal) if place is not None)
    phrases = [where for where in places if isinstance(where, NounPhrase)]
    for nominal in (clause.subject, *(filler for _, filler in clause.arguments), *phrases, clause.agent, clause.companion):
        found |= _of_nominal(nominal)
    return found


def _of_nominal(nominal: Nominal | None) -> set[str]:
    if isinstance(nominal, Pronoun):
        return {"pronoun"}
    if not isinstance(nominal, NounPhrase):
        return set()
    marks = {
        "compound": nominal.noun.compound,
        "ambiguous noun": len(senses(nominal.noun.lemma)) > 1,
        "n-declension": nominal.noun.genitive == "weak",
        "kein": nominal.determiner == "kein",
        "number": nominal.determiner == "number",
        "genitive": nominal.possessor is not None,
        "possessive": nominal.determiner == "poss",
        "relative clause": nominal.relative is not None,
        "adjective ending": nominal.adjective is not None,
    }
    found = {name for name, holds in marks.items() if holds}
    return found | ({"verb-final clause"} if nominal.relative is not None else set())
