"""Renders a sentence in English. Wherever several wordings are correct, `choose` picks one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasks.corpora.translation import english_forms as forms
from tasks.corpora.translation.choices import Choose
from tasks.corpora.translation.english_nouns import nominal, place, relativizer
from tasks.corpora.translation.english_verbs import VerbGroup, infinitive, verb_group
from tasks.corpora.translation.lexicon import Slot
from tasks.corpora.translation.numerals import english_number
from tasks.corpora.translation.structure import (
    Clause,
    Complement,
    Gap,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
    agreement_of,
)

_AUXILIARIES = frozenset(
    [
        "am",
        "is",
        "are",
        "was",
        "were",
        "have",
        "has",
        "had",
        "do",
        "does",
        "did",
        "will",
        "can",
        "could",
        "must",
        "should",
        "may",
        "would",
        "need",
    ]
)
_MAY_DROP_THAT = frozenset(["say", "believe", "think", "know", "hope", "tell"])
_NO_COMMA = frozenset({"perhaps", "maybe"})
_SELF = {"m": "himself", "f": "herself", "n": "itself", "pl": "themselves"}


@dataclass(frozen=True)
class Roles:
    """Return the roles in the English clause, where German datives and passives can take other positions."""

    subject: Nominal
    objects: tuple[tuple[Slot, Nominal], ...]
    passive: bool = False
    agent: NounPhrase | None = None


def _roles(clause: Clause, choose: Choose) -> Roles:
    if "like" in clause.verb.flags:
        slot, liker = clause.arguments[0]
        return Roles(liker, ((replace(slot, english=""), clause.subject),))
    if not clause.passive:
        return Roles(clause.subject, clause.arguments)
    if clause.agent is not None and not isinstance(clause.subject, Gap) and choose("voice", (True, False)) is False:
        return Roles(clause.agent, ((Slot("acc", "acc"), clause.subject),))
    return Roles(clause.subject, (), True, clause.agent)


def _with_relative(phrase: Nominal, choose: Choose, negative: str, subject: bool) -> list[str]:
    words = nominal(phrase, choose, negative, subject)
    if isinstance(phrase, NounPhrase) and phrase.relative is not None:
        words += relative_words(phrase.relative, choose)
    return words


def _negation(clause: Clause, roles: Roles, choose: Choose) -> tuple[bool, str]:
    """Return whether the verb is negated, and the determiner for kein: `any` or `no`."""
    if not any(isinstance(filler, NounPhrase) and filler.determiner == "kein" for _, filler in roles.objects):
        return clause.negated, ""
    if clause.modal or clause.tense.english == "will":
        return True, "any"
    kind = choose("kein", ("any", "no"))
    return kind == "any", kind


def _objects(roles: Roles, particle: str, negative: str, choose: Choose) -> list[str]:
    """Return the objects in order, with the movable particle and any preposition that a relative pronoun leaves behind."""

    def sentence(filler: Nominal, preposition: str) -> list[str]:
        words = [] if isinstance(filler, Gap) and filler.owned is None else _with_relative(filler, choose, negative, False)
        return ([preposition] if preposition else []) + words

    objects = sorted(roles.objects, key=lambda pair: {"acc": 0, "dat": 1}.get(pair[0].kind, 2))
    if len(objects) == 2 and objects[0][0].kind == "acc" and objects[1][0].kind == "dat":
        (_, what), (person, whom) = objects
        heavy = isinstance(what, NounPhrase) and what.relative is not None
        free = person.moves and not isinstance(what, Gap | Pronoun) and not isinstance(whom, Gap)
        if free and (heavy or choose("dative", ("double", "to")) == "double"):
            return [*sentence(whom, ""), *sentence(what, "")]
        moved = [particle] if particle else []
        return [*sentence(what, ""), *moved, *sentence(whom, person.english)]
    words: list[str] = []
    for position, (slot, filler) in enumerate(objects):
        words += sentence(filler, slot.english if slot.kind == "prep" or (slot.kind == "dat" and not slot.moves) else "")
        if particle and position == 0:
            long = len(words) > 4 or not words or slot.kind == "prep"
            first = not isinstance(filler, Pronoun) and (long or choose("particle", (True, False)))
            words = [particle, *words] if first else [*words, particle]
    return words if objects or not particle else [particle]


def _with_adverb(group: VerbGroup, adverb: str) -> list[str]:
    """Return the verb group with an adverb: after the first auxiliary, or before a group that has none or is negated."""
    words = [*group.auxiliaries, *([group.main] if group.main else [])]
    if not adverb:
        return words
    plain = group.auxiliaries and group.auxiliaries[0] in _AUXILIARIES and "not" not in group.auxiliaries
    lexical = group.main.startswith("to ") and len(group.auxiliaries) == 1
    return [words[0], adverb, *words[1:]] if plain and not lexical else [adverb, *words]


def _trailing(clause: Clause, roles: Roles, objects: list[str], choose: Choose) -> list[str]:
    """Return everything after the verb except the time. English puts manner before place, and place before time."""
    manner: list[str] = []
    if clause.manner is not None:
        agreement = agreement_of(roles.subject)
        own = {1: "ourselves" if agreement.many else "myself", 3: _SELF[agreement.gender]}[agreement.person]
        way: str = choose(f"manner {clause.manner.german}", clause.manner.english)
        manner = way.replace("{self}", own).split()
    where = place(clause.place, choose)
    goal = place(clause.goal, choose)
    words = list(objects)
    if manner and goal and choose("manner place", ("manner", "goal")) == "manner":
        words += manner + goal
    else:
        words += goal + manner
    if roles.passive and roles.agent is not None:
        words += ["by", *nominal(roles.agent, choose, "", subject=False)]
    if clause.companion is not None:
        words += ["with", *nominal(clause.companion, choose, "", subject=False)]
    words += where
    return words + (choose("price", clause.price.english).split() if clause.price is not None else [])


def _predicate(clause: Clause, choose: Choose) -> list[str]:
    if clause.predicate is None:
        return []
    return [choose(f"adjective {clause.predicate.stem}", clause.predicate.english)]


def _adverb(clause: Clause, choose: Choose) -> str:
    """Return the adverb, or nothing: people leave out those that add little."""
    if clause.adverb is None:
        return ""
    left_out = ("",) if "drop" in clause.adverb.kinds else ()
    adverb: str = choose(f"adverb {clause.adverb.german}", (*clause.adverb.english, *left_out))
    return adverb


def clause_words(clause: Clause, choose: Choose, opens: bool) -> list[str]:
    """Return a finite clause. The time may come first if the clause opens the sentence."""
    roles = _roles(clause, choose)
    negated, negative = _negation(clause, roles, choose)
    head, particle, tail = verb_words(clause, choose)
    group = verb_group(clause, head, agreement_of(roles.subject), roles.passive, negated, choose)
    adverb = _adverb(clause, choose)
    in_front = adverb != "" and clause.adverb is not None and "front" in clause.adverb.kinds
    subject = (
        []
        if isinstance(roles.subject, Gap) and roles.subject.owned is None
        else _with_relative(roles.subject, choose, "", True)
    )
    words = subject + _with_adverb(group, "" if in_front else adverb) + tail
    heavy = clause.complement is not None or any(
        isinstance(filler, NounPhrase) and filler.relative for _, filler in roles.objects
    )
    words += _trailing(clause, roles, _objects(roles, particle, negative, choose) + _predicate(clause, choose), choose)
    time = choose(f"time {clause.time.german}", clause.time.english).split() if clause.time is not None else []
    first = opens and not in_front and bool(time)
    if first and not heavy:
        first = choose("time place", (False, True) if clause.front != "time" else (True, False))
    words = [*time, ",", *words] if first else [*words, *time]
    words += complement_words(clause.complement, head, choose)
    if not in_front:
        return words
    return [*adverb.split(), *([","] if opens and adverb not in _NO_COMMA else []), *words]


def verb_words(clause: Clause, choose: Choose) -> tuple[str, str, list[str]]:
    """Choose one of the English verbs and split it into head, movable particle (may be empty) and fixed rest."""
    verb = clause.verb
    name = f"verb {verb.prefix}{verb.base}"
    head, *rest = choose(name, verb.english).split()
    particle = next((word[1:] for word in rest if word.startswith("+")), "")
    return head, particle, [word for word in rest if not word.startswith("+")]


def complement_words(complement: Complement | None, verb: str, choose: Choose) -> list[str]:
    """Return a clause that a verb requires: that, whether, an infinitive or a gerund."""
    if complement is None:
        return []
    clause = complement.clause
    if complement.kind == "dass":
        drops = verb in _MAY_DROP_THAT and choose("that", (False, True))
        return ([] if drops else ["that"]) + clause_words(clause, choose, opens=False)
    if complement.kind == "ob":
        return [choose("whether", ("whether", "if")), *clause_words(clause, choose, opens=False)]
    kind = "zu" if complement.kind == "purpose" else complement.kind
    if kind == "both":
        kind = choose("infinitive", ("zu", "ing"))
    roles = _roles(clause, choose)
    head, particle, tail = verb_words(clause, choose)
    words = infinitive(head, kind).split()
    if clause.negated:
        words = ["not", *words]
    if complement.kind == "purpose":
        words = [*choose("purpose", ("in order", "")).split(), *words]
    return words + tail + _trailing(clause, roles, _objects(roles, particle, "any", choose), choose)


def relative_words(clause: Clause, choose: Choose) -> list[str]:
    """Return a relative clause with its pronoun, which may be left out unless it is the subject."""
    roles = _roles(clause, choose)
    gaps = [filler for filler in (roles.subject, *(filler for _, filler in roles.objects)) if isinstance(filler, Gap)]
    return [*relativizer(gaps[0], roles.subject, choose), *clause_words(clause, choose, opens=False)]


def _opened(words: list[str]) -> list[str]:
    """Return the words with correct articles and no figure at the beginning."""
    first = english_number(int(words[0])) if words[0].isdigit() else words[0]
    return forms.with_articles([first, *words[1:]])


def render(sentence: Sentence, choose: Choose) -> list[str]:
    """Return the words of an English sentence, including commas, without the full stop."""
    if sentence.joined is None:
        return _opened(clause_words(sentence.main, choose, opens=True))
    joined = sentence.joined
    link = choose(f"link {joined.link.german}", joined.link.english).split()
    orders = (joined.first, not joined.first) if joined.swaps else (joined.first,)
    if joined.link.order == "final" and choose("order", orders):
        words = [*link, *clause_words(joined.clause, choose, opens=False), ","]
        words += clause_words(sentence.main, choose, opens=False)
    else:
        words = [*clause_words(sentence.main, choose, opens=True), *([] if joined.link.order == "final" else [","])]
        words += [*link, *clause_words(joined.clause, choose, opens=False)]
    return _opened(words)
