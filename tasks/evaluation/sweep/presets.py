"""Presets: the ranges that the papers sweep, by name, as in `{method: bild, preset: translation}` in `sweep.grid`.

A paper often gives the ends of a range and no steps; the steps are then this project's choice, and `source` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.decoding.settings import CASCADE_RULES, METHOD_SETTINGS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings

Values = Mapping[str, Sequence[Any]]
"""Setting name to its values; a preset stands for every combination of them."""


@dataclass(frozen=True)
class Preset:
    """A range of one method, and its source in a paper."""

    values: Values
    source: str


# Written out rather than computed, since 3 * 0.1 is not 0.3 and a point is identified by its settings.
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_NATS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""Denser near 0, where the surprisals and entropies of most tokens lie."""
_LONGEST = (10,)
"""At most 10 consecutive small tokens (BiLD, 7.1.2; SpecCascade, E.1)."""
_BLOCK = (5,)
"""γ of all comparisons in SpecCascade's tables and main figures (E.1)."""
_TABLE_3 = "SpecCascade, Table 3 (appendix A); range and steps ours, in nats"

_BILD = {
    "translation": Preset(
        {
            "fallback_threshold": (0.5, 0.6, 0.7, 0.8, 0.9),
            "rollback_threshold": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
            "max_draft": _LONGEST,
        },
        "BiLD, 7.1.2: 0.5 to 0.9 and 1 to 10; steps ours",
    ),
    "summarization": Preset(
        {
            "fallback_threshold": (0.2, 0.3, 0.4, 0.5, 0.6),
            "rollback_threshold": (2.0, 3.0, 4.0, 5.0, 6.0),
            "max_draft": _LONGEST,
        },
        "BiLD, 7.1.2: 0.2 to 0.6 and 2 to 6; steps ours",
    ),
    "early_exit": Preset(
        {
            "drafter": ("early_layer",),
            "fallback_threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
            "rollback_threshold": (0.5, 0.75, 1.0, 1.25, 1.5),
            "max_draft": _LONGEST,
        },
        "BiLD, 7.2.1: 0.2 to 0.8 and 0.5 to 1.5; steps ours",
    ),
    "v1": Preset(
        {
            "fallback_threshold": (0.4, 0.5, 0.6, 0.7, 0.8),
            "rollback_threshold": (1.0, 2.0, 3.0, 4.0),
            "max_draft": _LONGEST,
        },
        "BiLD-v1, Figure 4: these values",
    ),
    "language_modelling": Preset(
        {
            "fallback_threshold": (0.01, 0.02, 0.05, 0.1, 0.2),
            "rollback_threshold": (math.inf,),
            "max_draft": _LONGEST,
        },
        "BiLD-v1, Figure 4, for flat distributions: these values, no rollback",
    ),
    "no_fallback": Preset(
        {
            "fallback_threshold": (0.0,),
            "rollback_threshold": (2.0, 4.0, 6.0, 8.0, 10.0),
            "max_draft": (3, 4, 5, 6, 7, 8, 9, 10),
        },
        "BiLD, Figure 5 and 7.3: a fixed window of 3 to 10; rollback steps ours",
    ),
    "no_rollback": Preset(
        {
            "fallback_threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
            "rollback_threshold": (math.inf,),
            "max_draft": _LONGEST,
        },
        "BiLD, Figure 5: no rollback; fallback over both tasks' ranges of 7.1.2, steps ours",
    ),
}


def _cascades() -> dict[str, Preset]:
    """One preset for each deferral rule, by the rule's name."""
    presets = {}
    for rule in CASCADE_RULES:
        costs = _NATS if rule == "bild" or rule.endswith("_log") else _SHARES
        if costs is _SHARES:
            source = "SpecCascade, E.1: α from 0 to 1; steps ours"
        elif rule == "bild":
            source = "SpecCascade, E.1: α from 0 to 10 nats; steps ours"
        else:
            source = _TABLE_3
        presets[rule] = Preset({"rule": (rule,), "deferral_cost": costs, "draft_length": _BLOCK}, source)
    return presets


