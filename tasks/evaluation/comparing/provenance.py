"""What two results were made from, and what of it differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from tasks.evaluation.results.pair import PairRecord

NOT_RECORDED = "not recorded"
SECTIONS = ("settings", "data", "code", "machine")
_CODE = ("git_commit", "git_dirty")
_MACHINE = ("host_cpu", "host_cores", "host_gpu", "python", "torch", "transformers", "deepspeed", "mlflow")
_INPUT = "input "

Facts = dict[str, dict[str, str]]
"""`{section: {name: value as text}}`"""
Difference = tuple[str, str, str]
"""A name, and its value in either result."""


def facts(pairs: Mapping[str, PairRecord]) -> Facts:
    """What the sweeps recorded of their origin.

    Args:
        pairs: the `pair.json` of each drafter's sweep.

    Returns:
        A fact that both sweeps share once, and one that they do not share under the name of each drafter.
    """
    recorded = {arm: _facts_of(pair) for arm, pair in pairs.items()}
    merged: Facts = {section: {} for section in SECTIONS}
    for section, found in merged.items():
        for name in dict.fromkeys(name for one in recorded.values() for name in one[section]):
            values = {arm: one[section][name] for arm, one in recorded.items() if name in one[section]}
            if len(set(values.values())) == 1:
                found[name] = next(iter(values.values()))
            else:
                found.update({f"{name} ({arm})": value for arm, value in values.items()})
    return merged


def _facts_of(pair: PairRecord) -> Facts:
    lineage = {name: str(value) for name, value in (pair.lineage or {}).items() if name != "settings"}
    machine = {name: lineage[name] for name in _MACHINE if name in lineage}
    if pair.runtime is not None:
        machine["runtime"] = pair.runtime
    return {
        "settings": dict(_flat(settings_of(pair))),
        "data": {name.removeprefix(_INPUT): value for name, value in lineage.items() if name.startswith(_INPUT)},
        "code": {name: lineage[name] for name in _CODE if name in lineage},
        "machine": machine,
    }


def with_params(found: Facts, params: Mapping[str, JsonValue]) -> Facts:
    """Add the settings of a task that a sweep does not record: those of its data, models and trainings."""
    others = {name: value for name, value in params.items() if name != "sweep"}
    return {**found, "settings": dict(_flat(others)) | found["settings"]}


def settings_of(pair: PairRecord) -> dict[str, JsonValue]:
    """The settings that a sweep recorded, perhaps as JSON text; empty where it recorded none."""
    recorded = (pair.lineage or {}).get("settings")
    settings = json.loads(recorded) if isinstance(recorded, str) else recorded
    return settings if isinstance(settings, dict) else {}


def _flat(value: JsonValue, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and their values. Each entry of a list of mappings, a grid, is a name of its own: entries have no order."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        entries = Counter(json.dumps(item, sort_keys=True, ensure_ascii=False) for item in value)
        yield from ((f"{prefix} {entry}", "there" if times == 1 else f"{times} times") for entry, times in entries.items())
    elif prefix:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(first: Facts, second: Facts) -> dict[str, list[Difference]]:
    """The differences by section; a section without any is left out.

    A section that neither result recorded is included, with nothing recorded on either side: it may or may not differ.
    """
    sections: dict[str, list[Difference]] = {}
    for section in SECTIONS:
        ours, theirs = first[section], second[section]
        if not ours or not theirs:
            recorded = [f"{len(one)} recorded" if one else NOT_RECORDED for one in (ours, theirs)]
            sections[section] = [(section, recorded[0], recorded[1])]
            continue
        absent = "absent" if section == "settings" else NOT_RECORDED
        rows = [(name, ours.get(name, absent), theirs.get(name, absent)) for name in dict.fromkeys([*ours, *theirs])]
        sections[section] = [row for row in rows if row[1] != row[2]]
    return {section: rows for section, rows in sections.items() if rows}


def same_examples(first: PairRecord, second: PairRecord, split: str) -> bool:
    """Whether two sweeps are known to have timed the same examples of a split in the same order: the same data, seed and
    number of examples, by their `pair.json`."""
    sampled = _sampled_by(first, split)
    return sampled is not None and sampled == _sampled_by(second, split)


def _sampled_by(pair: PairRecord, split: str) -> list[str] | None:
    """What decides which examples are timed; None where a part of it was not recorded."""
    recorded = _facts_of(pair)
    data = next((value for name, value in recorded["data"].items() if name.endswith(f"corpus/{split}.jsonl")), None)
    found = [data, *(recorded["settings"].get(f"sweep.{name}") for name in ("seed", "latency_examples"))]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None
