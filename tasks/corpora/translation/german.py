"""Renders a sentence in German: case and agreement, verb-second and verb-final order, the order of constituents."""

from __future__ import annotations

from tasks.corpora.translation.grammar import (
    Clause,
    Complement,
    Gap,
    Name,
    Nominal,
    NounPhrase,
    Place,
    Pronoun,
    Sentence,
    relative_of,
)
from tasks.corpora.translation.lexicon import CASES, CONTRACTIONS, ENDINGS, GERMAN_VERBS, NUMBERS, PRONOUNS, Words


def render(sentence: Sentence) -> list[str]:
    """Return the words of a German sentence, including commas, without the full stop."""
    main, link = sentence.main, sentence.link
    if link is None or sentence.second is None:
        return _verb_second(main, main.front)
    if link.order == "final":
        second = [link.german, *_verb_final(sentence.second)]
    else:
        second = [link.german, *_verb_second(sentence.second, "" if link.order == "second" else sentence.second.front)]
    if sentence.second_first:
        return [*second, ",", *_verb_second(main, "")]
    return [*_verb_second(main, main.front), *([] if link.german == "und" else [","]), *second]


def _verb_second(clause: Clause, front: str) -> list[str]:
    """Return a main clause; `front` is empty where something before it already fills the first position."""
    finite, others, prefix = _verbs(clause)
    first: list[str] = []
    if front == "subject":
        first = _nominal(clause.subject, "nom", relative=True)
    elif front == "time" and clause.time is not None:
        first = [clause.time.german]
    elif front == "object":
        slot, filler = clause.arguments[0]
        first = _nominal(filler, slot.case)
    return [*first, finite, *_middle(clause, front), *others, *([prefix] if prefix else []), *_after(clause)]


def _verb_final(clause: Clause) -> list[str]:
    finite, others, prefix = _verbs(clause)
    return [*_middle(clause), *others, prefix + finite, *_after(clause)]


def _verbs(clause: Clause) -> tuple[str, list[str], str]:
    """Return the finite verb, the other verb forms in clause-final order, and the separated prefix of the finite verb."""
    verb, tense = clause.verb, clause.tense.german
    past = tense in ("preterite", "pluperfect")

    def finite(base: str) -> str:
        forms = GERMAN_VERBS[base]
        return (forms.past if past else forms.present)[clause.subject.agreement.form]

    infinitive, participle = verb.prefix + verb.base, verb.prefix + GERMAN_VERBS[verb.base].participle
    if clause.modal:
        return finite(clause.modal), [participle, "werden"] if clause.passive else [infinitive], ""
    if clause.passive:
        return (finite("sein"), [participle, "worden"], "") if tense == "perfect" else (finite("werden"), [participle], "")
    if tense in ("perfect", "pluperfect"):
        return finite("sein" if "sein" in verb.flags else "haben"), [participle], ""
    if tense == "future":
        return finite("werden"), [infinitive], ""
    return finite(verb.base), [], verb.prefix


def _middle(clause: Clause, front: str = "") -> list[str]:
    """Return the words between the finite verb (or the link word) and the end of the clause."""
    light = [PRONOUNS[clause.subject.agreement.key][clause.verb.reflexive]] if clause.verb.reflexive else []
    before: list[str] = []
    late: list[str] = []
    prepositional: list[str] = []
    for slot, filler in sorted(clause.arguments, key=lambda pair: pair[0].kind != "dat"):
        if isinstance(filler, Gap) or (front == "object" and slot is clause.arguments[0][0]):
            continue
        words = _argument(slot.preposition, slot.case, filler)
        if slot.kind == "prep":
            prepositional += words
        elif isinstance(filler, Pronoun):
            light += words
        elif slot.kind == "acc" and isinstance(filler, NounPhrase) and not filler.definite:
            late += words
        else:
            before += words
    subject: list[str] = []
    if front != "subject" and not isinstance(clause.subject, Gap):
        subject = _nominal(clause.subject, "nom", relative=True)
    words = subject + light if isinstance(clause.subject, Pronoun) else light + subject
    words += [] if clause.time is None or front == "time" else [clause.time.german]
    words += [] if clause.adverb is None else [clause.adverb.german]
    words += before + (["nicht"] if clause.negated else [])
    words += [] if clause.manner is None else [clause.manner.german]
    words += _place(clause.place) + late + prepositional + _place(clause.goal)
    words += [] if clause.agent is None else _argument("von", "dat", clause.agent)
    return words + ([] if clause.predicate is None else [clause.predicate.bare])