PRESETS: dict[str, dict[str, Preset]] = {
    "bild": _BILD,
    "bild_authors": {name: _BILD[name] for name in ("translation", "summarization")},
    "bild_oracle": {
        "paper": Preset({"rollback_threshold": (*_NATS, math.inf)}, "BiLD, 3.1 and Figure 2: no to all tokens; steps ours")
    },
    "speculative": {
        "block_sizes": Preset({"draft_length": (3, 5, 7)}, "SpecCascade, E.4; SD, Table 2: these values"),
        "windows": Preset({"draft_length": (3, 4, 5, 6, 7, 8, 9, 10)}, "BiLD, 7.3: a fixed window of 3 to 10"),
    },
    "speculative_block": {"windows": Preset({"draft_length": (4, 6, 8)}, "Sun et al., 2024; values ours")},
    "speculative_lenient": {
        "paper": Preset(
            {"lenience": (1.0, 0.5, 0.3, 0.1), "draft_length": (8,)}, "SD, Table 5 and A.5: these values; γ of the greedy case"
        )
    },
    "speculative_lossy": {
        # α = 1 is left out: p / ((1 - α) q) is undefined there, and every drafted token would be kept.
        "paper": Preset(
            {"lossiness": _SHARES[:-1], "tuned": (False,), "draft_length": _BLOCK},
            "SpecCascade, E.1: α from 0 to 1, β = 1; steps ours",
        ),
        "tuned": Preset(
            {"lossiness": _SHARES[:-1], "tuned": (True,), "draft_length": _BLOCK}, "SpecCascade, E.6: β tuned; steps ours"
        ),
    },
    "speculative_forgiving": {
        "steps": Preset(
            {"min_entropy": (0.3, 0.7, 1.2, 1.8), "window": (1, 2, 3), "draft_length": (4, 6, 8)},
            "FLy; bounds and steps ours, since its texts and drafts are longer",
        )
    },
    "speculative_margin": {
        "steps": Preset({"margin": (0.02, 0.05, 0.1, 0.2, 0.4), "draft_length": _BLOCK}, "no paper; steps ours")
    },
    "speculative_entropy": {
        "steps": Preset(
            {"min_acceptance": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "entropy_factor": (0.2,), "max_draft": _LONGEST},
            "AdaEDL; thresholds ours, since the paper adapts them",
        )
    },
    "sequence_cascade": {
        "paper": Preset(
            {"confidence": ("sum",), "deferral_cost": _SHARES}, "SpecCascade, equation 1 and E.1: α from 0 to 1; steps ours"
        ),
        "mean": Preset(
            {"confidence": ("mean",), "deferral_cost": _SHARES}, "ours: the same with the geometric mean over the tokens"
        ),
    },
    "token_cascade": {
        "paper": Preset(
            {"rule": ("chow",), "deferral_cost": _SHARES, "max_draft": _LONGEST}, "SpecCascade, E.1: α from 0 to 1; steps ours"
        ),
        "chow_log": Preset({"rule": ("chow_log",), "deferral_cost": _NATS, "max_draft": _LONGEST}, _TABLE_3),
    },
    "diff_oracle": {
        "paper": Preset(
            {"rule": ("diff",), "deferral_cost": _SHARES}, "SpecCascade, Figure 1 and E.1: α from 0 to 1; steps ours"
        ),
        "diff_log": Preset({"rule": ("diff_log",), "deferral_cost": _NATS}, _TABLE_3),
    },
    "speculative_cascade": _cascades(),
    "calm": {
        "paper": Preset(
            {
                "confidence": ("saturation",),
                "threshold": (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98),
                "decay": (0.0, 1.0, 2.0, 4.0, 8.0),
            },
            "BiLD, 7.2.1: λ from 0.7 to 0.98, steps ours; these t",
        )
    },
}
"""`{method: {name: preset}}`; a method without a range in the papers has none."""


def preset_values(entry: GridSettings) -> dict[str, Sequence[Any]]:
    """The values of an entry's preset, updated with the entry's own `values`.

    Raises:
        InputError: the method or its preset is unknown, or a setting has an empty list of values.
    """
    if entry.method not in METHOD_SETTINGS:
        raise InputError(f"unknown method {entry.method!r}; known are {', '.join(METHOD_SETTINGS)}")
    known = PRESETS.get(entry.method, {})
    if entry.preset and entry.preset not in known:
        have = f"it has {', '.join(known)}" if known else "it has none: give values"
        raise InputError(f"{entry.method} has no preset {entry.preset!r}; {have}")
    values = {**(known[entry.preset].values if entry.preset else {}), **entry.values}
    for name, given in values.items():
        if not given:
            raise InputError(f"{name} has no values, so the entry has no points; give at least one value or remove the setting")
    return values


def presets_table() -> str:
    """All presets as a Markdown table."""
    return "\n".join(["| method | preset | points | values | source |", "|---|---|---|---|---|", *_lines()])


def _lines() -> Iterator[str]:
    for method, presets in PRESETS.items():
        for name, preset in presets.items():
            values = "; ".join(f"`{key}` {', '.join(map(_text, given))}" for key, given in preset.values.items())
            points = math.prod(len(given) for given in preset.values.values())
            yield f"| `{method}` | `{name}` | {points} | {values} | {preset.source} |"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
