"""Weather reports: the place with the largest reading, and which warnings hold in the end."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Slots, Table


@dataclass(frozen=True)
class _Measure:
    """What was read off: ways of telling one reading (`%` stands for its number), its range, and the cores."""

    readings: tuple[str, ...]
    range: range
    unit: str
    cores: tuple[str, ...]


_COLDER = (
    "[in|at] {town%} the thermometer [dropped|sank] by {figure%} degrees",
    "{town%} was {figure%} degrees colder than the day before",
    "it became {figure%} degrees colder in {town%} [overnight|within hours]",
)
_WARMER = (
    "[in|at] {town%} the thermometer [climbed|rose] by {figure%} degrees",
    "{town%} was {figure%} degrees warmer than the day before",
    "it became {figure%} degrees warmer in {town%} [overnight|within hours]",
)
_FALL = _Measure(
    _COLDER,
    range(2, 16),
    "degrees",
    (
        "{town1} [recorded|saw] the [sharpest|biggest] drop in temperature, {figure1} degrees[, on {day1}|]",
        "[temperatures fell most|it cooled most] in {town1}, by {figure1} degrees[ on {day1}|]",
    ),
)
_RISE = _Measure(
    _WARMER,
    range(2, 16),
    "degrees",
    (
        "{town1} [recorded|saw] the [sharpest|biggest] jump in temperature, {figure1} degrees[, on {day1}|]",
        "[temperatures rose most|it warmed up most] in {town1}, by {figure1} degrees[ on {day1}|]",
    ),
)
_RAIN = _Measure(
    (
        "the gauge in {town%} [collected|filled with] {figure%} millimetres",
        "{town%} [got|received] {figure%} millimetres [overnight|within hours]",
        "{town%} was [soaked by|wet through after] {figure%} millimetres",
    ),
    range(6, 60, 2),
    "millimetres",
    (
        "{town1} [recorded|saw] the [heaviest|most] rain, {figure1} millimetres[, on {day1}|]",
        "the [heaviest|most] rain, {figure1} millimetres, fell in {town1}[ on {day1}|]",
    ),
)
_WIND = _Measure(
    (
        "gusts in {town%} reached {figure%} kilometres an hour",
        "{town%} measured gusts of {figure%} kilometres an hour",
        "at {figure%} kilometres an hour gusts swept through {town%}",
    ),
    range(50, 100, 5),
    "kilometres an hour",
    (
        "{town1} [recorded|saw] the [strongest|fiercest] wind, {figure1} kilometres an hour[, on {day1}|]",
        "the [strongest|fiercest] wind blew in {town1}, at {figure1} kilometres an hour[, on {day1}|]",
    ),
)
_SNOW = _Measure(
    (
        "in {town%} the snow lay {figure%} centimetres deep",
        "{town%} woke up under {figure%} centimetres of snow",
        "people in {town%} had to clear {figure%} centimetres from their doors",
    ),
    range(3, 50),
    "centimetres",
    (
        "{town1} [recorded|saw] the [heaviest|most] snow, {figure1} centimetres[, on {day1}|]",
        "the [heaviest|most] snow, {figure1} centimetres, fell in {town1}[ on {day1}|]",
    ),
)


def _readings(rng: random.Random, slots: Slots) -> Outcome:
    """Three or four towns with distinct readings; `town1` has the largest. Temperature goes the other way in the last."""
    measure = rng.choice((_FALL, _RISE, _RAIN, _WIND, _SNOW))
    figures = sorted(rng.sample(measure.range, rng.choice((3, 4))), reverse=True)
    slots["record"] = str(max(measure.range) + rng.randrange(1, 9))
    slots["unit"] = measure.unit
    ways = itertools.cycle(rng.sample(range(len(measure.readings)), len(measure.readings)))
    turned = {_FALL: _WARMER, _RISE: _COLDER}.get(measure, measure.readings)
    facts = []
    for number, (figure, way) in enumerate(zip(figures, ways, strict=False), start=1):
        slots[f"figure{number}"] = str(figure)
        readings = turned if number == len(figures) else measure.readings
        facts.append(readings[way].replace("%", str(number)))
    return Outcome(tuple(facts), measure.cores)


WEATHER = ReportKind(
    openings=(
        "the weather [office|service] published its readings for {day1}",
        (
            "[readings for {day1} are in|the instruments have been read for {day1}], and [the differences are large|no two "
            "places are alike]"
        ),
    ),
    outcomes=(),
    side_facts=(
        SideFact(
            "[the {alarm1_name} warning from {day2} was lifted at midnight|at midnight the {alarm1_name} warning of "
            "{day2} came to an end]",
            "the {alarm1_name} warning [is over|was cancelled]",
        ),
        SideFact(
            "[the {alarm2_name} warning, first meant to end on {day2}, now runs until {day3}|only on {day3}, not on {day2} "
            "as first planned, will the {alarm2_name} warning end]",
            "the {alarm2_name} warning [lasts|stays in force] until {day3}",
        ),
        SideFact(
            "[forecaster {name4} expects {outlook1_long} at the weekend|for the weekend {name4} promises {outlook1_long}]",
            "{outlook1_brief} [is forecast|is expected] for the weekend",
        ),
        SideFact(
            "[ferries to {town5} stayed in port all day|no ferry left for {town5} all day]",
            "ferries to {town5} [were cancelled|did not run]",
        ),
        SideFact(
            "[for {count1} hours {town6} was without light and heating|{town6} sat in the dark for {count1} hours]",
            "{town6} lost power for {count1} hours",
        ),
    ),
    distractors=(
        "[the record for the region, {record} {unit}, is old|the record remains {record} {unit}, measured long ago]",
        "[{name7}, who looks after the station, gets up at five|the station is looked after by {name7}]",
        "[farmers were pleased|gardeners were not pleased]",
        "[the next bulletin comes out on {day4}|on {day4} another bulletin follows]",
        "[the forecast for {town7} had been quite different|nobody had predicted this for {town7}]",
        "[{month1} was quiet in comparison|in {month1} there was little to report]",
    ),
    tables={
        "alarm": Table(("name",), (("storm",), ("flood",), ("frost",), ("fog",), ("thunder",))),
        "outlook": Table(
            ("long", "brief"),
            (
                ("[blue sky|not a single cloud]", "sunshine"),
                ("[showers|umbrella weather]", "rain"),
                ("[grey sky|thick clouds]", "cloudy weather"),
                ("[a stiff breeze|gales]", "wind"),
                ("[snowflakes|white roofs]", "snow"),
            ),
        ),
    },
    measure=_readings,
)
