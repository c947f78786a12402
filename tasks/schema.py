"""The typed schema of `params.yaml`. It collects the settings of all packages and defines no default of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from tasks.alignment.settings import AlignSettings, CalibrateSettings
from tasks.corpora.settings import CorpusSettings
from tasks.errors import InputError
from tasks.evaluation.metrics import MetricSettings, metric_of
from tasks.evaluation.settings import SweepSettings
from tasks.machine import MachineSettings
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.setting_errors import first_error
from tasks.training.settings import TrainingSettings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPair(_Strict):
    """The small and the large model of a task."""

    small: ModelSettings = Field(default_factory=ModelSettings)
    large: ModelSettings = Field(default_factory=ModelSettings)


class FinetunePair(_Strict):
    """How each of the two models is trained on the corpus."""

    small: TrainingSettings = Field(default_factory=TrainingSettings)
    large: TrainingSettings = Field(default_factory=TrainingSettings)


class Task(_Strict):
    """One corpus, one pair of models, one sweep."""

    seeds: tuple[int, ...] = Field(
        default=(1,),
        description="Drafters of both arms are trained once for each seed, which orders their batches and draws dropout. The "
        "first one is swept over the whole grid.",
        min_length=1,
    )
    metric: str = Field(description="Quality metric by which operating points are chosen: a name, or the settings below.")
    run_generated_code: bool = Field(
        default=False,
        description="Allows the metric pass_at_1 to run outputs as programs on this machine, see `docs/operations.md`.",
    )
    corpus: CorpusSettings = Field(default_factory=CorpusSettings)
    text: TextSettings = Field(default_factory=TextSettings)
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    models: ModelPair = Field(default_factory=ModelPair)
    finetune: FinetunePair = Field(default_factory=FinetunePair)
    calibrate: CalibrateSettings = Field(default_factory=CalibrateSettings)
    align: AlignSettings = Field(default_factory=AlignSettings)
    sweep: SweepSettings = Field(default_factory=SweepSettings)

    @field_validator("metric", mode="before")
    @classmethod
    def _full_name(cls, value: object) -> str:
        """The full name of the metric, which sections and stages take (`tasks.evaluation.metrics`)."""
        if isinstance(value, str):
            return str(metric_of(value))
        try:
            return str(TypeAdapter(MetricSettings).validate_python(value))
        except ValidationError as error:
            raise ValueError(first_error(error, MetricSettings.__annotations__)) from None


class Params(_Strict):
    """The whole file."""

    active: dict[str, Path] = Field(description="Tasks that dvc repro runs, each with the source of its text.", min_length=1)
    inactive: dict[str, Path] = Field(default_factory=dict, description="Tasks that it does not run, in the same form.")
    machine: MachineSettings = Field(default_factory=MachineSettings)
    tasks: dict[str, Task] = Field(description="Named tasks.", min_length=1)

    def task(self, name: str) -> Task:
        """Return the task of that name.

        Raises:
            InputError: there is no such task.
        """
        if name not in self.tasks:
            raise InputError(f"params.yaml has no task {name!r}; it has {', '.join(self.tasks)}")
        return self.tasks[name]

    def corpus_source(self, name: str) -> Path:
        """The folder of the user's files or of the code of an embedded corpus, or the lock file of the hub."""
        return {**self.inactive, **self.active}[name]

    def published(self, name: str) -> str:
        """The public data set whose published numbers compare with those of a task; `none` if there is none."""
        corpus = self.task(name).corpus
        # A folder may hold anything: there, only the setting says what it is.
        return corpus.dataset if self.corpus_source(name).is_dir() else corpus.published
