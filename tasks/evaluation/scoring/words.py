"""Words and sentences of a text in any script, for ROUGE, by rules without a model."""

from __future__ import annotations

import functools
import re
import unicodedata
from importlib import resources

import regex
import yaml

WITHOUT_SPACES = {
    # Some marks of these scripts, such as the long vowel of kana, belong to no single script in Unicode.
    "kana": regex.compile(r"[\p{Hiragana}\p{Katakana}\u30fc\uff70\uff9e\uff9f]"),
    "han": regex.compile(r"[\p{Han}\u3006]"),
    "other": regex.compile(
        r"[\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}"
        r"\p{Balinese}\p{Bopomofo}\p{Javanese}\ua9cf]"
    ),
}
"""The letters of scripts that put no spaces between words."""
_SINGLE = rf"(?:{'|'.join(own.pattern for own in WITHOUT_SPACES.values())})(?<=[\p{{L}}\p{{N}}])"
_LETTER = rf"(?!{_SINGLE})[\p{{L}}\p{{N}}]"
_WORD = regex.compile(rf"{_SINGLE}\p{{M}}*|{_LETTER}(?:{_LETTER}|\p{{M}})*")


def unicode_words(text: str) -> list[str]:
    """The words of a text in any script.

    A word is a run of letters, digits and their marks; a letter of a script that puts no spaces between words (Chinese,
    Japanese, Thai, Lao, Burmese, Khmer) is one by itself. Compatible forms are one (NFKC: full-width letters, ligatures), and
    so are upper and lower case (case folding: ß is ss). Invisible characters, such as joiners and soft hyphens, do not count.
    """
    visible = regex.sub(r"\p{Cf}", "", unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()))
    return [found[0] for found in _WORD.finditer(visible)]


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


@functools.cache
def _lexicon() -> dict[str, frozenset[str]]:
    """The words of `sentences.yaml`, where each list is described."""
    text = resources.files(__package__ or "").joinpath("sentences.yaml").read_text(encoding="utf-8")
    return {name: frozenset(words.split()) for name, words in yaml.safe_load(text).items()}


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
    plain, lexicon = word.casefold(), _lexicon()
    if plain in lexicon["never_last"] or (plain in lexicon["before_numbers"] and following[:1].isdigit()):
        return False
    if plain in lexicon["abbreviations"] or _LETTERS.fullmatch(word):
        # "J. A. Smith": an initial follows, not a word that begins a sentence.
        return following in lexicon["starters"] and not (len(following) == 1 and stop)
    if plain.isdecimal() and len(plain) <= 2:
        after_article = bool(earlier) and earlier[-1].casefold() in lexicon["before_ordinals"]
        ordinal = after_article or following.casefold() in lexicon["after_ordinals"]
        return bool(earlier) and not ordinal and not in_lower_case
    return not (in_lower_case and (closed or _ROMAN.fullmatch(word)))
