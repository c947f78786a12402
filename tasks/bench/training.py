"""Compares the speed of training with `Seq2SeqTrainer` of transformers on the same model, text and machine.

Alignment costs training time, and a training loop of our own is worth keeping only if it is no slower than the one in
`transformers`. Both start from the same fresh model and use the same optimiser, rate, batch size and clipping, in float32.
Trainer groups its batches by each of four lengths, and the fastest of them counts.

Run `python -m tasks.bench training --task translation` after `dvc repro`. All take turns in one process; the ratio is the
median over rounds of tokens per second. The losses of both are printed as evidence that neither skips work. The last line is
JSON: `train_over_trainer` is the ratio; above 1, ours is faster.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.bench import harness
from tasks.bench.harness import Found, parse, shown
from tasks.config import load
from tasks.console import log
from tasks.errors import InputError
from tasks.evaluation.timing import synchronised_clock
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import initial_model
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training.data import IGNORED, Batch, DatasetSource, JsonlDataset, TokenDataset
from tasks.training.engine import rate_factor
from tasks.training.loop import train
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer, TrainerControl

LENGTHS: dict[str, Callable[[int, int], int]] = {
    "source": lambda source, _target: source,
    "target": lambda _source, target: target,
    "sum": lambda source, target: source + target,
    "longer": max,
}
"""Lengths that Trainer can group examples by, computed from the lengths of source and target."""
OURS = "ours"
_WARM_UP = 3
"""Untimed first steps of a visit, which allocate memory."""
_HELD_OUT = 8
_FOREVER = 10**9
_OF_ONE_OF_SEVERAL = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""Variables that DeepSpeed sets in its process; Trainer would take them to mean that it is one of several processes."""


@dataclass(frozen=True)
class Recipe:
    """A fresh model with its text and settings."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    settings: TrainingSettings
    device: torch.device


@dataclass
class Visit:
    """The clock of a contender: some steps at a time, after a warm-up."""

    clock: Callable[[], float]
    steps: int = 0
    """Timed steps of this visit."""
    begun: int = 0
    """Steps of this visit that have begun, the warm-up included."""
    start: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    """Tokens of sources and targets in the timed steps, without padding."""
    losses: list[float] = field(default_factory=list)
    """Mean loss per target token of some steps, in nats, over all visits."""

    def restart(self, steps: int) -> None:
        """Begin a visit of so many timed steps."""
        self.steps, self.begun, self.tokens = steps, 0, 0

    def begin_step(self) -> bool:
        """Note that a step begins; return whether it is one more than were asked for."""
        if self.begun == _WARM_UP:
            self.start = self.clock()
        if self.begun == _WARM_UP + self.steps:
            self.seconds = self.clock() - self.start
        self.begun += 1
        return self.begun > _WARM_UP + self.steps

    def count(self, tokens: int) -> None:
        """Count the tokens of a timed step; Trainer ends after one more."""
        self.tokens += tokens if _WARM_UP < self.begun <= _WARM_UP + self.steps else 0


class _Enough(BaseException):
    """Ends our loop between two steps; the loop does not catch it."""


class DraftlineContender:
    """This project's training loop."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """Take a recipe and an empty folder, to which nothing is written."""
        self._recipe, self._folder = recipe, folder
        self.visit = Visit(synchronised_clock(recipe.device.type))

    def run(self, steps: int) -> None:
        """Train for so many steps after the warm-up."""
        recipe, visit = self._recipe, self.visit
        few = TokenDataset(recipe.examples.sources[:_HELD_OUT], recipe.examples.targets[:_HELD_OUT], recipe.examples.pad)
        source = DatasetSource(recipe.examples, recipe.settings)

        class Counted:
            def microbatches(self, step: int) -> list[Batch]:
                if visit.begin_step():
                    raise _Enough
                parts = source.microbatches(step)
                visit.count(sum(int(part.mask.sum() + (part.labels != IGNORED).sum()) for part in parts))
                return parts

        def log(metrics: Mapping[str, float], _step: int) -> None:
            if "loss" in metrics:
                visit.losses.append(metrics["loss"])

        visit.restart(steps)
        objective = Objective(recipe.model, recipe.settings)
        try:
            train(*(objective, Counted(), few, recipe.settings, recipe.device), resume=self._folder, log=log, label=OURS)
        except _Enough:
            return


