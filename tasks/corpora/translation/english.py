"""Renders a sentence in English. Wherever several wordings are correct, `choose` picks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from tasks.corpora.translation.lexicon import ENGLISH_VERBS, MODALS, NUMBERS, PRONOUNS, Words

Choose = Callable[[Sequence[str]], str]
"""Returns one of several wordings, of which the first is the commonest."""
_READINGS = {
    "past": ("past finite",),
    "present": ("present finite",),
    "progressive": ("present be ing",),
    "since": ("present have been ing", "present have done"),
    "will": ("present will base", "present be going to base"),
    "either": ("past finite", "present have done"),
    "pluperfect": ("past have done",),
    "reported": ("past have done", "past finite"),
}
"""Verb groups of each reading of a tense: the tense of the first verb, the auxiliaries, and the form of the main verb."""
_SHORT = {"will": "won't", "can": "can't", "may": "may not", "am": "am not"}
_MAY_DROP_THAT = frozenset(["say", "believe", "think", "know", "hope", "tell"])
_DETERMINERS = {"der": ("the",), "ein": ("a",), "jeder": ("every", "each"), "": ("", "some")}
_CONSONANT_SOUND = ("uni", "use", "euro", "one", "once")


def render(sentence: Sentence, choose: Choose) -> list[str]:
    """Return the words of an English sentence, including commas, without the full stop."""
    if sentence.link is None or sentence.second is None:
        return _with_articles(_clause(sentence.main, choose, opens=True))
    link, final = choose(sentence.link.english), sentence.link.order == "final"
    first = sentence.second_first
    # The order may change unless a pronoun would come before what it stands for.
    if final and not isinstance(sentence.second.subject, Pronoun) and not isinstance(sentence.main.subject, Pronoun):
        first = choose(("first", "last") if first else ("last", "first")) == "first"
    if first:
        second = _clause(sentence.second, choose)
        return _with_articles([link, *second, ",", *_clause(sentence.main, choose)])
    main = _clause(sentence.main, choose, opens=True)
    return _with_articles([*main, *([] if final else [","]), link, *_clause(sentence.second, choose)])


def _clause(clause: Clause, choose: Choose, *, opens: bool = False) -> list[str]:
    """Return a finite clause; the time may come first if the clause opens the sentence."""
    nothing = any(isinstance(filler, NounPhrase) and filler.determiner == "kein" for _, filler in clause.arguments)
    kein = choose(("any", "no")) if nothing and not clause.modal else "any"
    verb, *rest = choose(clause.verb.english).split()
    adverb = ""
    if clause.adverb is not None:
        # People leave out adverbs that add little.
        adverb = choose((*clause.adverb.english, *([""] if "drop" in clause.adverb.kinds else [])))
    negated = clause.negated or (nothing and kein == "any")
    words = [*_nominal(clause.subject, choose, "nom"), *_group(clause, verb, negated, adverb, choose)]
    words += [*rest, *_complements(clause, kein, choose)]
    time = [] if clause.time is None else choose(clause.time.english).split()
    heavy = clause.complement is not None or any(relative_of(filler) is not None for _, filler in clause.arguments)
    orders = ("early", "late") if clause.front == "time" else ("late", "early")
    if time and opens and (heavy or choose(orders) == "early"):
        words, time = [*time, ",", *words], []
    return [*words, *time, *_complement(clause.complement, verb, choose)]


def _group(clause: Clause, verb: str, negated: bool, adverb: str, choose: Choose) -> list[str]:
    """Return the verb group: tense, modal, negation with do, passive, and an adverb such as often after the auxiliary."""
    if clause.modal:
        tense = "past" if clause.tense.german == "preterite" else "present"
        groups = tuple(f"{tense} {group}" for group in MODALS[clause.modal, tense, negated])
    else:
        groups = _READINGS[clause.tense.english]
        groups = groups[1:] if clause.tense.english == "since" and "state" in clause.verb.flags else groups
    tense, *auxiliaries, form = choose(groups).split()
    if clause.passive:
        auxiliaries += {"finite": ["be"], "base": ["be"], "done": ["been"]}[form]
        form = "done"
    if negated and (auxiliaries[:2] in (["have", "to"], ["want", "to"]) or (form == "finite" and verb != "be")):
        auxiliaries, form = ["do", *auxiliaries], "base" if form == "finite" else form
    forms = ENGLISH_VERBS[verb]
    main = {"base": verb, "ing": forms.gerund, "done": forms.participle, "finite": _finite(verb, tense, clause)}[form]
    if not auxiliaries and not negated:
        return [*([adverb] if adverb and verb != "be" else []), main, *([adverb] if adverb and verb == "be" else [])]
    first, *others = [*auxiliaries, main] if auxiliaries else [verb]
    finite = _finite(first, tense, clause)
    if negated:
        long = "cannot" if finite == "can" else f"{finite} not"
        finite = choose((_SHORT.get(finite, f"{finite}n't"), long))
        return [*([adverb] if adverb else []), finite, *others]
    return [finite, *([adverb] if adverb else []), *others]


def _finite(verb: str, tense: str, clause: Clause) -> str:
    forms = ENGLISH_VERBS[verb]
    return (forms.past if tense == "past" else forms.present)[clause.subject.agreement.form]


def _complements(clause: Clause, kein: str, choose: Choose) -> list[str]:
    """Return everything after the verb except the time: objects, then goal, manner, agent and place."""
    words = _objects(clause, kein, choose)
    words += [] if clause.predicate is None else choose(clause.predicate.english).split()
    manner: list[str] = []
    if clause.manner is not None:
        own = PRONOUNS[clause.subject.agreement.english]["self"]
        manner = choose(clause.manner.english).replace("{self}", own).split()
    words += _place(clause.goal, choose) + manner
    words += [] if clause.agent is None else ["by", *_nominal(clause.agent, choose)]
    return words + _place(clause.place, choose)


def _objects(clause: Clause, kein: str, choose: Choose) -> list[str]:
    """Return the objects in order, with the prepositions that relative pronouns leave behind."""
    objects = sorted(clause.arguments, key=lambda pair: {"acc": 0, "dat": 1}.get(pair[0].kind, 2))
    moves = len(objects) > 1 and objects[1][0].moves and not any(isinstance(filler, Gap) for _, filler in objects)
    if moves and (relative_of(objects[0][1]) is not None or choose(("double", "to")) == "double"):
        return [word for _, filler in objects[1::-1] for word in _nominal(filler, choose, kein=kein)]
    words: list[str] = []
    for slot, filler in objects:
        # give the book to her; but help her, where the dative is the only object
        preposition = slot.english if not slot.moves or len(objects) > 1 else ""
        words += [*([preposition] if preposition else []), *_nominal(filler, choose, kein=kein)]
    return words


def _complement(complement: Complement | None, verb: str, choose: Choose) -> list[str]:
    """Return a clause that a verb requires: that, whether, an infinitive or a gerund."""
    if complement is None:
        return []
    clause, kind = complement.clause, complement.kind
    if kind == "dass":
        drops = verb in _MAY_DROP_THAT and choose(("that", "")) == ""
        return [*([] if drops else ["that"]), *_clause(clause, choose)]
    if kind == "ob":
        return [choose(("whether", "if")), *_clause(clause, choose)]
    inner, *rest = choose(clause.verb.english).split()
    gerund = kind == "ing" or (kind == "both" and choose(("to", "ing")) == "ing")
    words = [ENGLISH_VERBS[inner].gerund] if gerund else ["to", inner]
    if kind == "purpose":
        words = [*choose(("in order", "")).split(), *words]
    return [*words, *rest, *_complements(clause, "any", choose)]


def _nominal(phrase: Nominal, choose: Choose, case: str = "acc", kein: str = "any") -> list[str]:
    """Return a nominal with its relative clause; `kein`, any or no, translates the determiner kein."""
    if isinstance(phrase, Pronoun):
        return [PRONOUNS[phrase.agreement.english]["subject" if case == "nom" else "object"]]
    if isinstance(phrase, Name):
        return [phrase.name]
    if isinstance(phrase, Gap):
        return []
    words = _noun_phrase(phrase, choose, kein)
    return words + (_relative(phrase.relative, choose) if phrase.relative is not None else [])


def _noun_phrase(phrase: NounPhrase, choose: Choose, kein: str) -> list[str]:
    noun = [choose([forms[phrase.many] for forms in phrase.noun.english])]
    if phrase.adjective is not None:
        noun = [choose(phrase.adjective.english), *noun]
    if phrase.possessor is not None:
        owner = _nominal(phrase.possessor, choose)
        if isinstance(phrase.possessor, Name) or choose(("s", "of")) == "s":
            plural = isinstance(phrase.possessor, NounPhrase) and phrase.possessor.many and owner[-1].endswith("s")
            return [*owner[:-1], owner[-1] + ("'" if plural else "'s"), *noun]
        return ["the", *noun, "of", *owner]
    return [*_determiner(phrase, choose, kein), *noun]


def _determiner(phrase: NounPhrase, choose: Choose, kein: str) -> list[str]:
    kind = phrase.determiner
    if kind == "poss":
        return [PRONOUNS[phrase.owner.english]["owner"]]
    if kind == "number":
        spoken = NUMBERS[phrase.quantity]["english"]
        return [choose((spoken, str(phrase.quantity)) if phrase.quantity > 12 else (spoken,))]
    if kind == "kein":
        uncounted = phrase.many or "mass" in phrase.noun.tags
        return ["no" if kein == "no" else "any" if uncounted else "a"]
    if kind == "dieser":
        return ["these" if phrase.many else "this"]
    return choose(_DETERMINERS[kind]).split()


def _relative(clause: Clause, choose: Choose) -> list[str]:
    """Return a relative clause with its pronoun, which may be left out unless it is the subject."""
    gap = next(filler for filler in (clause.subject, *(one for _, one in clause.arguments)) if isinstance(filler, Gap))
    who = "who" if gap.agreement.human else "which"
    if clause.subject is gap:
        pronoun = choose((who, "that") if who == "who" else ("that", who))
    else:
        pronoun = choose(("that", "", "whom" if who == "who" else who))
    return [*pronoun.split(), *_clause(clause, choose)]


def _place(place: Place | None, choose: Choose) -> list[str]:
    if place is None:
        return []
    where = [place.where.english[0]] if isinstance(place.where, Words) else _nominal(place.where, choose)
    return [choose(place.english), *where]


def _with_articles(words: list[str]) -> list[str]:
    """Return single words, with `an` for `a` before a vowel sound and no figure at the beginning."""
    words = " ".join(words).split()
    if words[0].isdigit():
        words[0] = NUMBERS[int(words[0])]["english"]
    for index, following in enumerate(word.lower() for word in words[1:]):
        vowel = following[0] in "aeiou" and not following.startswith(_CONSONANT_SOUND)
        if words[index] == "a" and (vowel or following.startswith(("hour", "honest"))):
            words[index] = "an"
    return words
