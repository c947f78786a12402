"""Football matches: the goal that decided the match, which only the course of the score tells."""

from __future__ import annotations

import random

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Slots

# Who scores, goal by goal: W the winner (in a draw the side that levels last), L the other side.
_COURSES = ("W", "WW", "WLW", "LWW", "WLWW", "LWLW", "LW", "WLLW")

_LEAD = (
    "after {%m} minutes {%p} made it {%r} to {%t}",
    "{%p} [scored|struck] for {%t} after {%m} minutes and it was {%r}",
    "{%t} went {%r} up through {%p} with {%m} minutes [played|gone]",
)
_LEVEL = (
    "{%p} brought {%t} level at {%r} after {%m} minutes",
    "after {%m} minutes {%p} made it {%r} for {%t}",
    "it was {%r} when {%p} of {%t} scored with {%m} minutes [played|gone]",
)

_WON = "[it ended {score}|the match finished {score}|the final score was {score}]"
_WIN_CORES = (
    "{hero}'s {late}goal [gave|brought] {winner} a {score} [win|victory] [over|against] {loser}[ on {day1}|]",
    "{winner} [beat|defeated] {loser} {score}[ on {day1}|] [with|thanks to] a {late}goal [by|from] {hero}",
)
_DRAW_CORES = (
    "{hero}'s {late}equaliser [gave|brought] {winner} a {score} draw [with|against] {loser}[ on {day1}|]",
    "{winner} and {loser} drew {score}[ on {day1}|] [after|thanks to] a {late}equaliser [by|from] {hero}",
)


def follow_score(course: str) -> tuple[list[tuple[int, int]], int]:
    """The score (scorer's side first) after each goal, and the index of the goal that decided the match."""
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


def _match(rng: random.Random, slots: Slots) -> Outcome:
    """Draws the course of the score; a goal from minute 80 on is late."""
    course = rng.choice(_COURSES)
    scores, hero = follow_score(course)
    won, lost = course.count("W"), course.count("L")
    winner, loser = rng.sample((slots["town1"], slots["town2"]), 2)
    minutes = sorted(rng.sample(range(2, 91), len(course)))
    slots |= {"winner": winner, "loser": loser, "score": f"{won}-{lost}", "hero": slots[f"name{hero + 1}"]}
    slots["late"] = "late " if minutes[hero] >= 80 else ""
    turn = rng.randrange(len(_LEAD))
    facts = []
    for number, (side, (mine, theirs)) in enumerate(zip(course, scores, strict=True)):
        goal = f"goal{number + 1}_"
        slots |= {
            f"{goal}p": slots[f"name{number + 1}"],
            f"{goal}t": winner if side == "W" else loser,
            f"{goal}m": str(minutes[number]),
            f"{goal}r": f"{mine}-{theirs}",
        }
        ways = _LEVEL if mine == theirs else _LEAD
        facts.append(ways[(number + turn) % len(ways)].replace("%", goal))
    return Outcome((*facts, _WON), _DRAW_CORES if won == lost else _WIN_CORES)


FOOTBALL = ReportKind(
    openings=(
        "[{town1} and {town2} met on {day1}|{town1} played at home to {town2} on {day1}] [under floodlights|in drizzle|]",
        "[many had come to see {town1} play {town2} on {day1}|on {day1} {town1} travelled to {town2}]",
    ),
    outcomes=(),
    side_facts=(
        SideFact(
            "[the referee showed {name6} of {loser} the red card|{name6} of {loser} had to leave the pitch for a foul]",
            "{loser} [had {name6} sent off|finished without {name6}, who was sent off]",
        ),
        SideFact(
            "[captain {name7} of {winner} was carried off holding his knee|holding his knee, {winner} captain {name7} was "
            "carried off]",
            "{winner} [lost captain {name7} to injury|captain {name7} was injured]",
        ),
        SideFact(
            "[goalkeeper {name8} of {winner} dived to the left and held a penalty|a penalty was held by {winner} "
            "goalkeeper {name8}]",
            "{name8} [saved|stopped] a penalty",
        ),
        SideFact(
            "[{loser} coach {name9} said that this had been his last match|for {loser} coach {name9} it was the last match]",
            "{loser} coach {name9} [is leaving|is stepping down]",
        ),
    ),
    distractors=(
        "[{name10} had a goal ruled out for offside|a goal by {name10} did not count because of offside]",
        "[{name11} hit the post twice|a shot by {name11} struck the post]",
        "[the last meeting of the two had ended {past}|a year ago it had been {past}]",
        "[{num1} thousand people had paid|the stand held {num1} thousand people]",
        "[next week {town1} play {town3}|{town3} are the next guests of {town1}]",
        "[the pitch was soft after the rain|a dog ran across the pitch]",
        "[{name12} had the whistle|the match was in the hands of referee {name12}]",
    ),
    measure=_match,
)
