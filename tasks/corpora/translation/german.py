"""Renders a sentence in German: case and agreement, verb-second and verb-final order, the order of constituents."""

from __future__ import annotations

from tasks.corpora.translation import morphology
from tasks.corpora.translation.lexicon import Words
from tasks.corpora.translation.numerals import german_number
from tasks.corpora.translation.structure import (
    Agreement,
    Clause,
    Complement,
    Gap,
    Joined,
    Name,
    Nominal,
    NounPhrase,
    Place,
    Pronoun,
    Sentence,
    agreement_of,
)


def _number_or_gender(agreement: Agreement) -> str:
    """Return the key of a pronoun in `morphology`: sg or pl for the first person, the gender for the third."""
    if agreement.person == 3:
        return agreement.gender
    return "pl" if agreement.many else "sg"


def nominal(phrase: Nominal, case: str) -> list[str]:
    """Return the words of a nominal in a case, without its relative clause."""
    agreement = phrase.agreement
    if isinstance(phrase, Pronoun):
        return [morphology.pronoun(agreement.person, _number_or_gender(agreement), case)]
    if isinstance(phrase, Name):
        return [morphology.name(phrase.name, case)]
    if isinstance(phrase, Gap):
        if phrase.owned is None:
            return [morphology.relative(agreement.gender, case)]
        return [morphology.relative(agreement.gender, "gen"), *_noun_words(phrase.owned, case, "")]
    return _full_phrase(phrase, case)


def _full_phrase(phrase: NounPhrase, case: str) -> list[str]:
    gender = phrase.agreement.gender
    if isinstance(phrase.possessor, Name):
        return [*nominal(phrase.possessor, "gen"), *_noun_words(phrase, case, "")]
    kind = phrase.determiner
    if kind == "poss":
        kind = morphology.possessive(phrase.owner.person, _number_or_gender(phrase.owner))
    if kind == "number":
        words = [german_number(phrase.count), *_noun_words(phrase, case, "")]
    elif kind:
        words = [morphology.article(kind, gender, case), *_noun_words(phrase, case, kind)]
    else:
        words = _noun_words(phrase, case, "")
    return words + (nominal(phrase.possessor, "gen") if phrase.possessor is not None else [])


def _noun_words(phrase: NounPhrase, case: str, kind: str) -> list[str]:
    noun, gender = phrase.noun, phrase.agreement.gender
    before = [morphology.adjective(phrase.adjective.stem, kind, gender, case)] if phrase.adjective is not None else []
    return [*before, morphology.noun(noun.lemma, noun.genitive, noun.plural, case, phrase.many)]


def _with_relative(phrase: Nominal, case: str) -> list[str]:
    return nominal(phrase, case) + _relative(phrase)


def _relative(phrase: Nominal) -> list[str]:
    if not isinstance(phrase, NounPhrase) or phrase.relative is None:
        return []
    clause = phrase.relative
    if isinstance(clause.subject, Gap):
        first = nominal(clause.subject, "nom")
    else:
        first = next(
            _argument(slot.preposition, slot.case, filler) for slot, filler in clause.arguments if isinstance(filler, Gap)
        )
    return [",", *first, *_verb_final(clause), ","]


def _argument(preposition: str, case: str, filler: Nominal) -> list[str]:
    words = nominal(filler, case)
    return morphology.contract([preposition, *words]) if preposition else words


def _place(place: Place | None) -> list[str]:
    if place is None:
        return []
    if isinstance(place.where, Words):
        return [place.german, place.where.german]
    return morphology.contract([place.german, *nominal(place.where, place.case)])


def _cluster(clause: Clause) -> tuple[str, list[str], str]:
    """Return the finite verb, the other verb forms in clause-final order, and the separated prefix of the finite verb."""
    verb, tense = clause.verb, clause.tense.german
    agreement = agreement_of(clause.subject)

    def finite(base: str, when: str) -> str:
        return morphology.finite(base, when, agreement.person, agreement.many)

    infinitive = [verb.prefix + verb.base]
    done = morphology.participle(verb.prefix, verb.base)
    when = "past" if tense in ("preterite", "pluperfect") else "present"
    if clause.modal:
        return finite(clause.modal, when), [done, "werden"] if clause.passive else infinitive, ""
    if clause.passive:
        if tense == "perfect":
            return finite("sein", "present"), [done, "worden"], ""
        return finite("werden", when), [done], ""
    if tense in ("perfect", "pluperfect"):
        transitive = verb.reflexive != "" or any(slot.kind == "acc" for slot, _ in clause.arguments)
        return (
            finite("sein" if morphology.takes_sein(verb.prefix, verb.base, transitive) else "haben", when),
            [done],
            "",
        )
    if tense == "future":
        return finite("werden", "present"), infinitive, ""
    return finite(verb.base, when), [], verb.prefix


