"""Lists the presets of data sets: where they are on the hub, and how the papers use them.

`python -m tasks.corpora` prints a table, `--json` everything, and `--task xsum` a task to paste into params.yaml.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import yaml

from tasks.corpora.presets import LOCK, PRESETS, task_section
from tasks.errors import InputError, one_line_errors

_COLUMNS = ("preset", "data set on the hub", "metric", "tokens", "small and large model", "papers")


def table() -> str:
    """All presets as a Markdown table."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for name, preset in PRESETS.items():
        data_set, pair = preset.data_set, preset.pairs[0]
        where = " ".join(f"`{part}`" for part in (data_set.name, data_set.configuration) if part)
        tokens, models = " → ".join(map(str, preset.lengths)), f"`{pair['small']}`, `{pair['large']}`"
        lines.append(f"| `{name}` | {where} | `{preset.metric}` | {tokens} | {models} | {preset.papers} |")
    return "\n".join(lines)


def pasted(name: str) -> str:
    """A task of params.yaml with a preset, and the line that `active` needs.

    Raises:
        InputError: there is no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    notes = [f"# {PRESETS[name].title}: {PRESETS[name].papers}.", *(f"# Ours: {choice}." for choice in PRESETS[name].ours)]
    section = yaml.safe_dump({name: task_section(name)}, sort_keys=False, default_flow_style=None, width=128)
    return "\n".join(
        [
            f"# Under active: `{name}: {LOCK}`, or the folder of a local copy. Under tasks:",
            *(f"  {line}" for line in (*notes, *section.splitlines())),
        ]
    )


def description(name: str) -> dict[str, Any]:
    """All of a preset: its columns, what the papers print, the task that it makes, and the points of its grid."""
    from tasks.evaluation.settings import GridSettings
    from tasks.evaluation.sweep.grid import preset_values

    preset, task = PRESETS[name], task_section(name)
    grid = [{"method": entry["method"], "values": preset_values(GridSettings(**entry))} for entry in task["sweep"]["grid"]]
    return {
        "name": name,
        "title": preset.title,
        "papers": preset.papers,
        "ours": preset.ours,
        "hub": dataclasses.asdict(preset.data_set),
        "pairs": preset.pairs,
        "grid": grid,
        "task": task,
    }


def main() -> None:
    """Print the presets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print everything as JSON")
    formats.add_argument("--task", metavar="PRESET", help="print a task of params.yaml with this preset")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps([description(name) for name in PRESETS], indent=1))
    elif arguments.task is not None:
        print(pasted(arguments.task))
    else:
        print(table())


if __name__ == "__main__":
    with one_line_errors():
        main()
