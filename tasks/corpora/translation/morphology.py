"""German inflection of articles, adjectives, nouns, compounds and verbs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tasks.corpora.tables import read_table

CASES = ("nom", "acc", "dat", "gen")
_DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "pl": ("die", "die", "den", "der"),
}
_STRONG_ENDINGS = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "pl": ("e", "e", "en", "er"),
}
_RELATIVE = {
    "m": ("der", "den", "dem", "dessen"),
    "f": ("die", "die", "der", "deren"),
    "n": ("das", "das", "dem", "dessen"),
    "pl": ("die", "die", "denen", "deren"),
}
_PERSONAL = {
    (1, "sg"): ("ich", "mich", "mir"),
    (1, "pl"): ("wir", "uns", "uns"),
    (3, "m"): ("er", "ihn", "ihm"),
    (3, "f"): ("sie", "sie", "ihr"),
    (3, "n"): ("es", "es", "ihm"),
    (3, "pl"): ("sie", "sie", "ihnen"),
}
_CONTRACTIONS = {
    ("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am", ("an", "das"): "ans", ("zu", "dem"): "zum",
    ("zu", "der"): "zur", ("von", "dem"): "vom", ("bei", "dem"): "beim",
}  # fmt: skip
_INSEPARABLE = ("be", "ver", "er", "ent", "zer", "ge", "unter", "über", "emp", "wider")
_SEIN = frozenset([
    "fahren", "gehen", "kommen", "laufen", "reisen", "fliegen", "folgen", "begegnen", "stehen-auf", "wachen-auf",
    "schlafen-ein", "steigen", "ziehen", "kehren", "bleiben", "wachsen", "sein", "werden",
])  # fmt: skip


def article(kind: str, gender: str, case: str) -> str:
    """Return the determiner; `kind` is der, dieser, jeder, ein, kein or a possessive; `gender` is m, f, n or pl."""
    index = CASES.index(case)
    if kind == "der":
        return _DEFINITE[gender][index]
    if kind in ("dieser", "jeder"):
        return kind[:-2] + _STRONG_ENDINGS[gender][index]
    bare = (gender == "m" and case == "nom") or (gender == "n" and case in ("nom", "acc"))
    return kind if bare else kind + _STRONG_ENDINGS[gender][index]


def adjective(stem: str, kind: str, gender: str, case: str) -> str:
    """Return the adjective before a noun: weak after der-words, mixed after ein-words, strong where `kind` is empty."""
    stem = stem.removesuffix("e")
    strong = _STRONG_ENDINGS[gender][CASES.index(case)]
    if not kind:
        return stem + ("en" if case == "gen" and gender in "mn" else strong)
    weak = "e" if gender != "pl" and (case == "nom" or (case == "acc" and gender != "m")) else "en"
    if kind in ("der", "dieser", "jeder"):
        return stem + weak
    bare = (gender == "m" and case == "nom") or (gender == "n" and case in ("nom", "acc"))
    return stem + (strong if bare else weak)


def noun(lemma: str, genitive: str, plural: str, case: str, many: bool) -> str:
    """Return the noun in a case, with the n-declension (`weak`), the genitive -s and the dative plural -n."""
    if many:
        return plural + "n" if case == "dat" and plural[-1] not in "ns" else plural
    if genitive == "weak":
        return lemma if case == "nom" else lemma + ("n" if lemma[-1] == "e" or lemma in ("Nachbar", "Bauer") else "en")
    return lemma + genitive if case == "gen" else lemma


def name(word: str, case: str) -> str:
    """Return a person's name; its genitive takes -s, or an apostrophe after an s sound."""
    if case != "gen":
        return word
    return word + ("'" if word[-1] in "sxz" else "s")


def relative(gender: str, case: str) -> str:
    """Return the relative pronoun."""
    return _RELATIVE[gender][CASES.index(case)]


def pronoun(person: int, gender: str, case: str) -> str:
    """Return the personal pronoun; `gender` is sg or pl for the first person."""
    return _PERSONAL[person, gender][CASES.index(case)]