def _middle(clause: Clause, with_subject: bool, front: str) -> list[str]:
    """Return the words between the finite verb (or the link word) and the end of the clause."""
    agreement = agreement_of(clause.subject)
    light = (
        [morphology.reflexive(agreement.person, _number_or_gender(agreement), clause.verb.reflexive)]
        if clause.verb.reflexive
        else []
    )
    parts: dict[str, list[str]] = {"dat": [], "acc": [], "late": [], "prep": []}
    for slot, filler in clause.arguments:
        if isinstance(filler, Gap) or (front == "object" and slot is clause.arguments[0][0]):
            continue
        words = _argument(slot.preposition, slot.case, filler)
        if isinstance(filler, Pronoun) and slot.kind in ("acc", "dat"):
            light = words + light if slot.kind == "acc" else light + words
        elif slot.kind == "acc" and (clause.object_late or not is_definite(filler)):
            parts["late"] += words
        else:
            parts[slot.kind if slot.kind in parts else "prep"] += words
    subject = _with_relative(clause.subject, "nom") if with_subject else []
    words = subject + light if isinstance(clause.subject, Pronoun) else light + subject
    words += [] if clause.time is None or front == "time" else clause.time.german.split()
    words += [] if clause.adverb is None or front == "adverb" else clause.adverb.german.split()
    words += parts["dat"] + parts["acc"]
    words += ["nicht"] if clause.negated else []
    words += [] if clause.companion is None else ["mit", *nominal(clause.companion, "dat")]
    words += [] if clause.manner is None else clause.manner.german.split()
    words += [] if front == "place" else _place(clause.place)
    words += parts["late"] + ([] if clause.price is None else clause.price.german.split())
    words += parts["prep"] + _place(clause.goal)
    if clause.agent is not None:
        words += morphology.contract(["von", *nominal(clause.agent, "dat")])
    return words + ([clause.predicate.bare] if clause.predicate is not None else [])


def is_definite(filler: Nominal) -> bool:
    """Whether a filler is definite, so that it precedes nicht and may precede manner and place."""
    return not isinstance(filler, NounPhrase) or filler.determiner in ("der", "dieser", "poss") or filler.possessor is not None


def _after(clause: Clause) -> list[str]:
    """Return the words after the end of the clause: relative clauses of objects and complement clauses."""
    words = [word for _, filler in clause.arguments for word in _relative(filler)]
    return words + ([",", *_complement(clause.complement), ","] if clause.complement is not None else [])


def _complement(complement: Complement) -> list[str]:
    clause = complement.clause
    if complement.kind in ("dass", "ob"):
        return [complement.kind, *_verb_final(clause)]
    middle = _middle(clause, with_subject=False, front="")
    words = [*middle, *morphology.zu_infinitive(clause.verb.prefix, clause.verb.base), *_after(clause)]
    return ["um", *words] if complement.kind == "purpose" else words


def _verb_final(clause: Clause) -> list[str]:
    finite, others, prefix = _cluster(clause)
    with_subject = not isinstance(clause.subject, Gap)
    return [*_middle(clause, with_subject, ""), *others, prefix + finite, *_after(clause)]


def _verb_second(clause: Clause, taken: bool) -> list[str]:
    """Return a main clause; if `taken` is true, something before it already fills the first position."""
    finite, others, prefix = _cluster(clause)
    front = "nothing" if taken else clause.front
    first: list[str] = []
    if front == "subject":
        first = _with_relative(clause.subject, "nom")
    elif front == "time" and clause.time is not None:
        first = clause.time.german.split()
    elif front == "adverb" and clause.adverb is not None:
        first = clause.adverb.german.split()
    elif front == "place":
        first = _place(clause.place)
    elif front == "object":
        slot, filler = clause.arguments[0]
        first = nominal(filler, slot.case)
    middle = _middle(clause, front != "subject", front)
    return [*first, finite, *middle, *others, *([prefix] if prefix else []), *_after(clause)]


def _joined(joined: Joined) -> list[str]:
    if joined.link.order == "final":
        return [joined.link.german, *_verb_final(joined.clause)]
    return [joined.link.german, *_verb_second(joined.clause, taken=joined.link.order == "second")]


def render(sentence: Sentence) -> list[str]:
    """Return the words of a German sentence, including commas, without the full stop."""
    if sentence.joined is None:
        return _verb_second(sentence.main, taken=False)
    if sentence.joined.first:
        return [*_joined(sentence.joined), ",", *_verb_second(sentence.main, taken=True)]
    comma = [] if sentence.joined.link.german == "und" else [","]
    return [*_verb_second(sentence.main, taken=False), *comma, *_joined(sentence.joined)]
