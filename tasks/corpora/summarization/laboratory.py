"""Laboratory inquiries: what the tests found in the end, not what was suspected or ruled out."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "cause": Table(
        ("guess", "finding", "brief"),
        (
            ("[fertiliser|chemicals from the fields]", "nitrate from the fields", "fertiliser"),
            ("[old pipes|the pipes]", "copper from worn pipes", "old copper pipes"),
            ("[algae|a bloom of algae]", "a dense growth of algae", "algae"),
            ("[soap|a cleaning agent]", "a soap used for cleaning tanks", "a cleaning agent"),
            ("[mould|a fungus]", "spores of a black mould", "mould"),
            ("[bacteria|germs]", "a rare strain of bacteria", "bacteria"),
            ("[diesel|fuel]", "drops of diesel", "leaked fuel"),
            ("[salt|road salt]", "salt spread in winter", "road salt"),
            ("[paint|fresh paint]", "lead from old paint", "lead paint"),
            ("[beetles|insects]", "the larvae of a beetle", "insects"),
        ),
    ),
    "problem": Table(
        ("long", "brief"),
        (
            ("the bitter taste of the tap water in {town1}", "[bitter|bad] water in {town1}"),
            ("the death of so many fish in the lake at {town1}", "[dead fish|the fish deaths] in {town1}"),
            ("the green colour of the river in {town1}", "the green river in {town1}"),
            ("the strange smell in the school at {town1}", "the smell in the {town1} school"),
            ("the loss of bees around {town1}", "the [dying bees|bee deaths] near {town1}"),
            ("the rash among bathers in {town1}", "the bathers' rash in {town1}"),
            ("the brown spots on fruit from {town1}", "spotted fruit in {town1}"),
        ),
    ),
    "advice": Table(
        ("long", "brief"),
        (
            ("boil all water for {count1} days", "boil their water"),
            ("let children play inside", "keep children indoors"),
            ("leave all windows open at night", "air their rooms"),
            ("wash all fruit twice", "wash their fruit"),
            ("drink from bottles until {day2}", "use bottled water"),
        ),
    ),
}

LABORATORY = ReportKind(
    openings=(
        "for weeks [people have been asking|residents have wondered] what lies behind {problem1_long}",
        "[the institute|the laboratory] in {town2} has [completed|finished] its study of {problem1_long}",
    ),
    outcomes=(
        Outcome(
            facts=(
                (
                    "[the usual suspect, {cause2_guess}, was ruled out|{cause2_guess} had been the first suspicion, but "
                    "no trace was found|nothing pointed to {cause2_guess} any more after the first series of tests]"
                ),
                (
                    "[every sample contained|the second series of tests detected|under the microscope appeared] "
                    "{cause1_finding} [in [large|unusual] amounts|]"
                ),
                (
                    "[a local newspaper had blamed|some residents had blamed|the fishing club had complained about] "
                    "{cause3_guess}"
                ),
            ),
            cores=(
                (
                    "{cause1_brief} [caused|lay behind|led to] {problem1_brief}, [tests showed|"
                    "the laboratory found|scientists found]"
                ),
                "[scientists|researchers] [have traced|traced] {problem1_brief} to {cause1_brief}",
            ),
        ),
    ),
    side_facts=(
        SideFact(
            "[doctors now advise people|the health office asks families] to {advice1_long}",
            "[people|residents] should {advice1_brief}",
        ),
        SideFact(
            "[the source was a yard owned by {name4}|all traces led to a yard that belongs to {name4}]",
            "{name4}'s yard was the source",
        ),
        SideFact(
            "[{count2} people had to see a doctor, all of whom are well again|{count2} people were treated and are well again]",
            "{count2} people [fell ill|became ill]",
        ),
        SideFact(
            "[a filter ordered by the mayor will be fitted in {month2}|in {month2} the town will install a filter]",
            "a filter [comes|will follow] in {month2}",
        ),
    ),
    distractors=(
        "{name7}, who leads the team, [has worked there since {month1}|joined in {month1}]",
        "[the samples were kept in a cold room|all samples travelled by train in a cool box]",
        "[each test takes about {num1} hours|the machine ran for {num1} hours]",
        "a similar case in {town3} years ago was [blamed on|put down to] {cause4_guess}",
        "[students from {town4} helped to wash the glasses|two students from {town4} helped with the samples]",
        "[the mayor praised the patience of the people|the work was paid for by the county]",
    ),
    tables=_TABLES,
)