def _after(clause: Clause) -> list[str]:
    """Return the words after the end of the clause: relative clauses of objects and complement clauses."""
    words = [word for _, filler in clause.arguments for word in _relative(filler)]
    return words + ([] if clause.complement is None else [",", *_complement(clause.complement), ","])


def _complement(complement: Complement) -> list[str]:
    clause, verb = complement.clause, complement.clause.verb
    if complement.kind in ("dass", "ob"):
        return [complement.kind, *_verb_final(clause)]
    infinitive = [f"{verb.prefix}zu{verb.base}"] if verb.prefix else ["zu", verb.base]
    words = [*_middle(clause, "subject"), *infinitive, *_after(clause)]
    return ["um", *words] if complement.kind == "purpose" else words


def _nominal(phrase: Nominal, case: str, *, relative: bool = False) -> list[str]:
    """Return the words of a nominal in a case; its relative clause follows only if `relative`."""
    if isinstance(phrase, Pronoun):
        return [PRONOUNS[phrase.agreement.key][case]]
    if isinstance(phrase, Name):
        return [phrase.name + ("" if case != "gen" else "'" if phrase.name[-1] in "sxz" else "s")]
    if isinstance(phrase, Gap):
        return [ENDINGS["relative", phrase.agreement.key][case]]
    return _noun_phrase(phrase, case) + (_relative(phrase) if relative else [])


def _noun_phrase(phrase: NounPhrase, case: str) -> list[str]:
    kind, gender, noun = phrase.determiner, phrase.agreement.key, phrase.noun
    if isinstance(phrase.possessor, Name):
        before, kind = _nominal(phrase.possessor, "gen"), ""
    elif kind == "number":
        before, kind = [NUMBERS[phrase.quantity]["german"]], ""
    elif kind == "poss":
        before = [ENDINGS[PRONOUNS[phrase.owner.key]["possessive"], gender][case]]
    else:
        before = [ENDINGS[kind, gender][case]] if kind else []
    if phrase.adjective is not None:
        declension = "weak" if kind in ("der", "dieser", "jeder") else "mixed" if kind else "strong"
        before.append(phrase.adjective.stem.removesuffix("e") + ENDINGS[declension, gender][case])
    words = [*before, (noun.plural if phrase.many else noun.singular)[CASES.index(case)]]
    return words + (_nominal(phrase.possessor, "gen") if isinstance(phrase.possessor, NounPhrase) else [])


def _relative(phrase: Nominal) -> list[str]:
    clause = relative_of(phrase)
    if clause is None:
        return []
    if isinstance(clause.subject, Gap):
        first = _nominal(clause.subject, "nom")
    else:
        gaps = ((slot, filler) for slot, filler in clause.arguments if isinstance(filler, Gap))
        first = next(_argument(slot.preposition, slot.case, filler) for slot, filler in gaps)
    return [",", *first, *_verb_final(clause), ","]


def _argument(preposition: str, case: str, filler: Nominal) -> list[str]:
    """Return a filler with its preposition, which contracts with the article after it: in dem becomes im."""
    words = _nominal(filler, case)
    if not preposition:
        return words
    contracted = CONTRACTIONS.get(f"{preposition} {words[0]}")
    return [preposition, *words] if contracted is None else [contracted, *words[1:]]


def _place(place: Place | None) -> list[str]:
    if place is None:
        return []
    if isinstance(place.where, Words):
        return [place.german, place.where.german]
    return _argument(place.german, place.case, place.where)
