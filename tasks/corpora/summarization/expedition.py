"""Expeditions: what stopped the team, or what it found, among troubles that it got over."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "goal": Table(
        ("long", "brief"),
        (
            ("the summit of Mount Orrin", "the top of Mount Orrin"),
            ("the end of the Black Cave", "the bottom of the Black Cave"),
            ("the source of the river Tamsel", "the river's source"),
            ("the wreck in Seal Bay", "the Seal Bay wreck"),
            ("the far side of the Sark glacier", "the other side of the glacier"),
            ("the ruins in the Green Forest", "the forest ruins"),
            ("the crater on Bird Island", "the island crater"),
        ),
    ),
    "trouble": Table(
        ("past", "brief"),
        (
            ("[snow without end|a blizzard]", "a snowstorm"),
            ("[a broken radio|the silence of the radio]", "a radio failure"),
            ("[swollen rivers|rivers over their banks]", "floods"),
            ("[empty food boxes|the lack of food]", "a shortage of food"),
            ("[a falling rock|loose stones]", "falling rocks"),
            ("[sick mules|lame mules]", "sick animals"),
            ("[a torn tent|torn tents]", "damaged tents"),
            ("[cracks in the ice|thin ice]", "unsafe ice"),
            ("[fever among the porters|a fever]", "illness"),
        ),
    ),
    "find": Table(
        ("long", "brief"),
        (
            ("[a bronze axe|a bronze sword]", "a bronze weapon"),
            ("[a moss not seen before|a fern not seen before]", "a new plant"),
            ("[bones of a cave bear|teeth of a cave bear]", "bear remains"),
            ("[a drawing of horses on a wall|a drawing of deer on a wall]", "a rock painting"),
            ("[a diary from an earlier journey|a logbook from an earlier journey]", "an old diary"),
            ("[a warm spring|a hot spring]", "a hot spring"),
            ("[a frog with red eyes|a lizard with a blue tail]", "an unknown animal"),
            ("[a handful of silver coins|a pot of silver coins]", "old silver"),
        ),
    ),
}

_REPORTED_FIND = "[what the team brought back was|the greatest joy was] {find1_long}, though they had hoped for {find2_long}"

_FAILED = Outcome(
    facts=(
        (
            "[it was {trouble1_past} that left no way forward|nothing could be done against {trouble1_past}|"
            "in the face of {trouble1_past} the leader gave the sign to go home]"
        ),
        "[{trouble2_past} had cost them only a few days|they had got over {trouble2_past} without losses]",
        "[{trouble3_past} had been feared but did no harm|{trouble3_past} had spoilt the journey before]",
        _REPORTED_FIND,
    ),
    cores=(
        (
            "{name1}'s team [gave up|turned back] before {goal1_brief} [because of|due to] {trouble1_brief}[, but found "
            "{find1_brief}|]"
        ),
        "{trouble1_brief} [stopped|defeated] {name1}'s team on the way to {goal1_brief}[, but it found {find1_brief}|]",
    ),
)

_REACHED = Outcome(
    facts=(
        (
            "[on {day1} the flag was raised at last|on {day1}, tired but happy, they stood where they had wanted to be|"
            "their message on {day1} said that the work was done]"
        ),
        "[{trouble1_past} had almost forced them to turn round|they had got over {trouble1_past} without losses]",
        "[{trouble2_past} had been feared but did no harm|{trouble2_past} had spoilt the journey before]",
        _REPORTED_FIND,
    ),
    cores=(
        "{name1}'s team [reached|made it to] {goal1_brief} on {day1} and [found|discovered] {find1_brief}",
        ("[on {day1} a team led by|a team under] {name1} [reached|got to] {goal1_brief} and [found|discovered] {find1_brief}"),
    ),
)

EXPEDITION = ReportKind(
    openings=(
        (
            "[in {month1} {name1} and {count1} others set out|{count1} people under {name1} had set out in {month1}] for "
            "{goal1_long}"
        ),
        "[the journey of {name1} to {goal1_long} is over|{name1} is back from the journey to {goal1_long}]",
    ),
    outcomes=(_FAILED, _REACHED),
    side_facts=(
        SideFact(
            "[guide {name4} has to stay in hospital with frozen toes|doctors are treating the frozen toes of guide {name4}]",
            "guide {name4} [has frostbite|suffered frostbite]",
        ),
        SideFact(
            "[the next journey is planned for {month2}|{month2} was named as the date of the next journey]",
            "a new [attempt|expedition] [will follow in|is planned for] {month2}",
        ),
        SideFact(
            "[{name5} will show the photographs in {town1}|photographs taken by {name5} will hang in {town1}]",
            "{town1} will [show|exhibit] {name5}'s pictures",
        ),
        SideFact(
            "[{name6} and {name5} lost their way for {count2} days|for {count2} days {name6} and {name5} could not be found]",
            "two members were [lost|missing] for {count2} days",
        ),
    ),
    distractors=(
        "[the cook, {name7}, baked bread in the ashes|{name7} cooked soup on a tiny stove]",
        "[each carried {num1} pounds|every rucksack weighed {num1} pounds]",
        "[a museum in {town2} had lent the instruments|the instruments came from a school in {town2}]",
        "[at night they sang to stay awake|in the evenings they played cards]",
        "[the first such journey had failed long ago|others had tried long ago]",
    ),
    tables=_TABLES,
)
