"""English inflection: plurals, verb forms, a or an, contractions and the possessive."""

from __future__ import annotations

VERB_FORMS = """
be was been; begin began begun; bring brought brought; build built built; buy bought bought; catch caught caught
come came come; cut cut cut; do did done; draw drew drawn; drink drank drunk; drive drove driven; eat ate eaten
fall fell fallen; fell felled felled; feed fed fed; find found found; fly flew flown; forget forgot forgotten
get got got; give gave given; go went gone; grow grew grown; have had had; hear heard heard; know knew known
leave left left; lend lent lent; lie lay lain; lose lost lost; meet met met; pay paid paid; put put put
read read read; ride rode ridden; run ran run; say said said; see saw seen; sell sold sold; send sent sent
set set set; shut shut shut; show showed shown; sing sang sung; sit sat sat; sleep slept slept; speak spoke spoken
steal stole stolen; take took taken; tell told told; think thought thought; throw threw thrown
understand understood understood; wake woke woken; wear wore worn; write wrote written
"""
_IRREGULAR = {row.split()[0]: tuple(row.split()[1:]) for line in VERB_FORMS.strip().splitlines() for row in line.split("; ")}
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
    """The regular plural of the last word."""
    if word.endswith(("s", "x", "ch", "sh", "z")) or word.endswith(("potato", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(verb: str) -> str:
    """The third person singular present: watches, tries, goes."""
    if verb in ("have", "be"):
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith("o"):
        return verb + "es"
    return plural(verb)


def ing(verb: str) -> str:
    """The -ing form."""
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
    """The simple past (was for be)."""
    return _IRREGULAR[verb][0] if verb in _IRREGULAR else _regular(verb)


def past_participle(verb: str) -> str:
    """The past participle."""
    return _IRREGULAR[verb][1] if verb in _IRREGULAR else _regular(verb)


def finite(verb: str, tense: str, person: int, many: bool) -> str:
    """The finite form; `tense` is present or past."""
    if verb == "be":
        return ({"present": "are", "past": "were"}[tense]) if many else _BE[tense][person, False]
    if tense == "past":
        return past(verb)
    return third_person(verb) if person == 3 and not many else verb


def negative(auxiliary: str, short: bool) -> list[str]:
    """The auxiliary with its negation: did not, or didn't."""
    if short and auxiliary not in _NEVER_SHORT:
        return [_SHORT.get(auxiliary, f"{auxiliary}n't")]
    return ["cannot"] if auxiliary == "can" else [auxiliary, "not"]


def with_articles(words: list[str]) -> list[str]:
    """Turns `a` into `an` where the next word begins with the sound of a vowel."""
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
    """Adds 's to the last word, or only the apostrophe to a plural in -s."""
    last = words[-1]
    return [*words[:-1], last + ("'" if many and last.endswith("s") else "'s")]
