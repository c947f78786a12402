"""Outcomes that follow from figures drawn at random, which tables of templates cannot express.

A measure draws figures, puts them into the slots and returns the outcome; its phrases are those of the kind's template file.
`%` in a phrase is replaced by the number of the item that the phrase is about.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping

from tasks.corpora.summarization.kind import Outcome, Slots

Phrases = Mapping[str, tuple[str, ...]]
Measure = Callable[[Phrases, random.Random, Slots], Outcome]

# The scorer of each goal: W is the winner (in a draw the team that levels last), L the other team.
_COURSES = ("W", "WW", "WLW", "LWW", "WLWW", "LWLW", "LW", "WLLW")
_LATE_MINUTE = 80
_WEATHER: dict[str, tuple[range, str]] = {
    "fall": (range(2, 16), "degrees"),
    "rise": (range(2, 16), "degrees"),
    "rain": (range(6, 60, 2), "millimetres"),
    "wind": (range(50, 100, 5), "kilometres an hour"),
    "snow": (range(3, 50), "centimetres"),
}
_OPPOSITE = {"fall": "rise", "rise": "fall"}


def profit(phrases: Phrases, rng: random.Random, slots: Slots) -> Outcome:
    """Draw figures: profit follows product 1, product 2 moves less in the same direction, product 3 in the opposite one."""
    slots["firm"] = f"{slots['name1']} {slots['firm1_name']}"
    smaller, larger = sorted(rng.sample(range(2, 30), 2))
    slots |= {"change1": str(larger), "change2": str(smaller), "change3": str(rng.randrange(2, 40))}
    rises = rng.random() < 0.5
    with_profit, against = (phrases["rose"], phrases["fell"]) if rises else (phrases["fell"], phrases["rose"])
    first, second, third = rng.sample(range(len(with_profit)), 3)
    templates = enumerate((with_profit[first], with_profit[second], against[third]), start=1)
    facts = (template.replace("%", str(number)) for number, template in templates)
    return Outcome((*facts, *phrases["better" if rises else "worse"]), phrases["up" if rises else "down"])


def follow_score(course: str) -> tuple[list[tuple[int, int]], int]:
    """Return the score after each goal, the scorer's team first, and the index of the goal that decided the match."""
    own = {"W": 0, "L": 0}
    scores = []
    for side in course:
        own[side] += 1
        scores.append((own[side], own["L" if side == "W" else "W"]))
    drawn = own["W"] == own["L"]
    deciding = [
        number
        for number, (side, (mine, theirs)) in enumerate(zip(course, scores, strict=True))
        if side == "W" and mine == theirs + (0 if drawn else 1)
    ]
    return scores, deciding[-1]


def match(phrases: Phrases, rng: random.Random, slots: Slots) -> Outcome:
    """Draw the course of a football match, which alone shows the deciding goal."""
    course = rng.choice(_COURSES)
    scores, hero = follow_score(course)
    won, lost = course.count("W"), course.count("L")
    winner, loser = rng.sample((slots["town1"], slots["town2"]), 2)
    minutes = sorted(rng.sample(range(2, 91), len(course)))
    slots |= {"winner": winner, "loser": loser, "score": f"{won}-{lost}", "hero": slots[f"name{hero + 1}"]}
    slots["late"] = "late " if minutes[hero] >= _LATE_MINUTE else ""
    turn = rng.randrange(len(phrases["lead"]))
    facts = []
    for number, (side, (mine, theirs)) in enumerate(zip(course, scores, strict=True)):
        goal = f"goal{number + 1}_"
        slots |= {
            f"{goal}p": slots[f"name{number + 1}"],
            f"{goal}t": winner if side == "W" else loser,
            f"{goal}m": str(minutes[number]),
            f"{goal}r": f"{mine}-{theirs}",
        }
        ways = phrases["level" if mine == theirs else "lead"]
        facts.append(ways[(number + turn) % len(ways)].replace("%", goal))
    return Outcome((*facts, *phrases["final_score"]), phrases["draw" if won == lost else "win"])


def readings(phrases: Phrases, rng: random.Random, slots: Slots) -> Outcome:
    """Draw three or four towns with distinct readings; `town1` has the largest. Temperature goes the other way in the last."""
    measured = rng.choice(tuple(_WEATHER))
    figures_from, unit = _WEATHER[measured]
    figures = sorted(rng.sample(figures_from, rng.choice((3, 4))), reverse=True)
    slots["record"] = str(max(figures_from) + rng.randrange(1, 9))
    slots["unit"] = unit
    usual, last = (phrases[f"{which}_readings"] for which in (measured, _OPPOSITE.get(measured, measured)))
    ways = itertools.cycle(rng.sample(range(len(usual)), len(usual)))
    facts = []
    for number, (figure, way) in enumerate(zip(figures, ways, strict=False), start=1):
        slots[f"figure{number}"] = str(figure)
        facts.append((last if number == len(figures) else usual)[way].replace("%", str(number)))
    return Outcome(tuple(facts), phrases[f"{measured}_cores"])


MEASURES: dict[str, Measure] = {"company": profit, "football": match, "weather": readings}
"""The measure of each kind that has one."""
