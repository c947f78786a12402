"""What one sweep recorded of its two models and of itself: `pair.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from tasks.decoding.settings import OF_SMALL
from tasks.evaluation.results.acceptances import Acceptance, AcceptanceRate, PairAcceptance
from tasks.evaluation.results.batch_timings import BatchTimings
from tasks.evaluation.results.codec import VERSION, Settings, Source, decode, encode, parse
from tasks.evaluation.results.costs import MeasuredCosts, PairSizes
from tasks.evaluation.results.memory import PairMemory
from tasks.evaluation.results.output_check import OutputCheck
from tasks.evaluation.results.plan import ErrorStatistics, SweepPlan, VanillaScatter
from tasks.evaluation.settings import MarginSettings, RiskSettings
from tasks.files import atomic_write
from tasks.models.checkpoints import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """A method at one setting, as rows name it."""

    method: str
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class DraftVocabulary:
    """The tokens that a drafter predicts, and the shares of texts that they make up."""

    tokens: int
    calibration: float
    """Of the large model's tokens in the calibration set."""
    validation: float
    """Of its held-out ones."""
    targets: float
    """Of the tokens that the drafter was to learn; the others were left out of its loss."""


@dataclass(frozen=True, kw_only=True)
class PairRecord:
    """All of `pair.json`; None for what is not known, or not known yet."""

    drafter: str | None = None
    seed: int | None = None
    """Of the drafter's training."""
    training: TrainingRecord | None = None
    """The drafter's training."""
    draft_vocabulary: DraftVocabulary | None = None
    """None where the drafter predicts all tokens."""
    runtime: str | None = None
    """What the large model runs on, described."""
    acceptance: PairAcceptance | None = None
    sizes: PairSizes | None = None
    memory: PairMemory | None = None
    outputs: OutputCheck | None = None
    """The large model's outputs on validation beside trivial baselines."""
    misfit: str | None = None
    """What the metric's tokenizers cannot read of the references of validation, with the fix; empty where they fit."""
    costs: MeasuredCosts | None = None
    plan: SweepPlan | None = None
    vanilla_scatter: VanillaScatter | None = None
    """On validation."""
    lineage: dict[str, JsonValue] | None = None
    """Commit, versions, hardware and input hashes as text; under `settings` those of the sweep and of the machine."""
    margins: MarginSettings | None = None
    """What a choice may lose; None in older records."""
    risk: RiskSettings | None = None
    """What CALM's threshold may lose by Learn then Test; None in older records."""
    batches: BatchTimings | None = None
    """Chosen points by batch size, on test; None where that is switched off, and for further seeds."""
    grid: list[GridPoint] | None = None
    """The grid that was swept last; None for all rows."""

    def acceptance_rate(self, *, sampled: bool = False, drafter: str = "small", lenience: float = 1.0) -> AcceptanceRate | None:
        """The acceptance rate of what drafts, greedy or at temperature 1; None where it was not measured."""
        found: Acceptance | None = self.acceptance
        # Drafts of the small model's text are those of the small model.
        drafter = "small" if drafter in OF_SMALL else drafter
        if self.acceptance is not None and (drafter, lenience) != ("small", 1.0):
            same = (one for one in self.acceptance.others if (one.drafter, one.lenience) == (drafter, lenience))
            found = next(same, None)
        if found is None:
            return None
        return found.sampled if sampled else found.greedy

    @property
    def cost_ratio(self) -> float | None:
        """c: a run of the small model over one of the large."""
        return None if self.costs is None else self.costs.cost_ratio

    @property
    def sample_error(self) -> ErrorStatistics | None:
        """Prediction error on the random sample, where one was timed."""
        error = None if self.plan is None else self.plan.prediction_error
        return error.sample if error is not None and error.sample is not None and error.sample.points else None

    def swept_with(self, name: str) -> int | None:
        """A whole number of the sweep's settings; None where they were not recorded, or where the setting is another kind."""
        settings = (self.lineage or {}).get("settings")
        sweep = settings.get("sweep") if isinstance(settings, dict) else None
        value = sweep.get(name) if isinstance(sweep, dict) else None
        return value if isinstance(value, int) else None

    def origin(self, name: str) -> str:
        """A fact of the lineage as text; empty where it was not recorded."""
        value = (self.lineage or {}).get(name)
        return "" if value is None else str(value)


def read_pair(path: Path, fix: str) -> PairRecord | None:
    """What a sweep recorded, or None without such a file.

    Raises:
        InputError: the file is damaged or of another version.
    """
    if not path.is_file():
        return None
    source = Source(str(path), fix)
    return decode(PairRecord, parse(path.read_text(encoding="utf-8", errors="replace"), source), source)


def write_pair(pair: PairRecord, path: Path) -> Path:
    """Writes `pair.json` in one step."""
    text = json.dumps({"version": VERSION, **encode(pair)}, ensure_ascii=False, indent=2, allow_nan=False)
    return atomic_write(path, text + "\n")
