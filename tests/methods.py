"""Settings of every method for the tests that all methods must pass."""

import math
from typing import Any

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods import cascades, speculative
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.registry import METHODS

_SETTINGS: dict[str, list[Any]] = {
    "vanilla_large": [VanillaSettings()],
    "vanilla_small": [VanillaSettings()],
    "bild": [
        BildSettings(fallback_threshold=0.5, rollback_threshold=1.0, max_draft=4),
        BildSettings(fallback_threshold=0.3, rollback_threshold=0.5),
    ],
    "bild_oracle": [BildOracleSettings(rollback_threshold=1.0)],
    "speculative": [speculative.SpeculativeSettings(draft_length=1), speculative.SpeculativeSettings(draft_length=5)],
    "speculative_lenient": [speculative.LenientSettings(lenience=0.4, draft_length=3)],
    "speculative_lossy": [
        speculative.LossySettings(lossiness=0.4, draft_length=3),
        speculative.LossySettings(lossiness=0.4, tuned=True),
    ],
    "speculative_margin": [speculative.MarginSettings(margin=0.05, draft_length=3)],
    "speculative_confident": [speculative.ConfidentSettings(max_draft=4, stop_below=0.5)],
    "speculative_cascade": [
        cascades.SpeculativeCascadeSettings(rule="opt", deferral_cost=0.1, draft_length=3),
        cascades.SpeculativeCascadeSettings(rule="token_v1", deferral_cost=0.3, draft_length=3),
    ],
    "sequence_cascade": [cascades.SequenceCascadeSettings(deferral_cost=0.4)],
    "token_cascade": [
        cascades.TokenCascadeSettings(deferral_cost=0.5, max_draft=3),
        cascades.TokenCascadeSettings(rule="chow_log", deferral_cost=0.8, max_draft=3),
    ],
    "diff_oracle": [
        cascades.DiffOracleSettings(deferral_cost=0.1),
        cascades.DiffOracleSettings(rule="diff_log", deferral_cost=0.2),
    ],
    "beam_large": [BeamSettings(beams=3)],
    "speculative_beam": [SpeculativeBeamSettings(beams=2, draft_beams=4, draft_length=2)],
    "calm": [CalmSettings(confidence="softmax", threshold=0.4), CalmSettings(confidence="saturation", threshold=0.9)],
}
SETTINGS = {name: _SETTINGS.get(name, [method.settings()]) for name, method in METHODS.items()}
"""Every method at settings that its models notice; a method that is not named above has its defaults."""
GREEDY_ONLY = frozenset({"beam_large", "speculative_beam"})
LAYERED = frozenset({"calm"})
"""Methods that read the layers of a model, not only its predictions."""
DECODED_ONLY = GREEDY_ONLY | LAYERED
"""Methods that are not replayed: they read several tokens at a position, or other layers."""

DEFERRAL_COSTS = {
    **{"chow": 0.3, "chow_log": 1.2, "diff": 0.1, "diff_log": 0.2, "opt": 0.1, "opt_log": 0.2, "bild": 1.0},
    **{"token_v1": 0.1, "token_v2": 0.2, "token_v3": 0.6},
}
"""α of every rule, such that it defers on some positions of the toy pair."""
DRAWN: dict[str, tuple[SamplingSettings, dict[str, Any]]] = {
    "plain": (SamplingSettings(temperature=1.0), {}),
    "truncated": (SamplingSettings(temperature=0.8, top_k=12, top_p=0.85), {"seed": -1}),
    "greedy drafts": (SamplingSettings(temperature=1.0), {"drafter": SamplingSettings(top_k=5), "seed": 2**63 + 5}),
    "hot drafts": (SamplingSettings(temperature=0.7), {"drafter": SamplingSettings(temperature=1.6, top_p=0.9)}),
}
"""Ways of sampling, with the other parts of a request."""
NUMERIC: list[tuple[str, Any]] = [
    ("bild", BildSettings()),
    ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=0.0, max_draft=1)),
    ("bild", BildSettings(fallback_threshold=0.5, rollback_threshold=1.0, max_draft=3)),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=math.inf)),
    ("speculative", speculative.SpeculativeSettings(draft_length=1)),
    ("speculative", speculative.SpeculativeSettings(draft_length=7)),
    ("speculative_confident", speculative.ConfidentSettings(max_draft=6, stop_below=0.4)),
    ("token_cascade", cascades.TokenCascadeSettings(deferral_cost=0.5, max_draft=4)),
    ("token_cascade", cascades.TokenCascadeSettings(rule="chow_log", deferral_cost=0.8, max_draft=4)),
    ("speculative_lenient", speculative.LenientSettings(lenience=0.4, draft_length=4)),
    ("speculative_lossy", speculative.LossySettings(lossiness=0.3, draft_length=3)),
    ("speculative_margin", speculative.MarginSettings(margin=0.1, draft_length=4)),
    *(
        ("speculative_cascade", cascades.SpeculativeCascadeSettings(rule=rule, deferral_cost=alpha, draft_length=4))
        for rule, alpha in DEFERRAL_COSTS.items()
    ),
]
"""Methods whose greedy rules are numbers, so that the compiled kernel can apply them."""
