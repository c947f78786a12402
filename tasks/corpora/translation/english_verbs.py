"""Builds the English verb group: tense, modals, negation, do-support and the passive."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.corpora.translation import english_forms as forms
from tasks.corpora.translation.choices import Choose
from tasks.corpora.translation.structure import Agreement, Clause

# The first verb of a group is finite; each verb determines the form of the next: base, to, ing or done.
Chain = tuple[tuple[str, str], ...]
_BASE, _TO = "base", "to"
_HAVE_TO: Chain = (("have_to", _TO),)
_ABLE: Chain = (("be able", _TO),)
_ALLOWED: Chain = (("be allowed", _TO),)
_SUPPOSED: Chain = (("be supposed", _TO),)
_WANT: Chain = (("want", _TO),)
_WISH: Chain = (("would like", _TO),)


def _modal(word: str) -> Chain:
    return ((word, _BASE),)


# English alternatives by German modal, past or present, and negated or not.
_MODALS: dict[tuple[str, str, bool], tuple[Chain, ...]] = {
    ("müssen", "present", False): (_HAVE_TO, _modal("must")),
    ("müssen", "present", True): (_HAVE_TO, _modal("need")),
    ("müssen", "past", False): (_HAVE_TO,),
    ("müssen", "past", True): (_HAVE_TO,),
    ("können", "present", False): (_modal("can"), _ABLE),
    ("können", "present", True): (_modal("can"), _ABLE),
    ("können", "past", False): (_ABLE, _modal("could")),
    ("können", "past", True): (_modal("could"), _ABLE),
    ("wollen", "present", False): (_WANT,),
    ("wollen", "present", True): (_WANT,),
    ("wollen", "past", False): (_WANT,),
    ("wollen", "past", True): (_WANT,),
    ("sollen", "present", False): (_SUPPOSED, _modal("should")),
    ("sollen", "present", True): (_modal("should"), _SUPPOSED),
    ("sollen", "past", False): (_SUPPOSED,),
    ("sollen", "past", True): (_SUPPOSED,),
    ("dürfen", "present", False): (_ALLOWED, _modal("may")),
    ("dürfen", "present", True): (_ALLOWED, _modal("must")),
    ("dürfen", "past", False): (_ALLOWED,),
    ("dürfen", "past", True): (_ALLOWED,),
    ("möchten", "present", False): (_WISH, _WANT),
    ("möchten", "present", True): (_WANT, _WISH),
}
_INVARIANT = frozenset(["will", "can", "could", "must", "should", "may", "would", "need"])


@dataclass(frozen=True)
class VerbGroup:
    """The auxiliaries with their negation, and the main verb. An adverb such as `often` stands between the two."""

    auxiliaries: tuple[str, ...]
    main: str


def _tense_chain(reading: str, verb: str, choose: Choose) -> tuple[str, Chain]:
    """Return the tense of the first verb, and the auxiliaries before the main verb."""
    have: Chain = (("have", "done"),)
    if reading == "progressive":
        return "present", (("be", "ing"),)
    if reading == "since":
        return "present", have if verb == "state" else choose("since", ((("have", "done"), ("be", "ing")), have))
    if reading == "will":
        return "present", choose("future", ((("will", _BASE),), (("be going", _TO),)))
    if reading == "either":
        return choose("perfect", (("past", ()), ("present", have)))
    if reading == "reported":
        return "past", choose("reported", (have, ()))
    if reading == "pluperfect":
        return "past", have
    return reading, ()


def _form(verb: str, asked: str) -> list[str]:
    head, *rest = verb.replace("have_to", "have").split()
    if asked == "ing":
        return [forms.ing(head), *rest]
    if asked == "done":
        return [forms.past_participle(head), *rest]
    return (["to"] if asked == _TO else []) + [head, *rest]


def verb_group(clause: Clause, head: str, agreement: Agreement, passive: bool, negated: bool, choose: Choose) -> VerbGroup:
    """Return the group for a finite clause whose main verb is `head`."""
    if clause.modal:
        tense = "past" if clause.tense.german == "preterite" else "present"
        chain = choose("modal", _MODALS[clause.modal, tense, negated])
    else:
        tense, chain = _tense_chain(clause.tense.english, "state" if "state" in clause.verb.flags else "", choose)
    if passive:
        chain = (*chain, ("be", "done"))
    if negated and (chain[0][0] in ("have_to", "want") if chain else head != "be"):
        chain = (("do", _BASE), *chain)
    verbs = [*(verb for verb, _ in chain), head]
    first, *rest = verbs[0].replace("have_to", "have").split()
    finite = first if chain and first in _INVARIANT else forms.finite(first, tense, agreement.person, agreement.many)
    started = [*forms.negative(finite, choose("short", (True, False))), *rest] if negated else [finite, *rest]
    rest_forms = [_form(verb, asked) for (_, asked), verb in zip(chain, verbs[1:], strict=True)]
    if rest_forms:
        before = [*started, *(word for form in rest_forms[:-1] for word in form)]
        return VerbGroup(tuple(before), " ".join(rest_forms[-1]))
    return VerbGroup(tuple(started), "") if negated or head == "be" else VerbGroup((), finite)


def infinitive(head: str, kind: str) -> str:
    """Return the main verb of an infinitive clause: `to open`, or `opening` if `kind` is ing."""
    return forms.ing(head) if kind == "ing" else f"to {head}"
