"""Lists the presets of data sets: where they are on the hub, and how the papers use them.

`python -m tasks.corpora` prints a table, and `--task xsum` a task to paste into params.yaml.
"""

from __future__ import annotations

import yaml

from tasks.console import add_json, answer, command_parser, markdown_table
from tasks.corpora.presets import DATA_SETS, LOCK, PRESETS, task_section
from tasks.errors import InputError, one_line_errors

_COLUMNS = ("preset", "data set on the hub", "metric", "tokens", "small and large model", "papers")


def table() -> str:
    """All presets as a Markdown table."""
    rows = []
    for name, preset in PRESETS.items():
        data_set, pair = DATA_SETS[name], preset["pairs"][0]
        where = " ".join(f"`{part}`" for part in (data_set.name, data_set.configuration) if part)
        tokens, models = " → ".join(map(str, preset["lengths"])), f"`{pair['small']}`, `{pair['large']}`"
        rows.append([f"`{name}`", where, f"`{preset['metric']}`", tokens, models, preset["papers"]])
    return "\n".join(markdown_table(_COLUMNS, rows))


def pasted(name: str) -> str:
    """A task of params.yaml with a preset, and the line that `active` needs.

    Raises:
        InputError: there is no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    notes = [
        f"# {PRESETS[name]['title']}: {PRESETS[name]['papers']}.",
        *(f"# Ours: {choice}." for choice in PRESETS[name].get("ours", ())),
    ]
    section = yaml.safe_dump({name: task_section(name)}, sort_keys=False, default_flow_style=None, width=128)
    return "\n".join(
        [
            f"# Under active: `{name}: {LOCK}`, or the folder of a local copy. Under tasks:",
            *(f"  {line}" for line in (*notes, *section.splitlines())),
        ]
    )


def main() -> None:
    """Print the presets."""
    parser = command_parser(__doc__)
    parser.add_argument("--task", metavar="PRESET", help="print a task of params.yaml with this preset")
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.task is None:
        answer(arguments, table(), **PRESETS)
    else:
        answer(arguments, pasted(arguments.task), **{arguments.task: task_section(arguments.task)})


if __name__ == "__main__":
    with one_line_errors():
        main()
