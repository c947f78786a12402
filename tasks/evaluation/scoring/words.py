"""Words and sentences of a text in any script, for ROUGE, by rules without a model."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

WITHOUT_SPACES = {
    "kana": ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F)),
    "han": ((0x2E80, 0x2FDF), (0x3005, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
    # Thai and Lao, Burmese, Khmer, Tai scripts, Balinese, Javanese, Bopomofo
    "other": (
        *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F)),
        *((0x3100, 0x312F), (0x31A0, 0x31BF), (0xA980, 0xA9FF), (0xAA60, 0xAADF)),
    ),
}
"""Code points of scripts that put no spaces between words, first and last."""


@functools.cache
def script_without_spaces(character: str) -> str:
    """Whether a letter's script puts no spaces between words: `han`, `kana`, `other`, or empty where it does."""
    code = ord(character)
    for name, ranges in WITHOUT_SPACES.items():
        if any(low <= code <= high for low, high in ranges):
            return name
    return ""


@functools.cache
def _kind(character: str) -> str:
    """`word` for a letter or digit, `single` for one of a script without spaces, `mark`, `joined` where invisible, or `gap`."""
    category = unicodedata.category(character)
    if category[0] in "LN":
        return "single" if script_without_spaces(character) else "word"
    return {"M": "mark", "C": "joined" if category == "Cf" else "gap"}.get(category[0], "gap")


def unicode_words(text: str) -> list[str]:
    """The words of a text in any script.

    A word is a run of letters, digits and their marks; a letter of a script that puts no spaces between words (Chinese,
    Japanese, Thai, Lao, Burmese, Khmer) is one by itself. Compatible forms are one (NFKC: full-width letters, ligatures), and
    so are upper and lower case (case folding: ß is ss). Invisible characters, such as joiners and soft hyphens, do not count.
    """
    words, before = list[str](), "gap"
    for character in unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()):
        kind = _kind(character)
        if kind == before == "word" or (kind == "mark" and before != "gap"):
            words[-1] += character
        elif kind in ("word", "single"):
            words.append(character)
        if kind not in ("mark", "joined"):
            before = kind
    return words


def letters(texts: Iterable[str]) -> dict[str, int]:
    """Letters and digits of texts: `ascii`, of a script without spaces, or `spaced` for all others."""
    counts = dict.fromkeys(("ascii", "spaced", "han", "kana", "other"), 0)
    for text in texts:
        if text.isascii():
            counts["ascii"] += sum(map(str.isalnum, text))
            continue
        for character in text:
            if character.isalnum():
                counts["ascii" if character.isascii() else script_without_spaces(character) or "spaced"] += 1
    return counts


# Sentences: a mark ends one unless something speaks against it: an abbreviation, an initial, an ordinal or a list number before
# it, or a word in lower case after an ellipsis or a closing quote. Abbreviations that may end a sentence ("U.S.", "etc.") do so
# where a word follows that often begins one, as in Kiss and Strunk, Unsupervised Multilingual Sentence Boundary Detection,
# 2006. A text that stays ambiguous is not split. Lines always end sentences.

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
