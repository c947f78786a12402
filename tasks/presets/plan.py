"""What each stage of a task takes of a card: memory, disk, arithmetic and hours, from the shapes of its models.

Nothing is downloaded but the configuration of a model that is none of the papers'. Peaks of training are counted by
`tasks.training.memory`. Hours assume that training reaches `_TRAINING` of a card's arithmetic and decoding `_DECODING` of its
bandwidth, all texts being of the greatest length: they are estimates, to tell an hour from a month.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.console import log, markdown_table
from tasks.corpora.data_sets import DATA_SETS
from tasks.decoding.batches import REMEDY, USABLE, fitting_batch, text_bytes
from tasks.errors import InputError
from tasks.evaluation.sweep.grid import expand
from tasks.machine import processes_for, require_memory
from tasks.models import spread
from tasks.presets import CARDS, MODELS, Card
from tasks.training.memory import fitting, text_cost, with_depths
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from tasks.config import Task
    from tasks.corpora.settings import CorpusSettings
    from tasks.machine import MachineSettings
    from tasks.models.settings import ModelSettings

_TRAINING, _DECODING = 0.35, 0.5
ESTIMATED = (
    f"Estimates. Peaks of training are counted on the models' shapes. Hours assume {_TRAINING:.0%} of a card's arithmetic in "
    f"training and {_DECODING:.0%} of its bandwidth in decoding, with all texts of the greatest length."
)
_REPLAYED, _TIMED_POINTS = 20, 40
"""Runs of either model by which a sweep's replay knows a text, and points that a planned sweep times (docs/performance.md)."""
_UNKNOWN = (20_000, 2_000)
"""Examples of train and held-out ones, where the data set is none of the papers'."""


@dataclass(frozen=True)
class StagePlan:
    """What a stage takes."""

    stage: str
    memory: float
    """Peak on the card, in bytes."""
    host: float
    """Bytes of weights that are read before they go to the card."""
    disk: float
    """Bytes that stay, checkpoints to resume from among them."""
    operations: float
    hours: float
    settings: dict[str, Any] = field(default_factory=dict)
    """By which it fits."""


SECTIONS = {
    "finetune_large": "finetune.large",
    "finetune_small": "finetune.small",
    "calibrate": "calibrate",
    "control": "align",
    "align": "align",
    "sweep": "sweep",
}
"""The section of a task that holds the settings of a stage."""


def require_fit(task: Task, machine: MachineSettings) -> None:
    """Refuse a task that the GPU at hand cannot hold as it is set, before anything is downloaded; without a GPU do nothing.

    Where micro-batches or batches are 0, each stage sets them to what fits by the functions of this plan, which shows them.

    Raises:
        InputError: a stage does not fit; names the settings by which it does, or the smallest other remedy.
    """
    card = None if machine.device == "cpu" else card_at_hand()
    if card is None:
        return
    stages = plan_of(task, card, machine).stages()
    for one in stages:
        given = functools.reduce(getattr, SECTIONS[one.stage].split("."), task)
        own = {name: getattr(given, name) for name in one.settings}
        needed = {name: value for name, value in one.settings.items() if own[name] != value}
        # What is 0 is for the stage to choose, activations that are computed again with their micro-batches.
        if needed and 0 not in (own.get("accumulation"), own.get("batch_size"), own.get("quality_batch")):
            fix = " and ".join(f"{name} to {str(value).lower()}" for name, value in needed.items())
            raise InputError(f"{SECTIONS[one.stage]} does not fit the {card.name} ({card.memory / 1e9:.0f} GB); set {fix}")
        require_memory(one.host, f"the weights that {one.stage} reads", "take a machine with more, or a smaller pair")
    log.info("%s\n\n%s", ESTIMATED, table(stages))


def plan_of(task: Task, card: Card, machine: MachineSettings) -> Plan:
    """Return the plan of a task on as many of these cards as this machine has GPUs, by the settings of the machine."""
    return Plan(task, card, machine.dtype, machine.processes or processes_for(machine.device))


