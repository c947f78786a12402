"""Lists the papers' experiments, shows one as a task, adds it to params.yaml, or plans what a task takes of a GPU.

`python -m tasks.presets` prints a table; `python -m tasks.presets add xsum --paper bild --scale day` writes a task, and
`python -m tasks.presets plan xsum-bild` prints its memory and hours.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import yaml

from tasks import config
from tasks.console import add_json, answer, command_parser, markdown_table
from tasks.corpora.data_sets import DATA_SETS, LOCK
from tasks.errors import InputError, one_line_errors
from tasks.files import atomic_write
from tasks.init import added
from tasks.machine import MachineSettings
from tasks.presets import CARDS, FULL, SCALES, VARIANTS, Variant, variant_of

_ACTIONS = {"show": "print a variant as a task of params.yaml", "add": "write a variant into params.yaml and activate it"}
_SCALE: dict[str, Any] = {
    "default": FULL,
    "choices": (FULL, *SCALES),
    "help": "how much of a variant is run (default: %(default)s)",
}
_COLUMNS = ("variant", "printed in", "data set on the hub", "metric", "tokens", "small and large models")


def table() -> str:
    """All variants as a Markdown table."""
    rows = []
    for one in VARIANTS:
        data_set = DATA_SETS[one.data_set]
        where = " ".join(f"`{part}`" for part in (data_set.name, data_set.configuration) if part)
        pairs = ", ".join(f"`{pair}`" for pair in one.pairs)
        rows.append([f"`{one.name}`", one.printed, where, f"`{one.metric}`", " → ".join(map(str, one.lengths)), pairs])
    return "\n".join(markdown_table(_COLUMNS, rows))


def task_lines(variant: Variant, name: str, section: dict[str, Any]) -> list[str]:
    """A task as lines of YAML below `tasks`, with what is printed and what is ours as comments."""
    comments = [f"# {variant.printed}.", *(f"# Ours: {choice}." for choice in variant.ours)]
    dumped = yaml.dump({name: section}, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=140)
    return [f"  {line}" for line in (*comments, *dumped.splitlines())]


class _Plain(yaml.SafeDumper):
    """Writes what two places share twice, without an anchor."""

    def ignore_aliases(self, *_: object) -> bool:
        return True


def planned(given: argparse.Namespace) -> None:
    """Print what a task or a variant takes of the card that is named or at hand, or of all; without one, a line each.

    Raises:
        InputError: there is no such task, or a stage does not fit the one card.
    """
    from tasks.presets.plan import ESTIMATED, card_at_hand, overview, plan_of, table

    chosen = CARDS.get(given.card) or card_at_hand()
    cards = [chosen] if chosen else list(CARDS.values())
    if given.task is None:
        found = overview({one.name: _task(one.section("", given.scale)) for one in VARIANTS}, cards)
        rows = [
            {"variant": f"`{one.name}`", "printed in": one.printed, "pair": f"`{one.pairs[0]}`", "metric": one.metric}
            | found[one.name]
            for one in VARIANTS
        ]
        lines = markdown_table(list(rows[0]), [list(row.values()) for row in rows])
        answer(given, "\n".join([ESTIMATED, "", *lines]), variants=rows)
        return
    params = config.load(given.params)
    variants = {} if given.task in params.tasks else {one.name: one for one in VARIANTS}
    task = _task(variants[given.task].section("", given.scale)) if given.task in variants else params.task(given.task)
    said, by_card = [ESTIMATED], dict[str, object]()
    for card in cards:
        said.append(f"\n{card.name}, {card.memory / 1e9:.0f} GB:\n")
        try:
            stages = plan_of(task, card, params.machine).stages()
            by_card[card.name] = [
                {name: None if value != value else value for name, value in dataclasses.asdict(one).items()} for one in stages
            ]
            said.append(table(stages))
        except InputError as error:
            if chosen:
                raise
            by_card[card.name] = {"refused": str(error)}
            said.append(f"{error}.")
    answer(given, "\n".join(said), **by_card)


def _task(section: dict[str, Any]) -> config.Task:
    """A variant as the schema reads it."""
    return config.Task.model_validate_json(json.dumps(section))


def sized(section: dict[str, Any], card: str, machine: MachineSettings) -> dict[str, Any]:
    """A task with the micro-batches, activation checkpointing and decoding batches by which it fits a card.

    Raises:
        InputError: a stage does not fit.
    """
    from tasks.presets.plan import SECTIONS, plan_of

    for one in plan_of(_task(section), CARDS[card], machine).stages():
        functools.reduce(dict.__getitem__, SECTIONS[one.stage].split("."), section).update(one.settings)
    return section


def add(given: argparse.Namespace, variant: Variant, section: dict[str, Any]) -> str:
    """Write a task into the parameter file and activate it; returns what to say.

    Raises:
        InputError: there is such a task already, or it does not fit the file.
    """
    name, folder = given.name or variant.name, given.folder or LOCK
    if name in config.load(given.params).tasks:
        raise InputError(f"{given.params} has a task {name} already; choose another name with --name, or remove that one")
    lines = task_lines(variant, name, section)
    atomic_write(given.params, added(given.params.read_text(encoding="utf-8"), name, folder, lines, str(given.params)))
    note = section["corpus"].get("note", f"This is {variant.printed}, at the paper's own scale.")
    note += "" if given.pair in ("", *variant.pairs) else " The pair is none of the paper's."
    written = f"Written to {given.params} and activated, with the text of {folder}. Next: draftline run {name}"
    return "\n".join([*lines, f"\n{note}", written])


def main() -> None:
    """List the variants, show one, or add one."""
    parser = command_parser(__doc__)
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(dest="action", metavar="list, show, add, plan")
    add_json(parser)
    listing = actions.add_parser("list", help="print all variants (the default)")
    add_json(listing)
    for action, words in _ACTIONS.items():
        one = actions.add_parser(action, help=words, description=f"{words.capitalize()}.")
        one.add_argument("data_set", metavar="DATA_SET", help="a data set, or a variant: data set and paper with - between")
        one.add_argument("--paper", default="", help="whose use of the data set; without it the first that is listed")
        one.add_argument("--pair", default="", metavar="SMALL:LARGE", help="without it the first pair of the variant")
        one.add_argument("--scale", **_SCALE)
        one.add_argument("--card", choices=CARDS, help="set micro-batches and batches to what fits this GPU")
        one.add_argument("--run-generated-code", action="store_true", help="for pass_at_1: run programs that models write")
        one.add_argument("--params", type=Path, default=config.DEFAULT, help="parameter file (default: %(default)s)")
        if action == "add":
            one.add_argument("--name", default="", help="of the task; without it that of the variant")
            one.add_argument("--folder", default="", help="a local copy of the data set, in place of the hub")
        add_json(one)
    plan = actions.add_parser("plan", help="print memory, disk and hours of a task", description="Print what a task takes.")
    plan.add_argument("task", nargs="?", help="a task of the parameter file, or a variant; without it, a line for each variant")
    plan.add_argument("--scale", **_SCALE)
    plan.add_argument("--card", choices=CARDS, help="a GPU; without it the one at hand, or all of these")
    plan.add_argument("--params", type=Path, default=config.DEFAULT, help="parameter file (default: %(default)s)")
    add_json(plan)
    given = parser.parse_args()
    if given.action == "plan":
        planned(given)
        return
    if given.action in (None, "list"):
        answer(given, table(), **{one.name: {**vars(one), "printed": one.printed} for one in VARIANTS})
        return
    variant = variant_of(given.data_set, given.paper)
    section = variant.section(given.pair, given.scale)
    runs = "run_generated_code" in section
    if given.run_generated_code and not runs:
        raise InputError(f"{variant.name} runs no programs of models; leave out --run-generated-code")
    if given.action == "add" and runs and not given.run_generated_code:
        fix = "give --run-generated-code"
        raise InputError(f"the metric of {variant.name} runs programs that models write, on this machine; {fix}")
    if runs:
        section["run_generated_code"] = given.run_generated_code
    if given.card:
        section = sized(section, given.card, config.load(given.params).machine)
    if given.action == "show":
        answer(given, "\n".join(task_lines(variant, variant.name, section)), **{variant.name: section})
    else:
        answer(given, add(given, variant, section), task=given.name or variant.name, settings=section)


if __name__ == "__main__":
    with one_line_errors():
        main()
