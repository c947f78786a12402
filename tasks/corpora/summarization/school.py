"""School projects: what the pupils built and which idea made it work, after one that did not."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_TABLES = {
    "machine": Table(
        ("long", "brief"),
        (
            ("a boat that runs on sunlight", "solar boat"),
            ("a kite that carries a camera", "camera kite"),
            ("a robot that waters plants", "garden robot"),
            ("a clock driven by falling water", "water clock"),
            ("a bicycle that charges a telephone", "charging bicycle"),
            ("a bridge made of paper", "paper bridge"),
            ("an oven heated by mirrors", "mirror oven"),
            ("a nesting box that counts birds", "bird counter"),
            ("a glove that reads out signs", "talking glove"),
        ),
    ),
    "fix": Table(
        ("guess", "finding", "brief"),
        (
            ("[a bigger battery|more batteries]", "took out half of the batteries", "fewer batteries"),
            ("[stronger glue|more glue]", "used thread where glue had been", "thread"),
            ("[thicker wood|oak]", "exchanged the wood for cork", "cork"),
            ("[a longer wire|copper wire]", "wound the wire the other way round", "a reversed wire"),
            ("[a larger wheel|a second wheel]", "cut a third of the wheel away", "a smaller wheel"),
            ("[red paint|a coat of paint]", "rubbed everything with wax", "wax"),
            ("[a heavier base|a lead weight]", "hung a bag of sand below", "a sandbag"),
            ("[another motor|a faster motor]", "let the motor run slowly", "a slower motor"),
        ),
    ),
    "prize": Table(
        ("long", "brief"),
        (
            ("[a gold medal|the gold medal]", "first"),
            ("[a silver medal|the silver medal]", "second"),
            ("[a bronze medal|the bronze medal]", "third"),
        ),
    ),
}

SCHOOL = ReportKind(
    openings=(
        "[pupils from {town1} spent months on|a class in {town1} has worked since {month1} on] {machine1_long}",
        "[the school contest in {town2} ended on {day1}|on {day1} the halls of {town2} were full of young inventors]",
    ),
    outcomes=(
        Outcome(
            facts=(
                (
                    "[teacher {name2} had advised {fix2_guess}, which did not help|with {fix2_guess}, as teacher {name2} had "
                    "proposed, it still did not work]"
                ),
                "[everything changed when {name1} {fix1_finding}|then {name1} {fix1_finding}, and it worked]",
                (
                    "[another pupil, {name3}, had tried {fix3_guess} without luck|{name3} of the same class had put her "
                    "hopes in {fix3_guess}]"
                ),
                (
                    "[the judges gave {town1} {prize1_long} for {machine1_long}|{prize1_long} went to {town1} for "
                    "{machine1_long}]"
                ),
            ),
            cores=(
                (
                    "[pupils|students] from {town1} [came|finished] {prize1_brief} with a {machine1_brief} that "
                    "{name1} [saved|got going] with {fix1_brief}"
                ),
                (
                    "thanks to {fix1_brief}, {name1}'s idea, a {machine1_brief} [won|earned] {prize1_brief} place for "
                    "[pupils|students] from {town1}"
                ),
            ),
        ),
    ),
    side_facts=(
        SideFact(
            "[a company in {town3} wants to produce the invention|the plans have been bought by a company in {town3}]",
            "a {town3} firm will [make|build] the invention",
        ),
        SideFact(
            "[head teacher {name4} gave everybody {day2} off|nobody has to come to school on {day2}, said head teacher "
            "{name4}]",
            "{day2} is a school holiday",
        ),
        SideFact(
            "[the prize money goes to the animal home|the class is giving the money to the animal home]",
            "the prize money [will help|goes to] animals",
        ),
        SideFact(
            "[{name5}, who drew the plans, has been invited to the university|the university has invited {name5}, who "
            "drew the plans]",
            "{name5} will [visit|go to] the university",
        ),
    ),
    distractors=(
        "[{town4} had sent {machine2_long}, which fell apart|{machine2_long} from {town4} caught fire]",
        "[a school from {town5} showed {machine3_long}|{machine3_long} came from {town5}]",
        "[parents served coffee and cake|the band played far too loud]",
        "[the hall was so cold that {name7} gave out blankets|{name7} lent the class a workshop]",
        "[{num1} schools had entered|there were {num1} entries]",
        "[the youngest inventor was {count1} years old|{count1} judges walked from table to table]",
    ),
    tables=_TABLES,
)
