"""The folder of a tiny pair whose large model drafts for itself, as the report stage writes one.

Its weights are random and large enough for different sources to give different texts; those of `tests.calibration.tiny` give
padding alone.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.settings.configured import configure_method
from tasks.models.checkpoints import save_model
from tasks.models.settings import TextSettings
from tests.calibration import SOURCES, tiny

POINT = configure_method("speculative", {"draft_length": 3})


def tiny_pair(folder: Path, max_target_tokens: int = 10) -> Path:
    """Writes it to `folder`/pair; gives that path."""
    model, tokenizer = copy.deepcopy(tiny("t5"))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.copy_(torch.randn(weights.shape, generator=random) * (1.0 if "shared" in name else 0.3))
    save_model(model, tokenizer, folder / "model")
    manifest = PairManifest(POINT, TextSettings(max_source_tokens=32, max_target_tokens=max_target_tokens), "toy")
    return write_pair_folder(folder / "pair", manifest, folder / "model", folder / "model", SOURCES[:8])
