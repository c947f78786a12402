"""Numbers, clock times, dates and time spans in both languages, as fixed phrases."""

from __future__ import annotations

import random

from tasks.corpora.translation.lexicon import MONTHS, WEEKDAYS, Words

_GERMAN = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
_GERMAN_TEENS = ["dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINAL = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_GERMAN_ORDINAL = {"ein": "erst", "drei": "dritt", "sieben": "siebt", "acht": "acht"}
_SPANS = (
    ("Stunde", "Stunden", "hour"), ("Tag", "Tagen", "day"), ("Woche", "Wochen", "week"), ("Monat", "Monaten", "month"),
    ("Jahr", "Jahren", "year"),
)  # fmt: skip
_MINUTES = (0, 0, 5, 10, 15, 15, 20, 25, 30, 30, 30, 35, 40, 45, 45, 50, 55)


def german_number(number: int) -> str:
    """Return 1 to 999 in German words, units before tens: einundzwanzig. `ein` is uninflected."""
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_GERMAN[hundreds]}hundert{german_number(rest) if rest else ''}"
    if number < 13:
        return _GERMAN[number]
    if number < 20:
        return _GERMAN_TEENS[number - 13]
    tens, units = divmod(number, 10)
    return (f"{_GERMAN[units]}und" if units else "") + _GERMAN_TENS[tens - 2]


def english_number(number: int) -> str:
    """Return 1 to 999 in English words: twenty-one, one hundred and five."""
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_ENGLISH[hundreds]} hundred" + (f" and {english_number(rest)}" if rest else "")
    if number < 20:
        return _ENGLISH[number]
    tens, units = divmod(number, 10)
    return _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH[units]}" if units else "")


def english_ordinal(number: int) -> str:
    """Return 1 to 31 as an English ordinal: twenty-first."""
    first, dash, last = english_number(number).rpartition("-")
    if last in _ORDINAL:
        return f"{first}{dash}{_ORDINAL[last]}"
    return f"{first}{dash}{last[:-1] + 'ie' if last.endswith('y') else last}th"


def german_ordinal(number: int) -> str:
    """Return 1 to 31 as the stem of a German ordinal: dritt, einundzwanzigst."""
    word = german_number(number)
    return _GERMAN_ORDINAL.get(word, word + ("st" if number > 19 else "t"))


def clock(hour: int, minute: int) -> Words:
    """Return a clock time (hour 1 to 12, minute a multiple of 5): `um halb acht` is half past seven."""
    following = hour % 12 + 1
    now, then = english_number(hour), english_number(following)
    if minute == 0:
        return Words(f"um {german_number(hour)} Uhr", (f"at {now} o'clock", f"at {now}"))
    after = {5: "fünf nach", 10: "zehn nach", 15: "Viertel nach", 20: "zwanzig nach"}
    before = {
        25: "fünf vor halb",
        30: "halb",
        35: "fünf nach halb",
        40: "zwanzig vor",
        45: "Viertel vor",
        50: "zehn vor",
        55: "fünf vor",
    }
    german = f"um {after[minute]} {_eins(hour)}" if minute in after else f"um {before[minute]} {_eins(following)}"
    away = {15: "a quarter", 30: "half", 45: "a quarter"}.get(minute, english_number(min(minute, 60 - minute)))
    spoken = f"at {away} past {now}" if minute <= 30 else f"at {away} to {then}"
    return Words(german, (spoken, f"at {hour}:{minute:02d}"))


def _eins(hour: int) -> str:
    return "eins" if hour == 1 else _GERMAN[hour]


def random_clock(rng: random.Random) -> Words:
    """Draw a clock time; quarters and halves are drawn more often than other times."""
    return clock(rng.randint(1, 12), rng.choice(_MINUTES))


def date(day: int, month: int) -> Words:
    """Return a day of the year (month from 0): `am dritten Mai`."""
    german, english = MONTHS[month]
    options = (
        f"on {day} {english}",
        f"on the {english_ordinal(day)} of {english}",
        f"on {english} {day}",
    )
    return Words(f"am {german_ordinal(day)}en {german}", options)


def random_date(rng: random.Random) -> Words:
    """Draw a day of the year that exists in every month."""
    return date(rng.randint(1, 28), rng.randrange(12))


def weekday(rng: random.Random, frame: str) -> Words:
    """Draw a weekday in the wording of the frame (past, future or habit)."""
    german, english = rng.choice(WEEKDAYS)
    return {
        "past": Words(f"letzten {german}", (f"last {english}",)),
        "future": Words(f"am {german}", (f"on {english}", f"this {english}")),
        "habit": Words(f"jeden {german}", (f"every {english}", f"on {english}s")),
    }[frame]


def span(rng: random.Random, use: str) -> Words:
    """Draw a span: `ago` (vor drei Tagen), `since` (seit drei Tagen), `ahead` (in drei Tagen), `for` (drei Stunden lang)."""
    number = rng.randint(2, 12)
    _, many, english = rng.choice(_SPANS[:3] if use in ("for", "ahead") else _SPANS[1:])
    amount, spoken = (
        f"{german_number(number)} {many}",
        f"{english_number(number)} {english}s",
    )
    if use == "for":
        return Words(
            f"{amount.removesuffix('n') if many == 'Tagen' else amount} lang",
            (f"for {spoken}",),
        )
    return {
        "ago": Words(f"vor {amount}", (f"{spoken} ago",)),
        "since": Words(f"seit {amount}", (f"for {spoken}",)),
        "ahead": Words(f"in {amount}", (f"in {spoken}",)),
    }[use]


def price(number: int) -> Words:
    """Draw a price in euros: `für vierundachtzig Euro`."""
    return Words(
        f"für {german_number(number)} Euro",
        (f"for {english_number(number)} euros", f"for {number} euros"),
    )
