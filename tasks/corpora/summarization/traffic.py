"""Road accidents: the cause that was confirmed, not the one that was suspected or claimed."""

from __future__ import annotations

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table

_CORES = (
    ("{cause1_brief} [caused|led to] {day1}'s [crash|accident] [on|involving a {vehicle1_name} on] {road1_name} near {town1}"),
    "a {vehicle1_name} [crashed|had an accident] near {town1} on {day1} [because of|due to] {cause1_brief}",
)

_TABLES = {
    "cause": Table(
        ("guess", "finding", "brief"),
        (
            ("[a damaged tyre|the tyres]", "one of the front tyres had burst", "a burst tyre"),
            ("[the brakes|worn brakes]", "the brakes had [failed|given way] on the hill", "brake failure"),
            ("[ice|black ice]", "the surface had frozen [under the bridge|in the shade]", "an icy road"),
            ("[spilled oil|a trail of oil]", "the surface was covered with engine oil", "oil on the road"),
            ("[a tired driver|lack of sleep]", "the driver had fallen asleep", "a sleeping driver"),
            ("[a deer|an animal]", "a deer had run in front of the wheels", "a deer on the road"),
            ("[high speed|a speeding driver]", "the driver had gone much too fast", "speeding"),
            ("[the traffic lights|the signals]", "the lights had shown green on both sides", "faulty traffic lights"),
            ("[the low sun|sunlight]", "the driver had been blinded by the sun", "low sun"),
            ("[the thick fog|poor visibility]", "the bend could not be seen in the mist", "fog"),
            ("[a mobile phone|a telephone call]", "the driver had been reading a message", "a phone at the wheel"),
            ("[roadworks|a missing sign]", "workers had forgotten to put up a sign", "a missing road sign"),
        ),
    ),
    "vehicle": Table(
        ("name",),
        (("lorry",), ("bus",), ("van",), ("tractor",), ("taxi",), ("milk tanker",), ("school bus",), ("fire engine",)),
    ),
    "road": Table(
        ("name",),
        (("the coast road",), ("the north road",), ("the ring road",), ("the old bridge",), ("the valley road",)),
    ),
}

TRAFFIC = ReportKind(
    openings=(
        (
            "[traffic came to a standstill|long queues formed|drivers had to be patient] on {road1_name} "
            "[outside|close to] {town1} on {day1} [morning|evening|afternoon]"
        ),
        (
            "[emergency crews|police and firefighters] were called to {road1_name} near {town1} on {day1} "
            "[before sunrise|at noon|after dark]"
        ),
    ),
    outcomes=(
        Outcome(
            facts=(
                (
                    "[officers [had|] at first [suspected|thought of] {cause2_guess}|"
                    "the police had [initially|at first] blamed {cause2_guess}]"
                ),
                (
                    "[a closer look|an inspection|the examination of the wreck] [later showed|proved|made clear] that "
                    "{cause1_finding}"
                ),
                (
                    "[a witness|a passer-by|one resident] [spoke of|mentioned|pointed to] {cause3_guess}"
                    "[, but nobody could confirm this|, which was never confirmed|]"
                ),
                (
                    "[a {vehicle1_name} had [hit|struck] a {vehicle2_name}|a {vehicle1_name} and a {vehicle2_name} "
                    "had collided|a {vehicle1_name} had run into a parked {vehicle2_name}]"
                ),
            ),
            cores=_CORES,
        ),
    ),
    side_facts=(
        SideFact(
            "[the hospital treated {count1} people, not {count2} as first reported|first reports of {count2} injured "
            "were wrong, as doctors counted {count1}|{count1} people were hurt, although {count2} had been feared]",
            "{count1} people were [hurt|injured]",
        ),
        SideFact(
            "[all lanes stayed shut until {day2}|it took until {day2} to clear the lanes]",
            "the road [was blocked|remained closed] until {day2}",
        ),
        SideFact(
            "[driver {name4} had no licence, it turned out|it turned out that driver {name4} had never held a licence]",
            "{name4} was driving without a licence",
        ),
        SideFact(
            "[off-duty nurse {name5} freed a child from the back seat|{name5}, a nurse on her way home, got a child out "
            "of the back seat]",
            "{name5} [rescued|saved] a child",
        ),
    ),
    distractors=(
        "[buses|school buses] to {town2} [ran late|were sent through the villages] all day",
        ("the last accident at this spot [happened in {month1}|was in {month1}] and was [blamed on|caused by] {cause4_guess}"),
        "[a baker from {town3} handed out bread to the waiting drivers|residents brought tea to the waiting drivers]",
        "{name7} of the {town1} police thanked the drivers for their patience",
        "[some {num1} thousand cars use the road every day|the road carries {num1} thousand cars a day]",
        "[the council has promised a new crossing there for years|a new crossing has been planned there for years]",
    ),
    tables=_TABLES,
)