def card_at_hand() -> Card | None:
    """The first GPU of this machine, with its own memory; one of no known kind has an A100's speeds, and its name says so."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    known = next((card for name, card in CARDS.items() if name in found.name), None)
    if known is not None:
        return dataclasses.replace(known, name=found.name, memory=found.total_memory)
    like = CARDS["A100"]
    half = like.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else 0
    return dataclasses.replace(like, name=f"{found.name}, as fast as an A100", memory=found.total_memory, bfloat16=half)


def config_of(model: ModelSettings, vocabulary: int, large: PreTrainedConfig | None = None) -> PreTrainedConfig:
    """The configuration of a model: a published one's from `models.yaml`, otherwise that of its folder or of its settings.

    Raises:
        InputError: there is no such checkpoint here.
    """
    from transformers import AutoConfig

    from tasks.models.checkpoints import random_config
    from tasks.models.tokenizers import load_from

    if model.from_large is not None and large is not None:
        # An upper bound for a shared encoder, whose weights count as trained.
        chosen = model.from_large
        return with_depths(large, len(chosen.encoder_layers or range(large.num_hidden_layers)), len(chosen.layers))
    if model.pretrained is None:
        return random_config(model, {"vocab_size": vocabulary, "pad_token_id": 0, "eos_token_id": 1})
    if model.pretrained not in MODELS:
        return load_from(AutoConfig.from_pretrained, model.pretrained, "model")
    shape = {name: value for name, value in MODELS[model.pretrained].items() if name not in ("tokenizer", "dtype")}
    return AutoConfig.for_model(shape.pop("model_type"), **shape)


class Plan:
    """The stages of a task on one card."""

    def __init__(self, task: Task, card: Card, dtype: str = "float32", processes: int = 1) -> None:
        """Count what a text costs.

        Args:
            task: The task.
            card: The card of each process.
            dtype: `machine.dtype`.
            processes: With a card each that train together.
        """
        self._task, self._card, self._processes = task, card, processes
        self._lengths = task.text.max_source_tokens, task.text.max_target_tokens
        large = config_of(task.models.large, task.tokenizer.vocabulary)
        configs = {"large": large, "small": config_of(task.models.small, task.tokenizer.vocabulary, large)}
        self._costs = {name: text_cost(config, *self._lengths) for name, config in configs.items()}
        width = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
        self._decoded = {name: width * cost.parameters for name, cost in self._costs.items()}
        self._wide = dtype == "float32"
        """Then a smaller format is tried before layers are spread over cards."""
        self._texts = {name: text_bytes(config, *self._lengths) for name, config in configs.items()}
        self._examples, self._held_out = _counts(task.corpus)

    def stages(self) -> list[StagePlan]:
        """The stages that use the card, in their order.

        Raises:
            InputError: a stage does not fit by any settings; names the smallest remedy.
        """
        task, taught = self._task, self._on_card(self._stored("large"))
        # Both arms hold the large model, which measures their acceptance and may teach.
        return [
            self._training("finetune_large", "large", task.finetune.large, 0),
            self._training("finetune_small", "small", task.finetune.small, 0),
            self._calibration(),
            self._training("control", "small", task.align.control, taught),
            self._training("align", "small", task.align, taught),
            self._sweep(),
        ]

    def least(self) -> float:
        """Bytes that the largest stage needs with one text at a time."""
        task, needed = self._task, [float(sum(self._decoded.values()) + sum(self._texts.values()))]
        trainings = (("large", task.finetune.large, 0.0), ("small", task.align, self._stored("large")))
        for model, training, beside in trainings:
            smallest = dataclasses.replace(training, activation_checkpointing=True)
            step = self._costs[model].step_bytes(smallest, 1, half=self._in_half(training))
            needed.append(beside + (step if training.steps else self._stored(model)))
        return max(needed)

    def _in_half(self, training: TrainingSettings) -> bool:
        return self._card.bfloat16 > 0 and training.precision in ("auto", "bfloat16")

    def _training(self, stage: str, model: str, training: TrainingSettings, beside: float) -> StagePlan:
        cost, own = self._costs[model], self._stored(model)
        if not training.steps:
            return StagePlan(stage, self._on_card(own) + beside, own, own, 0, 0)
        if training.zero_stage or training.offload != "none":
            # What ZeRO takes of each card depends on their number, and is not estimated.
            return StagePlan(stage, math.nan, math.nan, 16 * cost.parameters, math.nan, math.nan)
        # The settings of micro-batches that fit, as the stage itself chooses them, and their peak.
        half, texts = self._in_half(training), math.ceil(training.batch_size / self._processes)
        found, peak = fitting(cost, training, texts, USABLE * self._card.memory - beside, half=half)
        if found is None:
            fix = "take optimizer adamw with zero_stage 3, offload parameters and accumulation 1, or a smaller pair"
            raise InputError(self._too_small(stage, beside + peak, fix))
        settings = {name: getattr(found, name) for name in ("accumulation", "activation_checkpointing")}
        # One forward pass, one backward pass of twice the work, and one more forward where activations are recomputed.
        passes = 4 if settings["activation_checkpointing"] else 3
        trained = len(self._task.seeds) if beside else 1
        seen = training.steps * training.batch_size * trained
        operations = seen * passes * cost.operations
        if stage == "align" and self._task.align.loss != "sequence" and not self._task.align.reads_stored:
            operations += seen * self._costs["large"].operations
        speed = _TRAINING * (self._card.bfloat16 if half else self._card.float32)
        kept = (16 if training.optimizer == "adamw" else 8) * cost.parameters * trained
        hours = operations / speed / self._processes / 3600
        return StagePlan(stage, beside + peak, 4 * cost.parameters, kept, operations, hours, settings)

    def _calibration(self) -> StagePlan:
        calibrate, held = self._task.calibrate, self._decoded["large"]
        texts = calibrate.fraction * self._examples
        batch = self._batch("calibrate", calibrate.batch_size, ["large"])
        operations = texts * self._costs["large"].operations
        hours = 0 if calibrate.texts == "references" else self._decoding("large", texts, batch) / 3600
        peak = self._decoding_peak(["large"], batch)
        return StagePlan("calibrate", peak, held, 8 * texts * sum(self._lengths), operations, hours, {"batch_size": batch})

    def _sweep(self) -> StagePlan:
        sweep, seeds = self._task.sweep, len(self._task.seeds) - 1
        whole = len(expand(sweep.grid))
        few = len(expand([one for one in sweep.grid if one.method in sweep.seed_methods]))
        batch = self._batch("sweep", sweep.quality_batch, ["large", "small"])

        def quality(points: int, temperature: float) -> float:
            # A replay's runs, or a decoding of every point; in passes over the texts.
            return _REPLAYED / self._lengths[1] if temperature == 0 else points * sweep.samples

        def timed(points: int) -> int:
            return min(points, _TIMED_POINTS) if sweep.plan else points

        # 1. Quality of both arms: on validation and test for every seed, at further temperatures on validation for the first.
        degree = sweep.sampling.temperature
        runs = quality(whole, degree) + seeds * quality(few, degree)
        runs += sum(quality(whole, further) for further in sweep.temperatures) / 2
        seconds = 2 * runs * sum(self._decoding(model, self._held_out, batch) for model in self._costs)
        # 2. Timing at batch 1, in which a point takes about as long as vanilla.
        points = (1 + len(sweep.temperatures)) * timed(whole) + seeds * timed(few)
        calls = 2 * points * sweep.latency_examples * sweep.latency_rounds
        seconds += self._decoding("large", calls, 1)
        texts = 2 * runs * self._held_out
        operations = sum(texts * cost.operations for cost in self._costs.values()) + calls * self._costs["large"].operations
        held, peak = sum(self._decoded.values()), self._decoding_peak(["large", "small"], batch)
        return StagePlan("sweep", peak, held, 0, operations, seconds / 3600, {"quality_batch": batch})

    def _decoding(self, model: str, texts: float, batch: int) -> float:
        """Seconds of decoding, in which each token of a batch reads the weights once; not known of a model that is spread."""
        if self._on_card(self._decoded[model]) < self._decoded[model]:
            return math.nan
        return math.ceil(texts / batch) * self._lengths[1] * self._decoded[model] / (_DECODING * self._card.bandwidth)

    def _batch(self, stage: str, wanted: int, models: Sequence[str]) -> int:
        whole, text = sum(self._decoded[model] for model in models), sum(self._texts[model] for model in models)
        held = self._held(models)
        batch = fitting_batch(wanted, USABLE * self._card.memory - held, text)
        if not batch or (held < whole and self._wide):
            raise InputError(self._too_small(stage, whole + text, REMEDY))
        return batch

    def _decoding_peak(self, models: Sequence[str], batch: int) -> float:
        return self._held(models) + batch * sum(self._texts[model] for model in models)

    def _held(self, models: Sequence[str]) -> float:
        """Bytes of weights on the fullest card."""
        return sum(self._on_card(self._decoded[model]) for model in models)

    def _on_card(self, weights: float) -> float:
        """Bytes of a model on the fullest card: where it does not fit one, its layers are spread (`tasks.models.spread`)."""
        return min(weights, spread.USABLE * self._card.memory)

    def _too_small(self, stage: str, needed: float, fix: str) -> str:
        card = f"the {self._card.name} has {USABLE * self._card.memory / 1e9:.0f} GB for it"
        return f"{stage} needs {needed / 1e9:.0f} GB for one text at a time, and {card}; {fix}"

    def _stored(self, model: str) -> float:
        """Bytes of a model's folder: in its own number format where it is taken as it is."""
        published = MODELS.get(getattr(self._task.models, model).pretrained or "", {})
        as_it_is = getattr(self._task.finetune, model).steps == 0
        return (2 if as_it_is and published.get("dtype") == "bfloat16" else 4) * self._costs[model].parameters