class TrainerContender:
    """`Seq2SeqTrainer` at its fastest: grouped by length, without cache, logging, checkpoints or evaluation."""

    def __init__(self, recipe: Recipe, folder: Path, length: str) -> None:
        """Take a recipe, a folder, to which nothing is written, and one of `LENGTHS`.

        Raises:
            RuntimeError: Trainer takes this process for one of several, which is slower.
        """
        self.visit = Visit(synchronised_clock(recipe.device.type))
        for name in _OF_ONE_OF_SEVERAL:
            os.environ.pop(name, None)
        recipe.model.config.use_cache = False
        self._trainer = _trainer(recipe, folder, length, self.visit)
        kind = self._trainer.accelerator.distributed_type
        if kind != "NO":
            raise RuntimeError(f"Trainer treats this process as one of several ({kind}), which is slower")

    def run(self, steps: int) -> None:
        """Train for so many steps after the warm-up."""
        self.visit.restart(steps)
        self._trainer.train()


def _trainer(recipe: Recipe, folder: Path, length: str, visit: Visit) -> Seq2SeqTrainer:
    """Return a Trainer that counts tokens and ends with its visit; transformers, which its classes need, loads late."""
    import datasets
    from transformers import DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

    recent: list[tuple[torch.Tensor, int]] = []

    class Ending(TrainerCallback):  # type: ignore[misc]  # mypy sees no types of transformers
        def on_step_begin(self, _arguments: object, _state: object, control: TrainerControl, **_: object) -> None:
            if visit.begin_step():
                control.should_training_stop = True

    class Counting(Seq2SeqTrainer):  # type: ignore[misc]  # as above
        def compute_loss(
            self, model: PreTrainedModel, inputs: dict[str, torch.Tensor], *given: object, **options: object
        ) -> torch.Tensor:
            targets = int((inputs["labels"] != IGNORED).sum())
            visit.count(targets + int(inputs["attention_mask"].sum()))
            loss: torch.Tensor = super().compute_loss(model, inputs, *given, **options)
            recent.append((loss.detach(), targets))
            if len(recent) == 20:
                total = sum(float(one) * count for one, count in recent)
                visit.losses.append(total / sum(count for _, count in recent))
                recent.clear()
            return loss

    settings, examples = recipe.settings, recipe.examples
    pairs = zip(examples.sources, examples.targets, strict=True)
    dataset = datasets.Dataset.from_dict(
        {
            "input_ids": examples.sources,
            "attention_mask": [[1] * len(source) for source in examples.sources],
            "labels": examples.targets,
            "length": [LENGTHS[length](len(source), len(target)) for source, target in pairs],
        }
    )
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        max_grad_norm=settings.gradient_clipping,
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        use_cpu=recipe.device.type == "cpu",
        dataloader_pin_memory=recipe.device.type != "cpu",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )
    optimizer = trainer_optimizer(recipe.model, settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(settings, step))
    collator = DataCollatorForSeq2Seq(recipe.tokenizer, model=recipe.model)
    trainer = Counting(recipe.model, arguments, collator, dataset, optimizers=(optimizer, schedule), callbacks=[Ending()])
    trainer.remove_callback(PrinterCallback)
    return trainer