def reflexive(person: int, gender: str, case: str) -> str:
    """Return the reflexive pronoun."""
    return "sich" if person == 3 else pronoun(person, gender, case)


def possessive(person: int, gender: str) -> str:
    """Return the stem of the possessive determiner."""
    if person == 1:
        return "mein" if gender == "sg" else "unser"
    return "sein" if gender in "mn" else "ihr"


def contract(words: list[str]) -> list[str]:
    """Contract a preposition with the article after it: in dem becomes im."""
    if len(words) > 1 and (words[0], words[1]) in _CONTRACTIONS:
        return [_CONTRACTIONS[words[0], words[1]], *words[2:]]
    return words


def feminine(lemma: str) -> str:
    """Return the word for a woman of a trade: Lehrerin, Kollegin."""
    return lemma.removesuffix("e") + "in"


def linked(modifier: str, link: str) -> str:
    """Return the first part of a compound with its linking element (Küchen-, Arbeits-, Kinder-, Schul-).

    `link` is n, s, er, `-` (none), `cut` (drops the final e) or `*`: by rule, n after -e, s after a feminine suffix.
    """
    if link == "*":
        suffixes = ("ung", "heit", "keit", "zeit", "thek", "ion", "tät")
        link = "n" if modifier.endswith("e") else "s" if modifier.endswith(suffixes) else "-"
    if link == "cut":
        return modifier[:-1]
    return modifier + ("" if link == "-" else link)


@cache
def _strong() -> dict[str, tuple[str, str, str]]:
    """Third person singular present, past stem and participle by infinitive; separable verbs use the forms of their base."""
    rows = read_table(Path(__file__).parent / "words" / "strong_verbs.tsv")
    return {row["infinitive"]: (row["present"], row["past"], row["participle"]) for row in rows}


def _inseparable(base: str) -> tuple[str, str]:
    """Split off an unstressed prefix: (`ver`, `kaufen`); the prefix is empty if there is none."""
    for prefix in _INSEPARABLE:
        rest = base.removeprefix(prefix)
        if rest != base and (len(rest) >= 5 or rest in _strong()):
            return prefix, rest
    return "", base


def _stem(base: str) -> str:
    return base[:-2] if base.endswith("en") else base[:-1]


def _forms(base: str) -> tuple[str, str, str]:
    """Return third person singular present, first person singular past, participle of a verb without separable prefix."""
    if base in _strong():
        return _strong()[base]
    prefix, rest = _inseparable(base)
    if prefix and rest in _strong():
        third, past, participle = _strong()[rest]
        return prefix + third, prefix + past, prefix + participle.removeprefix("ge")
    stem = _stem(base)
    link = "e" if stem.endswith(("t", "d", "ffn", "chn", "gn")) else ""
    ge = "" if prefix or base.endswith("ieren") else "ge"
    return f"{stem}{link}t", f"{stem}{link}te", f"{ge}{stem}{link}t"


@cache
def finite(base: str, tense: str, person: int, many: bool) -> str:
    """Return the finite verb, without its separable prefix; `tense` is present or past."""
    if base == "sein" and tense == "present":
        return "sind" if many else {1: "bin", 3: "ist"}[person]
    third, past, _ = _forms(base)
    if tense == "past":
        return past if not many else past + ("n" if past.endswith("e") else "en")
    if many:
        return base
    if person == 3:
        return third
    if base in ("wissen", "müssen", "können", "wollen", "sollen", "dürfen", "möchten"):
        return third
    return (base[:-3] + "le") if base.endswith("eln") else _stem(base) + "e"


def participle(prefix: str, base: str) -> str:
    """Return the past participle, with ge- inside after a separable prefix: aufgemacht."""
    return prefix + _forms(base)[2]


def zu_infinitive(prefix: str, base: str) -> list[str]:
    """Return the infinitive with zu, which goes inside after a separable prefix: aufzumachen."""
    return [f"{prefix}zu{base}"] if prefix else ["zu", base]


def takes_sein(prefix: str, base: str, transitive: bool) -> bool:
    """Whether the perfect takes sein: verbs of motion and change, unless they have an object."""
    return not transitive and (base in _SEIN or f"{base}-{prefix}" in _SEIN)
