"""The table of decoding methods: paper, settings with their bounds, and what each keeps of the large model's output.

`python -m tasks.strategies` prints it as Markdown, `--json` for programs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from tasks.decoding.registry import METHODS, MethodSpec
from tasks.decoding.settings import METHOD_SETTINGS
from tasks.errors import stage

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def described(entry: MethodSpec) -> dict[str, Any]:
    """One method as plain data; a setting's default, bounds and choices are as `params.yaml` writes them."""
    return {
        "name": entry.name,
        "paper": entry.paper,
        "lossless": entry.lossless,
        "architectures": list(entry.architectures),
        "settings": {
            field.name: {
                "default": None if field.default is dataclasses.MISSING else field.default,
                "bounds": field.metadata["bounds"],
                "choices": list(field.metadata["choices"]),
                "description": field.metadata["description"],
            }
            for field in dataclasses.fields(METHOD_SETTINGS[entry.name])
        },
    }


def _knob(name: str, setting: dict[str, Any]) -> str:
    """A setting and its bounds; choices are too many for a cell and stand in the table of settings."""
    bounds = ", ".join(f"{_SIGNS[sign]} {bound}" for sign, bound in setting["bounds"].items())
    return f"`{name}`{f' ({bounds})' if bounds else ''}"


def table() -> str:
    """Every method as a Markdown table."""
    lines = ["| method | paper | settings | output is the large model's own | models |", "|---|---|---|---|---|"]
    for entry in METHODS.values():
        method = described(entry)
        knobs = ", ".join(_knob(name, setting) for name, setting in method["settings"].items())
        own = "yes" if entry.lossless else "no"
        lines.append(f"| `{entry.name}` | {entry.paper} | {knobs} | {own} | {', '.join(entry.architectures)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    print(json.dumps([described(entry) for entry in METHODS.values()], indent=2) if arguments.json else table())


if __name__ == "__main__":
    with stage():
        main()
