"""Lists the papers' experiments, shows one as a task, or adds it to params.yaml.

`python -m tasks.presets` prints a table; `python -m tasks.presets add xsum --paper bild --scale day` writes a task.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from tasks import config
from tasks.console import add_json, answer, command_parser, markdown_table
from tasks.corpora.data_sets import DATA_SETS, LOCK
from tasks.errors import InputError, one_line_errors
from tasks.files import atomic_write
from tasks.init import added
from tasks.presets import FULL, SCALES, VARIANTS, Variant, variant_of

_ACTIONS = {"show": "print a variant as a task of params.yaml", "add": "write a variant into params.yaml and activate it"}
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
    written = f"Written to {given.params} and activated, with the text of {folder}. Next: draftline run {name}"
    return "\n".join([*lines, f"\n{note}", written])


def main() -> None:
    """List the variants, show one, or add one."""
    parser = command_parser(__doc__)
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(dest="action", metavar="list, show, add")
    add_json(parser)
    listing = actions.add_parser("list", help="print all variants (the default)")
    add_json(listing)
    for action, words in _ACTIONS.items():
        one = actions.add_parser(action, help=words, description=f"{words.capitalize()}.")
        one.add_argument("data_set", metavar="DATA_SET", help="a data set, or a variant: data set and paper with - between")
        one.add_argument("--paper", default="", help="whose use of the data set; without it the first that is listed")
        one.add_argument("--pair", default="", metavar="SMALL:LARGE", help="without it the first pair of the variant")
        one.add_argument("--scale", default=FULL, choices=(FULL, *SCALES), help="how much of it is run (default: %(default)s)")
        one.add_argument("--run-generated-code", action="store_true", help="for pass_at_1: run programs that models write")
        if action == "add":
            one.add_argument("--name", default="", help="of the task; without it that of the variant")
            one.add_argument("--folder", default="", help="a local copy of the data set, in place of the hub")
            one.add_argument("--params", type=Path, default=config.DEFAULT, help="parameter file (default: %(default)s)")
        add_json(one)
    given = parser.parse_args()
    if given.action in (None, "list"):
        answer(given, table(), **{one.name: {**vars(one), "printed": one.printed} for one in VARIANTS})
        return
    variant = variant_of(given.data_set, given.paper)
    section = variant.section(given.pair, given.scale)
    if given.run_generated_code and "run_generated_code" in section:
        section["run_generated_code"] = True
    if given.action == "show":
        answer(given, "\n".join(task_lines(variant, variant.name, section)), **{variant.name: section})
    else:
        answer(given, add(given, variant, section), task=given.name or variant.name, settings=section)


if __name__ == "__main__":
    with one_line_errors():
        main()
