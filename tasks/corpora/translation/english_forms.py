"""English inflection: plurals, verb forms, a or an, contractions and the possessive."""

from __future__ import annotations

from pathlib import Path

from tasks.corpora.tables import read_table

_IRREGULAR = {
    row["verb"]: (row["past"], row["participle"]) for row in read_table(Path(__file__).parent / "words" / "english_verbs.tsv")
}
_DOUBLING = frozenset([
    "stop", "plan", "wrap", "run", "cut", "put", "get", "shut", "set", "sit", "begin", "forget", "spot", "permit", "travel",
    "cancel",
])  # fmt: skip
_BE = {"present": {(1, False): "am", (3, False): "is"}, "past": {(1, False): "was", (3, False): "was"}}
_VOWEL_SOUND = ("hour", "honest")
_CONSONANT_SOUND = ("uni", "use", "euro", "one", "once")
_SHORT = {"will": "won't", "can": "can't"}
_NEVER_SHORT = ("am", "may")


def plural(word: str) -> str:
    """Return the regular plural of the last word."""
    if word.endswith(("s", "x", "ch", "sh", "z")) or word.endswith(("potato", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(verb: str) -> str:
    """Return the third person singular present: watches, tries, goes."""
    if verb in ("have", "be"):
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith("o"):
        return verb + "es"
    return plural(verb)


def ing(verb: str) -> str:
    """Return the -ing form."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb in _DOUBLING:
        return verb + verb[-1] + "ing"
    if verb.endswith("e") and not verb.endswith(("ee", "ye", "oe")) and verb != "be":
        return verb[:-1] + "ing"
    return verb + "ing"


def _regular(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + verb[-1] + "ed" if verb in _DOUBLING else verb + "ed"


def past(verb: str) -> str:
    """Return the simple past (was for be)."""
    return _IRREGULAR[verb][0] if verb in _IRREGULAR else _regular(verb)


def past_participle(verb: str) -> str:
    """Return the past participle."""
    return _IRREGULAR[verb][1] if verb in _IRREGULAR else _regular(verb)


def finite(verb: str, tense: str, person: int, many: bool) -> str:
    """Return the finite form; `tense` is present or past."""
    if verb == "be":
        return ({"present": "are", "past": "were"}[tense]) if many else _BE[tense][person, False]
    if tense == "past":
        return past(verb)
    return third_person(verb) if person == 3 and not many else verb


def negative(auxiliary: str, short: bool) -> list[str]:
    """Return the negated auxiliary: did not, or didn't."""
    if short and auxiliary not in _NEVER_SHORT:
        return [_SHORT.get(auxiliary, f"{auxiliary}n't")]
    return ["cannot"] if auxiliary == "can" else [auxiliary, "not"]


def with_articles(words: list[str]) -> list[str]:
    """Replace `a` by `an` before a word that begins with a vowel sound."""
    fixed = list(words)
    for index, word in enumerate(words[:-1]):
        if word == "a":
            following = words[index + 1].lower()
            vowel = following.startswith(_VOWEL_SOUND) or (
                following[0] in "aeiou" and not following.startswith(_CONSONANT_SOUND)
            )
            fixed[index] = "an" if vowel else "a"
    return fixed


def possessive(words: list[str], many: bool) -> list[str]:
    """Add 's to the last word, or only the apostrophe to a plural in -s."""
    last = words[-1]
    return [*words[:-1], last + ("'" if many and last.endswith("s") else "'s")]
