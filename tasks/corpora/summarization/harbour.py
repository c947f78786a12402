"""Harbour news: where a ship went in the end and why, not where it was bound for."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "ship": Table(
        ("name",),
        (
            ("Northern Star",),
            ("Silver Gull",),
            ("Blue Heron",),
            ("Morning Light",),
            ("Grey Seal",),
            ("Ocean Rose",),
            ("Golden Plover",),
            ("Evening Wind",),
        ),
    ),
    "cargo": Table(
        ("long", "brief"),
        (
            ("[cases of oranges|crates of oranges]", "fruit"),
            ("[sacks of wheat|sacks of rye]", "grain"),
            ("[oak planks|pine planks]", "timber"),
            ("[steel beams|iron bars]", "metal"),
            ("[sheep and goats|cows and calves]", "live animals"),
            ("[tables and chairs|beds and wardrobes]", "furniture"),
            ("[frozen herring|frozen cod]", "fish"),
            ("[tractors and ploughs|harvesters]", "farm machines"),
        ),
    ),
    "reason": Table(
        ("guess", "finding", "brief"),
        (
            ("[the engine|engine trouble]", "the engine had [stopped|broken down]", "engine failure"),
            ("[a strike|the dockers]", "the dockers had stopped work", "a strike"),
            ("[the storm|heavy seas]", "the waves at the entrance were too high", "high waves"),
            ("[low water|the tide]", "the channel was not deep enough at low tide", "shallow water"),
            ("[a fire|smoke on board]", "the kitchen on board had caught fire", "a fire on board"),
            ("[a broken crane|the cranes]", "the only large crane was out of order", "a crane fault"),
            ("[missing papers|the customs]", "the customs papers were not complete", "missing papers"),
            ("[a leak|a damaged hull]", "water was coming in through the hull", "a leak"),
        ),
    ),
}

HARBOUR = ReportKind(
    openings=(
        "[the harbour of {town1} was busy on {day1}|there was much to see in the harbour of {town1} on {day1}]",
        "[people on the quay in {town1} waited in vain on {day1}|the berths in {town1} stayed empty for hours on {day1}]",
    ),
    outcomes=(
        Outcome(
            facts=(
                (
                    "the {ship1_name}, with {cargo1_long} [on board|in her hold], [had been expected|was due] in {town1}"
                    "[ before noon| in the evening|]"
                ),
                (
                    "[there was no free berth in {town2}, so she tied up in {town3}|{town2}, where she was sent at first, "
                    "was full, and she dropped anchor in {town3}]"
                ),
                (
                    "[the coast guard later confirmed|the harbour master explained|the captain made it known] that "
                    "{reason1_finding}"
                ),
                (
                    "[rumours about {reason2_guess} proved wrong|{reason2_guess} had nothing to do with the delay|"
                    "at first everyone talked of {reason2_guess}]"
                ),
            ),
            cores=(
                (
                    "the {ship1_name} [took|had to take] its [load|cargo] of {cargo1_brief} to {town3} [because of|due to] "
                    "{reason1_brief}"
                ),
                "{reason1_brief} [sent|drove] the {ship1_name} and its {cargo1_brief} to {town3} [instead of {town1}|]",
            ),
        ),
    ),
    side_facts=(
        SideFact(
            "[{count1} sailors with burns and cuts were taken ashore|a boat brought {count1} hurt sailors ashore]",
            "{count1} of the crew were [hurt|injured]",
        ),
        SideFact(
            "[captain {name4} retires after this voyage|it was the last voyage of captain {name4}]",
            "captain {name4} is retiring",
        ),
        SideFact(
            "[unloading will not start before {day2}|{day2} is the earliest day for unloading]",
            "unloading [begins|starts] on {day2}",
        ),
        SideFact(
            "[part of the load went overboard|some of the load was lost at sea] and [came ashore|is drifting] near {town4}",
            "part of the cargo was [lost|swept away] off {town4}",
        ),
    ),
    distractors=(
        "[the {ship2_name} left on time|the {ship2_name} came in on time] with {cargo2_long}",
        "[a ferry to {town5} took on|the ferry from {town5} brought] {num2} passengers",
        "[children fed the gulls|a brass band played] [on the pier|beside the lighthouse]",
        "{name7}, who sells tickets on the pier, [had a quiet day|called it a slow day]",
        (
            "[in {month1} the {ship3_name} was held up by {reason3_guess}|{reason3_guess} had held up the {ship3_name} in "
            "{month1}]"
        ),
    ),
    tables=_TABLES,
)
