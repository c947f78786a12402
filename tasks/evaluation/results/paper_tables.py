"""All tables of the papers in the summary; measured rows come first, and a table without one is empty."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.evaluation.results.bild_tables import (
    EarlyExitRow,
    PublishedEarlyExitRow,
    PublishedSampledRow,
    PublishedSizesRow,
    SampledRow,
    SizesRow,
)
from tasks.evaluation.results.risk_tables import ControlledRow
from tasks.evaluation.results.tables import (
    AcceptanceRow,
    CascadeRow,
    LenienceRow,
    PublishedAcceptanceRow,
    PublishedCascadeRow,
    PublishedLenienceRow,
    PublishedSharesRow,
    PublishedSpeculativeRow,
    SharesRow,
    SpeculativeRow,
)


@dataclass(frozen=True, kw_only=True)
class PaperTables:
    """The rows of each table by its name in `tables.yaml`."""

    sizes: list[SizesRow | PublishedSizesRow] = field(default_factory=list)
    shares: list[SharesRow | PublishedSharesRow] = field(default_factory=list)
    sampled: list[SampledRow | PublishedSampledRow] = field(default_factory=list)
    early_exit: list[EarlyExitRow | PublishedEarlyExitRow] = field(default_factory=list)
    controlled: list[ControlledRow] = field(default_factory=list)
    cascade: list[CascadeRow | PublishedCascadeRow] = field(default_factory=list)
    acceptance: list[AcceptanceRow | PublishedAcceptanceRow] = field(default_factory=list)
    speculative: list[SpeculativeRow | PublishedSpeculativeRow] = field(default_factory=list)
    lenience: list[LenienceRow | PublishedLenienceRow] = field(default_factory=list)
