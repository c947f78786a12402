"""Settings of Big Little Decoder and of its oracle study (Kim et al., 2023)."""

from __future__ import annotations

from tasks.decoding.settings.common import DraftingSettings
from tasks.settings import setting, settings


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
    rollback_threshold: float = setting(
        "Largest distance -log p(y) at which a drafted token is accepted; infinity disables rollback.",
        default=2.0,
        unit="nats",
        ge=0,
    )
    max_draft: int = setting("Most drafted tokens before a forced fallback.", default=10, unit="tokens", ge=1, le=64)
    large_first: bool = setting("As in the authors' code: the large model generates the first token.", default=False)
    keep_agreed: bool = setting(
        "As in the authors' code: no rollback of a token that is the large model's argmax.", default=False
    )


@settings
class BildOracleSettings:
    """The oracle study: both models at every step (BiLD, 3.1 and Figure 2)."""

    rollback_threshold: float = setting(
        "Largest distance -log p(y) at which the small model's token is accepted.", default=2.0, unit="nats", ge=0
    )


METHODS: dict[str, type] = {
    "bild": BildSettings,
    "bild_oracle": BildOracleSettings,
}
"""The settings of each method of this family, by the method's name."""
