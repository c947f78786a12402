"""Council meetings: the final vote, not what a committee or an earlier vote preferred."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "project": Table(
        ("long", "brief"),
        (
            ("turning the old mill into a library", "a library in the old mill"),
            ("laying a cycle path along the river", "a riverside cycle path"),
            ("putting up a hall for the sports clubs", "a sports hall"),
            ("planting a public garden behind the station", "a garden behind the station"),
            ("opening a day nursery in the former bank", "a nursery in the old bank"),
            ("building homes for the elderly on the north meadow", "homes for old people"),
            ("digging an open-air pool beside the school", "an outdoor pool"),
            ("setting up wind turbines on the hill", "wind turbines"),
            ("running a tram to the hospital", "a tram to the hospital"),
            ("replacing the wooden bridge", "a new bridge"),
        ),
    )
}

_APPROVED = Outcome(
    facts=(
        (
            "[[as late as {month1}|in {month1}] the committee [had|still] recommended {project2_long}|"
            "a first vote in {month1} had gone in favour of {project2_long}]"
        ),
        (
            "[when hands were counted, {num1} of the members stood behind|in the end most of the members came down on the "
            "side of|the deciding vote, well after midnight, went to] {project1_long}"
        ),
        "[{name1} had spoken for|a group around {name1} had campaigned for] {project3_long} [without success|]",
    ),
    cores=(
        "{town1} [will get|is to get] {project1_brief} [after a vote|after a council vote] on {day1}",
        (
            "the {town1} council [chose|voted for|decided on] {project1_brief} [on {day1}|] [rather than|instead of] "
            "{project2_brief}"
        ),
    ),
)

_REJECTED = Outcome(
    facts=(
        (
            "[the committee had been in favour of {project1_long} since {month1}|"
            "{project1_long} had passed a first vote in {month1}]. [at the second reading only {count1} members still "
            "supported it and the motion was lost|when hands were "
            "counted, the motion fell {count1} votes short|members changed their minds and threw the motion out after all]"
        ),
        (
            "[{name1} reminded the meeting that|as {name1} said,] {project2_long} [had failed|had been turned down] "
            "[last year|years ago]"
        ),
    ),
    cores=(
        "{town1} [will not get|must do without] {project1_brief} [after a vote|after a council vote] on {day1}",
        "the {town1} council [rejected|refused|voted against] {project1_brief} [on {day1}|at {day1}'s meeting]",
    ),
)

COUNCIL = ReportKind(
    openings=(
        (
            "[the council of {town1} met|councillors in {town1} came together] on {day1} [for a long session|to talk about "
            "money]"
        ),
        "[{day1}'s meeting|the meeting on {day1}] in the town hall of {town1} [lasted|went on for] {count2} hours",
    ),
    outcomes=(_APPROVED, _REJECTED),
    side_facts=(
        SideFact(
            "[mayor {name4} told the meeting that she would not stand again|it was the last session for mayor {name4}, "
            "who is not standing again]",
            "mayor {name4} [is leaving|will step down]",
        ),
        SideFact(
            "[drivers will have to pay more for parking from {month2}|the price of parking goes up in {month2}]",
            "parking [costs|will cost] more from {month2}",
        ),
        SideFact(
            "[some {num2} people had gathered outside in protest|about {num2} people held up banners at the door]",
            "a crowd of {num2} [protested|demonstrated]",
        ),
        SideFact(
            "[councillor {name5} walked out and has left her party|councillor {name5} gave back his party card]",
            "{name5} [quit|left] the party",
        ),
    ),
    distractors=(
        "the minutes of the last meeting were [read and accepted|accepted without debate]",
        "{name7} [asked for|wished for] more benches in the park",
        "[a school class from {town2} listened from the gallery|pupils from {town2} watched from the gallery]",
        "[the neighbouring town of {town3} already has|in {town3} people are pleased with] {project4_brief}",
        "[the heating failed|the lights failed] twice during the debate",
        "[the next session is planned for {day2}|members will meet again on a {day2}]",
        "{name8} was thanked for [{num3} years of service|long service]",
    ),
    tables=_TABLES,
)
