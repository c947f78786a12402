"""The folder of a tiny pair whose large model drafts for itself, as the report stage writes one."""

from __future__ import annotations

from pathlib import Path

from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.settings.configured import configure_method
from tasks.models.settings import TextSettings
from tests.calibration import SOURCES, saved

POINT = configure_method("speculative", {"draft_length": 3})


def tiny_pair(folder: Path, max_target_tokens: int = 10) -> Path:
    """Writes it to `folder`/pair; gives that path."""
    saved("t5", folder / "model")
    manifest = PairManifest(POINT, TextSettings(max_source_tokens=32, max_target_tokens=max_target_tokens), "toy")
    return write_pair_folder(folder / "pair", manifest, folder / "model", folder / "model", SOURCES[:8])
