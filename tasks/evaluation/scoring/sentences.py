"""Sentences of a text, for ROUGE-Lsum: rules for European and Asian punctuation, without a model.

A mark ends a sentence unless something speaks against it: an abbreviation, an initial, an ordinal or a list number before it,
or a word in lower case after an ellipsis or a closing quote. Abbreviations that may end a sentence ("U.S.", "etc.") do so where
a word follows that often begins one, as in Kiss and Strunk, *Unsupervised Multilingual Sentence Boundary Detection*, 2006. A
text that stays ambiguous is not split. Lines always end sentences.
"""

from __future__ import annotations

import re

_MARK = re.compile(
    r"""(?P<marks>\.(?:[ ]\.)+|[.!?…؟۔।॥]+)(?P<closed>["'”’»“)\]]*)\s+  # a space has to follow
    |[。！？｡]+["'”’」』）]*\s*""",
    re.VERBOSE,
)
_OPENING = "\"'“”„‘’«»([¿¡"
_LETTERS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
"""An initial, or letters with full stops between them."""
_ROMAN = re.compile(r"[IVXL]{2,}")
_NEXT_WORD = re.compile(r"\W*(\w+)(\.?)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "mr mrs ms messrs mme mlle hr dr prof e.g i.e vs cf viz approx bzw ca vgl sog inkl z.b d.h u.a evtl ggf p.ej"
)
_ABBREVIATIONS = _words(
    """st mt ft gen sen rep gov hon rev lt col capt sgt maj adm cmdr cpl pvt pres det insp supt fr sr sra srta dott ing dipl
    ph.d m.d jr esq inc ltd co corp bros dept univ assn jan feb mar apr jun jul aug sep sept oct nov dec okt dez mon tue tues
    wed thu thur thurs fri fig figs abb eq vol ed eds al etc usw bspw str tel min max ave blvd rd"""
)
"""Titles, firms, dates, references."""
_BEFORE_NUMBERS = _words("no nos nr num art pp sec ch kap abs bd")
"""Abbreviations where a number follows, words elsewhere."""
_BEFORE_ORDINALS = _words(
    """am im der die das den dem des ein eine einem einen einer zum zur vom beim bis ab seit und oder jeder jedes jeden dieser
    dieses diesem"""
)
_AFTER_ORDINALS = _words(
    """januar februar märz april mai juni juli august september oktober november dezember jahrhundert jahrhunderts"""
)
_STARTERS = _words(
    """The A An This That These Those He She It They We I You His Her Its Their Our My In On At But And However There When
    While After Before If As For Then What Who Why How Where Which Some Many Most All No Not Yes Also Meanwhile With By From
    Since So To Although Though Despite Because Now Later Until During Police Officials
    Der Die Das Den Dem Ein Eine Er Sie Es Wir Ich Ihr Und Aber Doch Dann Auch Im Am Auf Bei Nach Mit Für Von Zu Als Wenn Dies
    Diese Dieser Dieses Hier Da Nun Nur
    Il Elle Ils Elles Ce Cette Mais Nous Vous Pero Esta Este Ella Ellos"""
)


def split_sentences(text: str) -> str:
    """`text` with one sentence a line, as ROUGE-Lsum expects; the other metrics read a line break as a space."""
    return "\n".join(sentence for line in text.splitlines() for sentence in _sentences(line.strip()))


def _sentences(line: str) -> list[str]:
    found, begin = [], 0
    for mark in _MARK.finditer(line):
        if mark["marks"] is None or _ends(line[begin : mark.start()], mark["marks"], mark["closed"], line[mark.end() :]):
            found.append(line[begin : mark.end()].strip())
            begin = mark.end()
    return [sentence for sentence in (*found, line[begin:]) if sentence]


def _ends(before: str, marks: str, closed: str, after: str) -> bool:
    """Whether marks end a sentence.

    Args:
        before: The sentence until then.
        marks: The marks.
        closed: Quotes and brackets that close behind them.
        after: The rest of the line.
    """
    in_lower_case = after.lstrip(_OPENING)[:1].islower()
    if marks != ".":
        return not in_lower_case or (not closed and marks.strip(".… ") != "")
    if before[-1:].isspace():  # a text of tokens: its abbreviations keep their marks
        return True
    following, stop = (match[1], match[2]) if (match := _NEXT_WORD.match(after)) else ("", "")
    *earlier, word = before.split() or [""]
    word = word.lstrip(_OPENING)
    plain = word.casefold()
    if plain in _NEVER_LAST or (plain in _BEFORE_NUMBERS and following[:1].isdigit()):
        return False
    if plain in _ABBREVIATIONS or _LETTERS.fullmatch(word):
        # "J. A. Smith": an initial follows, not a word that begins a sentence.
        return following in _STARTERS and not (len(following) == 1 and stop)
    if plain.isdecimal() and len(plain) <= 2:
        ordinal = (earlier and earlier[-1].casefold() in _BEFORE_ORDINALS) or following.casefold() in _AFTER_ORDINALS
        return bool(earlier) and not ordinal and not in_lower_case
    return not (in_lower_case and (closed or _ROMAN.fullmatch(word)))
