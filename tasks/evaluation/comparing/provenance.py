"""What two results were made from, and what of it differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

NOT_RECORDED = "not recorded"
SECTIONS = ("settings", "data", "code", "machine")
_CODE = ("git_commit", "git_dirty")
_MACHINE = ("host_cpu", "host_cores", "host_gpu", "python", "torch", "transformers", "deepspeed", "mlflow")
_INPUT = "input "

Facts = dict[str, dict[str, str]]
"""`{section: {name: value as text}}`"""


def facts(pairs: Mapping[str, Mapping[str, Any] | None]) -> Facts:
    """What the sweeps noted of where they came from.

    Args:
        pairs: the `pair.json` of each drafter's sweep, None where there is none.

    Returns:
        A fact that both sweeps share once, and one that they do not share under the name of each drafter.
    """
    noted = {drafter: _facts_of(pair) for drafter, pair in pairs.items() if pair}
    merged: Facts = {section: {} for section in SECTIONS}
    for section, found in merged.items():
        for name in dict.fromkeys(name for one in noted.values() for name in one[section]):
            values = {drafter: one[section][name] for drafter, one in noted.items() if name in one[section]}
            if len(set(values.values())) == 1:
                found[name] = next(iter(values.values()))
            else:
                found.update({f"{name} ({drafter})": value for drafter, value in values.items()})
    return merged


def _facts_of(pair: Mapping[str, Any]) -> Facts:
    lineage = pair.get("lineage") or {}
    machine = {name: str(lineage[name]) for name in _MACHINE if name in lineage}
    if "runtime" in pair:
        machine["runtime"] = str(pair["runtime"])
    return {
        "settings": dict(_flat(settings_of(pair))),
        "data": {name.removeprefix(_INPUT): str(value) for name, value in lineage.items() if name.startswith(_INPUT)},
        "code": {name: str(lineage[name]) for name in _CODE if name in lineage},
        "machine": machine,
    }


def settings_of(pair: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a sweep noted; empty where it noted none. A tag holds them as text."""
    noted = (pair.get("lineage") or {}).get("settings") or {}
    settings: dict[str, Any] = json.loads(noted) if isinstance(noted, str) else dict(noted)
    return settings


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and their values. Each entry of a list of mappings, a grid, is a name of its own: entries have no order."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        entries = Counter(json.dumps(item, sort_keys=True, ensure_ascii=False) for item in value)
        yield from ((f"{prefix} {entry}", "there" if times == 1 else f"{times} times") for entry, times in entries.items())
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(first: Facts, second: Facts) -> dict[str, list[tuple[str, str, str]]]:
    """`{section: [(name, first's value, second's)]}` of what is not the same; a section without a difference is left out.

    A section of which neither says anything is there too, with nothing recorded on either side: no one can tell.
    """
    sections = {}
    for section in SECTIONS:
        ours, theirs = first[section], second[section]
        if not ours or not theirs:
            said = [f"{len(one)} recorded" if one else NOT_RECORDED for one in (ours, theirs)]
            sections[section] = [(section, said[0], said[1])]
            continue
        absent = "absent" if section == "settings" else NOT_RECORDED
        rows = [(name, ours.get(name, absent), theirs.get(name, absent)) for name in dict.fromkeys([*ours, *theirs])]
        sections[section] = [row for row in rows if row[1] != row[2]]
    return {section: rows for section, rows in sections.items() if rows}


def same_examples(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, split: str) -> bool:
    """Whether two sweeps are known to have timed the same examples of a split in the same order: the same data, seed and
    number of examples, by their `pair.json`."""
    drawn = [None if pair is None else _drawn(pair, split) for pair in (first, second)]
    return drawn[0] is not None and drawn[0] == drawn[1]


def _drawn(pair: Mapping[str, Any], split: str) -> list[str] | None:
    """What decides which examples are timed; None where a part of it was not recorded."""
    noted = _facts_of(pair)
    data = next((value for name, value in noted["data"].items() if name.endswith(f"corpus/{split}.jsonl")), None)
    found = [data, *(noted["settings"].get(f"sweep.{name}") for name in ("seed", "latency_examples"))]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None
