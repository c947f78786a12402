"""The settings of each method, in the papers' terms: one module for each family of methods, as in `tasks/decoding/methods`.

Code outside this package imports what it needs from here.
"""

from __future__ import annotations

from tasks.decoding.settings import beam, bild, cascades, common, early_exit, speculative
from tasks.decoding.settings.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.settings.bild import BildAuthorsSettings, BildOracleSettings, BildSettings
from tasks.decoding.settings.cascades import (
    CASCADE_BOUNDS,
    CASCADE_RULES,
    DiffOracleSettings,
    SequenceCascadeSettings,
    SpeculativeCascadeSettings,
    TokenCascadeSettings,
)
from tasks.decoding.settings.common import (
    CALIBRATED,
    DRAFTERS,
    LOOK_UPS,
    OF_SMALL,
    DraftingSettings,
    SamplingSettings,
    VanillaSettings,
)
from tasks.decoding.settings.early_exit import CalmSettings
from tasks.decoding.settings.speculative import (
    AdaptiveSettings,
    BlockSettings,
    ConfidentSettings,
    EntropySettings,
    ForgivingSettings,
    LenientSettings,
    LossySettings,
    MarginSettings,
    SpeculativeSettings,
)

__all__ = [
    "CALIBRATED",
    "CASCADE_BOUNDS",
    "CASCADE_RULES",
    "DRAFTERS",
    "GREEDY_ONLY",
    "LOOK_UPS",
    "METHOD_SETTINGS",
    "OF_SMALL",
    "ORACLES",
    "T5_ONLY",
    "AdaptiveSettings",
    "BeamSettings",
    "BildAuthorsSettings",
    "BildOracleSettings",
    "BildSettings",
    "BlockSettings",
    "CalmSettings",
    "ConfidentSettings",
    "DiffOracleSettings",
    "DraftingSettings",
    "EntropySettings",
    "ForgivingSettings",
    "LenientSettings",
    "LossySettings",
    "MarginSettings",
    "SamplingSettings",
    "SequenceCascadeSettings",
    "SpeculativeBeamSettings",
    "SpeculativeCascadeSettings",
    "SpeculativeSettings",
    "TokenCascadeSettings",
    "VanillaSettings",
]

ORACLES = ("bild_oracle", "diff_oracle")
"""Methods that run both models at every step: they show what a rule could do, and are never worth deploying."""

GREEDY_ONLY = ("beam_large", "speculative_beam")
"""Methods that draw no tokens, and take temperature 0 alone."""

T5_ONLY = ("calm",)
"""Methods that need the layers of a T5 or mT5."""

METHOD_SETTINGS: dict[str, type] = {
    name: fields
    for family in (common, bild, speculative, beam, cascades, early_exit)
    for name, fields in family.METHODS.items()
}
"""The settings of each method of the registry (`tasks/decoding/registry.py`), readable without loading torch."""
