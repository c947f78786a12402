"""Big Little Decoder (Kim et al., 2023): fallback and rollback, and the oracle study."""

from __future__ import annotations

import math
from typing import Any

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.method import LONGEST, NATS, DecodingMethod, DraftingSettings, Pair, Request, method, preset
from tasks.settings import setting, settings


def _distance(description: str, default: float) -> Any:
    """Return a setting that bounds the distance -log p(y) of a token."""
    return setting(description, default=default, unit="nats", ge=0, infinite=True)


@settings
class BildSettings(DraftingSettings):
    """Big Little Decoder: fallback and rollback (BiLD, Algorithm 1).

    A `fallback_threshold` of 0 is the ablation without fallback (7.3: a fixed window of 3 to 10); a `rollback_threshold` of
    infinity is the ablation without rollback.
    """

    fallback_threshold: float = setting(
        "The small model drafts on while its top probability is above this; 0: a draft ends at max_draft only.",
        default=0.6,
        ge=0,
        le=1,
    )
    rollback_threshold: float = _distance(
        "Largest distance -log p(y) at which a drafted token is accepted; infinity disables rollback.", default=2.0
    )
    max_draft: int = setting("Most drafted tokens before a forced fallback.", default=10, unit="tokens", ge=1, le=64)


@settings
class BildOracleSettings:
    """The oracle study: both models at every step (BiLD, 3.1 and Figure 2)."""

    rollback_threshold: float = _distance(
        "Largest distance -log p(y) at which the small model's token is accepted.", default=2.0
    )


@method("bild", BildSettings, "Kim et al., 2023, Algorithm 1")
@preset(
    "translation",
    "BiLD, 7.1.2: 0.5 to 0.9 and 1 to 10; steps ours",
    fallback_threshold=(0.5, 0.6, 0.7, 0.8, 0.9),
    rollback_threshold=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
    max_draft=LONGEST,
)
@preset(
    "summarization",
    "BiLD, 7.1.2: 0.2 to 0.6 and 2 to 6; steps ours",
    fallback_threshold=(0.2, 0.3, 0.4, 0.5, 0.6),
    rollback_threshold=(2.0, 3.0, 4.0, 5.0, 6.0),
    max_draft=LONGEST,
)
@preset(
    "early_exit",
    "BiLD, 7.2.1: 0.2 to 0.8 and 0.5 to 1.5; steps ours",
    drafter=("early_layer",),
    fallback_threshold=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    rollback_threshold=(0.5, 0.75, 1.0, 1.25, 1.5),
    max_draft=LONGEST,
)
@preset(
    "v1",
    "BiLD-v1, Figure 4: these values",
    fallback_threshold=(0.4, 0.5, 0.6, 0.7, 0.8),
    rollback_threshold=(1.0, 2.0, 3.0, 4.0),
    max_draft=LONGEST,
)
@preset(
    "language_modelling",
    "BiLD-v1, Figure 4, for flat distributions: these values, no rollback",
    fallback_threshold=(0.01, 0.02, 0.05, 0.1, 0.2),
    rollback_threshold=(math.inf,),
    max_draft=LONGEST,
)
@preset(
    "no_fallback",
    "BiLD, Figure 5 and 7.3: a fixed window of 3 to 10; rollback steps ours",
    fallback_threshold=(0.0,),
    rollback_threshold=(2.0, 4.0, 6.0, 8.0, 10.0),
    max_draft=(3, 4, 5, 6, 7, 8, 9, 10),
)
@preset(
    "no_rollback",
    "BiLD, Figure 5: no rollback; fallback over both tasks' ranges of 7.1.2, steps ours",
    fallback_threshold=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    rollback_threshold=(math.inf,),
    max_draft=LONGEST,
)
def bild(pair: Pair, settings: BildSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.loop import speculative_loop
    from tasks.decoding.rules import distance_rollback

    fallback = DraftRule(window=settings.max_draft, fallback_threshold=settings.fallback_threshold, ends_unverified=True)
    # Rollback: keep y while d ≤ α_RB, else p's argmax takes its place.
    rollback = distance_rollback(settings.rollback_threshold)
    return speculative_loop(pair, settings.drafter, rollback, fallback, request)


@method("bild_oracle", BildOracleSettings, "Kim et al., 2023, section 3.1 and Figure 2", oracle=True)
@preset("paper", "BiLD, 3.1 and Figure 2: no to all tokens; steps ours", rollback_threshold=(*NATS, math.inf))
def bild_oracle(pair: Pair, settings: BildOracleSettings, request: Request) -> DecodingMethod:
    """Both models at every step; the share of tokens replaced, the x of Figure 2, is rollbacks over tokens."""
    from tasks.decoding.loop import speculative_loop
    from tasks.decoding.rules import BonusToken, distance_rollback

    # One drafted token a turn and none of p's behind it: p decides on every single token.
    rollback = distance_rollback(settings.rollback_threshold, bonus=BonusToken.NONE)
    return speculative_loop(pair, "small", rollback, DraftRule(window=1), request)
