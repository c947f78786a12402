"""Company quarters: the product that moved the profit most, in the direction in which the profit went."""

from __future__ import annotations

import random

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Slots, Table

_TABLES = {
    "firm": Table(("name",), (("Mills",), ("Works",), ("Brothers",), ("Trading",), ("Industries",), ("Partners",))),
    "product": Table(
        ("long", "brief"),
        (
            ("[racing bicycles and tandems|bicycles of all sizes]", "bicycles"),
            ("[woollen socks and scarves|scarves and gloves]", "knitwear"),
            ("[jam and honey|honey in jars]", "sweet spreads"),
            ("[saws and hammers|hammers and drills]", "tools"),
            ("[lamps for desks and ceilings|ceiling lamps]", "lighting"),
            ("[pianos and violins|violins]", "instruments"),
            ("[skis and sledges|ice skates]", "winter sports gear"),
            ("[cups and plates|plates and bowls]", "tableware"),
            ("[seeds and bulbs|tulip bulbs]", "garden goods"),
            ("[tents and rucksacks|camping stoves]", "camping gear"),
            ("[dolls and board games|wooden trains]", "toys"),
        ),
    ),
}

_ROSE = (
    "sales of {product%_long} [went up|grew] by {change%} percent",
    "{product%_long} brought in {change%} percent more",
    "there were {change%} percent more orders for {product%_long}",
)
_FELL = (
    "sales of {product%_long} [went down|shrank] by {change%} percent",
    "{product%_long} brought in {change%} percent less",
    "there were {change%} percent fewer orders for {product%_long}",
)

_BETTER = (
    "[at the end of the quarter more money was left than a year ago|the result was better than a year ago|"
    "shareholders can look forward to a larger payment than a year ago]"
)
_WORSE = (
    "[at the end of the quarter less money was left than a year ago|the result was poorer than a year ago|"
    "shareholders must be content with a smaller payment than a year ago]"
)

_UP = (
    "[higher|strong] sales of {product1_brief} [lifted|raised] [profit|profits] at {firm}",
    "{firm} [made more profit|earned more] thanks to [higher|strong] sales of {product1_brief}",
)
_DOWN = (
    "[lower|weak] sales of {product1_brief} [hurt|reduced] [profit|profits] at {firm}",
    "{firm} [made less profit|earned less] because of [lower|weak] sales of {product1_brief}",
)


def _changes(rng: random.Random, slots: Slots) -> Outcome:
    """Profit follows product 1; product 2 moves less in the same direction, product 3 in the other, often further."""
    slots["firm"] = f"{slots['name1']} {slots['firm1_name']}"
    smaller, larger = sorted(rng.sample(range(2, 30), 2))
    slots |= {"change1": str(larger), "change2": str(smaller), "change3": str(rng.randrange(2, 40))}
    rises = rng.random() < 0.5
    with_profit, against = (_ROSE, _FELL) if rises else (_FELL, _ROSE)
    first, second, third = rng.sample(range(len(_ROSE)), 3)
    templates = enumerate((with_profit[first], with_profit[second], against[third]), start=1)
    facts = (template.replace("%", str(number)) for number, template in templates)
    return Outcome((*facts, _BETTER if rises else _WORSE), _UP if rises else _DOWN)


COMPANY = ReportKind(
    openings=(
        "[{firm} opened its books on {day1}|{firm} published its figures on {day1}]",
        "[the press was invited to the offices of {firm} on {day1}|{firm}, based in {town1}, spoke to the press on {day1}]",
    ),
    outcomes=(),
    side_facts=(
        SideFact(
            "[the plant in {town2} stays open after all, although its closing was announced in {month1}|in {month1} the "
            "plant in {town2} was to be shut, but that plan has been dropped]",
            "the {town2} plant [will not close|is saved]",
        ),
        SideFact(
            "[chief executive {name2} hands over to {name3} in {month2}|in {month2} {name3} takes the chair of chief "
            "executive {name2}]",
            "{name3} [follows|replaces] {name2} as chief executive",
        ),
        SideFact(
            "[a search for {num1} more workers has begun|{num1} more workers are wanted at once]",
            "[there will be|the company plans] {num1} new jobs",
        ),
        SideFact(
            "[a shop in {town3} is to open before {month2}|before {month2} the doors of a shop in {town3} will open]",
            "a {town3} shop will open by {month2}",
        ),
    ),
    distractors=(
        "[the yearly meeting takes place in {town4}|shareholders meet in {town4} in spring]",
        "[the firm was founded by a blacksmith|the founder was a blacksmith] [long ago|a century ago]",
        "[spokesman {name7} answered questions for an hour|spokeswoman {name7} did not want to look ahead]",
        "[energy prices hardly changed|rents hardly changed]",
        "[a rival from {town5} reports next week|figures from a rival in {town5} are due next week]",
        "[the firm took on {num2} trainees in {month1}|in {month1} {num2} trainees began]",
    ),
    tables=_TABLES,
    measure=_changes,
)
