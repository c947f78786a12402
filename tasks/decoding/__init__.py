"""The heart: runtimes, drafters, rules and the one loop. Needs only torch and transformers.

`from tasks.decoding import load_pair` is the stable surface: these names, their arguments and their fields change only with a
new major version. They load when they are first used, since the settings in this package are read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.decoding.generation import Counts
    from tasks.decoding.inference import DecodingPair, GeneratedText, Streamer, load_pair
    from tasks.decoding.pair_folder import PairManifest
    from tasks.models.settings import TextSettings

__all__ = ["Counts", "DecodingPair", "GeneratedText", "PairManifest", "Streamer", "TextSettings", "load_pair"]

_MODULES = {
    "Counts": "tasks.decoding.generation",
    "DecodingPair": "tasks.decoding.inference",
    "GeneratedText": "tasks.decoding.inference",
    "PairManifest": "tasks.decoding.pair_folder",
    "Streamer": "tasks.decoding.inference",
    "TextSettings": "tasks.models.settings",
    "load_pair": "tasks.decoding.inference",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
