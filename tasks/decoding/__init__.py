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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tasks.decoding.inference"), name)