def trainer_optimizer(model: PreTrainedModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimiser that Trainer would use: the Adafactor of `transformers`, or fused AdamW."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    from transformers.optimization import Adafactor

    scaled = settings.relative_rate
    options = {"lr": rate, "weight_decay": decay, "scale_parameter": scaled, "relative_step": False}
    known: torch.optim.Optimizer = Adafactor(model.parameters(), **options)
    return known


def endless(settings: TrainingSettings) -> TrainingSettings:
    """Return settings in float32 that neither end, evaluate nor save."""
    return dataclasses.replace(
        settings,
        decay="constant",
        precision="float32",
        zero_stage=0,
        offload="none",
        deepspeed="",
        batch_tokens=0,
        accumulation=1,
        activation_checkpointing=False,
        steps=_FOREVER,
        evaluate_every=_FOREVER,
        checkpoint_every=_FOREVER,
        choose_by="last",
        patience=0,
    )


def compare(make: Callable[[], Recipe], lengths: Sequence[str], steps: int, rounds: int) -> Found:
    """Train both in rounds of `steps` each, in an order drawn anew for each round.

    Args:
        make: Makes the recipe anew, equal each time.
        lengths: Of `LENGTHS`, those that Trainer is tried with.
        steps: Timed steps of a visit; a multiple of 50 covers texts of all lengths, since Trainer sorts 50 batches at a time.
        rounds: Timed rounds.

    Returns:
        The ratio of tokens per second with its interval, both speeds, Trainer's fastest length, its speed by length, and the
        first and last loss of both.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Ours is made last, since DeepSpeed makes this process one of a group.
        contenders: dict[str, DraftlineContender | TrainerContender]
        contenders = {length: TrainerContender(make(), Path(folder), length) for length in lengths}
        contenders[OURS] = DraftlineContender(make(), Path(folder))

        def seconds_per_token(one: DraftlineContender | TrainerContender) -> float:
            one.run(steps)
            return one.visit.seconds / one.visit.tokens

        timed = {name: lambda _, one=one: seconds_per_token(one) for name, one in contenders.items()}
        seconds = harness.time_interleaved(timed, rounds)
    best = harness.fastest({length: seconds[length] for length in lengths})
    speeds = {name: round(1 / statistics.median(taken), 1) for name, taken in seconds.items()}
    losses = {name: contenders[key].visit.losses for name, key in ((OURS, OURS), ("trainer", best))}
    return {
        **harness.median_ratio(seconds[OURS], seconds[best]),
        "ours": speeds.pop(OURS),
        "trainer": speeds[best],
        "grouped_by": best,
        "tried": speeds,
        "losses": {name: [round(loss, 3) for loss in (*found[:1], *found[-1:])] for name, found in losses.items()},
    }


def main(given: Sequence[str]) -> None:
    """Compare the two and print JSON.

    Raises:
        InputError: an option is out of bounds, a file or package is missing, or the model is decoder-only.
    """
    parser = harness.parser_of("training", __doc__, steps=(150, "timed steps of a round"), rounds=(7, "timed rounds"))
    parser.add_argument("--task", default="translation", help="a prepared task of params.yaml (default: %(default)s)")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    arguments = parse(parser, given)
    task, paths = load(arguments.params).task(arguments.task), TaskPaths(arguments.task)
    for path in (paths.split("train"), paths.tokenizer):
        if not path.exists():
            raise InputError(f"{path} is missing; make it by dvc repro")
    if importlib.util.find_spec("accelerate") is None:
        raise InputError("accelerate is not installed, but Seq2SeqTrainer needs it; pip install 'accelerate>=1.15,<2'")
    device, _ = set_up(MachineSettings())
    tokenizer = load_tokenizer(paths.tokenizer)
    examples = JsonlDataset(paths.split("train"), tokenizer, task.text, decoder_only=False)
    settings = endless(task.finetune.large)

    def make() -> Recipe:
        model = initial_model(task.models.large, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
        if not model.config.is_encoder_decoder:
            raise InputError(f"the large model of {arguments.task} is decoder-only; Seq2SeqTrainer trains no such model")
        return Recipe(model.to(device), tokenizer, examples, settings, device)

    lengths, steps, rounds = list(LENGTHS), arguments.steps, arguments.rounds
    if arguments.quick:
        lengths, steps, rounds = lengths[:1], 2, 1
    begun = time.monotonic()
    with harness.alone("cpu", quick=arguments.quick):
        found = compare(make, lengths, steps, rounds)
    name = f"large {settings.optimizer}"
    log.info(
        f"{name}: {shown(found)} times as fast as Trainer ({found['ours']:.0f} and {found['trainer']:.0f} tokens/s, grouped by "
        f"{found['grouped_by']}); first and last loss {found['losses']}; {time.monotonic() - begun:.0f} s"
    )
    result = {**harness.hardware(), "task": arguments.task, "train_over_trainer": found["ratio"], "training": {name: found}}
    harness.finish(result, arguments.json)
