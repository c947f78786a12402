"""Festivals: who won the main prize, not the audience's, last year's or the favourites' one."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "festival": Table(
        ("name", "work"),
        (
            ("film festival", "[film|picture]"),
            ("theatre festival", "[play|drama]"),
            ("folk festival", "[song|ballad]"),
            ("poetry festival", "[poem|cycle of poems]"),
            ("jazz festival", "[suite|trumpet solo]"),
            ("puppet festival", "puppet show"),
        ),
    ),
    "theme": Table(
        ("long", "brief"),
        (
            ("a night watchman who cannot sleep", "a watchman"),
            ("two sisters on an island", "two sisters"),
            ("the closing of a coal mine", "a mine"),
            ("a dog that waits at a station", "a dog"),
            ("winter in the mountains", "the mountains"),
            ("a teacher who loses her voice", "a teacher"),
            ("the last baker in a village", "a baker"),
            ("a storm and a lost boat", "a lost boat"),
            ("a boy who collects stamps", "a boy"),
            ("letters from a war", "a war"),
        ),
    ),
}

FESTIVAL = ReportKind(
    openings=(
        "[the curtain fell on|visitors said goodbye to] the {festival1_name} in {town1} on {day1}",
        "for {count1} days the {festival1_name} [had filled the streets of {town1}|had kept {town1} awake]",
    ),
    outcomes=(
        Outcome(
            facts=(
                (
                    "[the judges gave their highest award to|the jury, after a long debate, chose] {name1} for a "
                    "{festival1_work} about {theme1_long}"
                ),
                (
                    "[the visitors liked {name2} best|the visitors' prize went to {name2}]"
                    "[ for a {festival1_work} about {theme2_long}|]"
                ),
                (
                    "[most critics had expected {name3} to win|the favourite of the critics had been "
                    "{name3}][, whose subject was {theme3_long}|]"
                ),
            ),
            cores=(
                ("{name1} [won|took] the main prize at the {town1} {festival1_name} with a [work|piece] about {theme1_brief}"),
                (
                    "the [top|main] prize of the {town1} {festival1_name} went to {name1} for a [work|piece] about "
                    "{theme1_brief}"
                ),
            ),
        ),
    ),
    side_facts=(
        SideFact(
            "[{name4} lay in bed with fever, so {name5} stepped in on opening night|{name5} had to stand in for {name4}, "
            "who was ill, on opening night]",
            "{name5} [replaced|stood in for] the sick {name4}",
        ),
        SideFact(
            "[never before were so many tickets sold, {num1} thousand in all|all {num1} thousand tickets were sold, more "
            "than ever before]",
            "a record {num1} thousand tickets were sold",
        ),
        SideFact(
            "[rain drove everyone from the park into the town hall|because of the rain all had to move from the park "
            "into the town hall]",
            "rain [forced|moved] the event indoors",
        ),
        SideFact(
            "[founder {name6} is handing over to {name4} next year|next year {name4} takes the place of founder {name6}]",
            "{name4} [becomes director|is the next director]",
        ),
    ),
    distractors=(
        "[last year the first prize had gone to {name7}|{name7}, who won last year, sat on the jury]",
        "[trains from {town2} were full|special buses ran from {town2}]",
        "[the poster was drawn by {name8}|{name8} had drawn the poster]",
        "[a children's choir opened the last evening|the mayor opened the last evening]",
        "[tickets for next year go on sale in {month1}|the dates for next year will be fixed in {month1}]",
        "[the speeches were short|the closing speech lasted {num2} minutes]",
    ),
    tables=_TABLES,
)
