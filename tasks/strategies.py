"""Lists the decoding methods (paper, settings with bounds, whether the output is the large model's own) and the drafters.

`python -m tasks.strategies` prints both lists as Markdown tables, `--json` prints the methods for programs.
"""

from __future__ import annotations

import dataclasses
import json

from tasks.console import command_parser
from tasks.decoding.method import DRAFTERS, MethodSpec
from tasks.decoding.registry import METHODS
from tasks.errors import stage
from tasks.settings import bounds_text


def as_json(method: MethodSpec) -> dict[str, object]:
    """Return a method as plain data; defaults, bounds and choices of its settings are as in `params.yaml`."""
    return {
        "name": method.name,
        "paper": method.paper,
        "lossless": method.lossless,
        "architectures": list(method.architectures),
        "settings": {
            field.name: {
                "default": None if field.default is dataclasses.MISSING else field.default,
                "bounds": field.metadata["bounds"],
                "choices": list(field.metadata["choices"]),
                "description": field.metadata["description"],
            }
            for field in dataclasses.fields(METHODS[method.name].settings)
        },
    }


def _settings_cell(method: MethodSpec) -> str:
    """Return the settings with their bounds; the choices are too long for a cell and are in the table of settings."""
    cells = []
    for field in dataclasses.fields(METHODS[method.name].settings):
        bounds = bounds_text(field.metadata["bounds"])
        cells.append(f"`{field.name}` ({bounds})" if bounds else f"`{field.name}`")
    return ", ".join(cells)


def table() -> str:
    """Return all methods as a Markdown table."""
    lines = ["| method | paper | settings | output is the large model's own | models |", "|---|---|---|---|---|"]
    for method in METHODS.values():
        own, models = "yes" if method.lossless else "no", ", ".join(method.architectures)
        lines.append(f"| `{method.name}` | {method.paper} | {_settings_cell(method)} | {own} | {models} |")
    return "\n".join(lines)


def drafters_table() -> str:
    """Return all drafters as a Markdown table."""
    rows = [f"| `{name}` | {what} |" for name, what in DRAFTERS.items()]
    return "\n".join(["| drafter | what it proposes |", "|---|---|", *rows])


def main() -> None:
    """Print the methods and the drafters."""
    parser = command_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print the methods as JSON")
    arguments = parser.parse_args()
    methods = json.dumps([as_json(method) for method in METHODS.values()], indent=2)
    print(methods if arguments.json else f"{table()}\n\n{drafters_table()}")


if __name__ == "__main__":
    with stage():
        main()
