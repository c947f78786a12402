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
    large_first: bool = setting("The large model generates the first token.", default=False)
    keep_agreed: bool = setting(
        "No rollback of a token that is the large model's argmax; later tokens are still examined. This and large_first are "
        "variants of Algorithm 1; the method bild_authors is the authors' code.",
        default=False,
    )


@settings
class BildAuthorsSettings(DraftingSettings):
    """Big Little Decoder as the authors' published code runs it, which is not Algorithm 1 (docs/methods.md)."""

    fallback_threshold: float = setting(
        "The large model takes over where the small model's top probability is under this; 0: a draft ends at max_draft only.",
        default=0.6,
        ge=0,
        le=1,
    )
    rollback_threshold: float = setting(
        "Only the first drafted token whose distance -log p(y) is above this is examined; infinity disables rollback.",
        default=5.0,
        unit="nats",
        ge=0,
    )
    max_draft: int = setting("Most drafted tokens before a forced fallback.", default=10, unit="tokens", ge=1, le=64)


@settings
class BildOracleSettings:
    """The oracle study: both models at every step (BiLD, 3.1 and Figure 2)."""

    rollback_threshold: float = setting(
        "Largest distance -log p(y) at which the small model's token is accepted.", default=2.0, unit="nats", ge=0
    )


METHODS: dict[str, type] = {
    "bild": BildSettings,
    "bild_authors": BildAuthorsSettings,
    "bild_oracle": BildOracleSettings,
}
"""The settings of each method of this family, by the method's name."""