def _counts(corpus: CorpusSettings) -> tuple[float, float]:
    """Examples of train, and of validation and test together, as far as settings tell."""
    if corpus.source == "embedded":
        return corpus.embedded.train, corpus.embedded.validation + corpus.embedded.test
    hub = corpus.hub
    if hub is None or hub.preset not in DATA_SETS:
        return _UNKNOWN
    train, both = DATA_SETS[hub.preset].examples
    # A slice such as test[:300] names its length.
    slices = [re.search(r"\d+", hub.data_set.splits[name].partition("[")[2]) for name in ("validation", "test")]
    return train, sum(both / 2 if one is None else int(one[0]) for one in slices)


def table(stages: Sequence[StagePlan]) -> str:
    """Stages as a Markdown table."""
    rows = []
    for one in stages:
        sizes = [_said(size / 1e9) for size in (one.memory, one.host, one.disk)]
        settings = ", ".join(f"{name} {str(value).lower()}" for name, value in one.settings.items())
        rows.append([one.stage, *sizes, _said(one.operations / 1e15), _said(one.hours), settings])
    disk, hours = sum(one.disk for one in stages), sum(one.hours for one in stages)
    rows.append(["all", "", "", _said(disk / 1e9), "", _said(hours), ""])
    headings = ["stage", "GB on the card", "GB on the host", "GB on disk", "10¹⁵ operations", "hours", "fits by"]
    return "\n".join(markdown_table(headings, rows))


def overview(tasks: Mapping[str, Task], cards: Sequence[Card]) -> dict[str, dict[str, str]]:
    """For each task the memory of the largest stage with one text at a time, and the hours of all stages on each card."""
    found = {}
    for name, task in tasks.items():
        row = {"GB at least": _said(min(Plan(task, card).least() for card in cards) / 1e9)}
        for card in cards:
            try:
                row[f"hours, {card.name}"] = _said(sum(one.hours for one in Plan(task, card).stages()))
            except InputError:
                row[f"hours, {card.name}"] = "too small"
        found[name] = row
    return found


def _said(number: float) -> str:
    return "not estimated" if math.isnan(number) else f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
