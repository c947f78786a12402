"""The training loop: one model, resumable at every checkpoint with the same result; what is measured and logged meanwhile."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from tasks import console
from tasks.corpora.example import Example
from tasks.errors import InputError
from tasks.evaluation.scoring.quality import value_of
from tasks.machine import return_freed_memory
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.training import checkpoints, distributed
from tasks.training.checkpoints import BestWeights
from tasks.training.data import Batch, BatchSource, TokenDataset, pad_rows
from tasks.training.engine import backward, close, create_engine, gathered_weights, restored_linear, tf32, weights_finite
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LOG_EVERY = 20
_RETURN_EVERY = 60.0
"""Seconds between two returns of freed memory: a gigabyte that is needed again costs up to a second."""
_EVALUATION_BATCH = 64
_MOST_LOGITS = 2**26
"""Most logits of one evaluation batch: 256 MB in float32."""

Evaluator = Callable[["PreTrainedModel"], dict[str, float]]
"""Measures a model in training and returns numbers by name, without changing the weights."""
LogMetrics = Callable[[dict[str, float], int], None]
"""Takes metrics by name and the step that they belong to."""
Rows = dict[int, dict[str, float]]
"""Values by name for each step at which something was logged, in the order of the steps."""


class DivergedError(InputError):
    """The loss, a gradient or a weight is not finite; the message names the step and the last good checkpoint."""

    def __init__(self, what: str, step: int, resume: Path) -> None:
        good = checkpoints.latest(resume)
        kept = f"the last good checkpoint is {resume / good}" if good else "there is no checkpoint yet"
        super().__init__(f"{what} at step {step}; {kept}; lower learning_rate in params.yaml and run again")


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run."""

    loss: float
    """Mean training loss per token since the last log line, in nats; NaN if no step was taken."""
    seconds: float
    resumed_from: int
    """Step of the checkpoint that the run resumed from; 0 for a new run."""
    steps: int
    """Steps taken."""
    kept: int
    """Step whose weights were kept."""
    measured: dict[str, float] = field(default_factory=dict)
    """`validation_loss`, in nats, and the evaluator's measurements, for those weights."""
    target_tokens: int = 0
    """Target tokens that the loss was computed on, over all steps and processes."""
    log: Rows = field(default_factory=dict)
    """What was logged step by step, from the first step on even if the run was interrupted."""


@restored_linear()
def train(
    objective: Objective,
    source: BatchSource,
    held_out: TokenDataset,
    settings: TrainingSettings,
    device: torch.device,
    *,
    measure: Evaluator | None,
    resume: Path,
    log: LogMetrics,
    label: str,
) -> TrainingResult:
    """Train the objective's model, and the heads that the settings add to it, in place.

    With `settings.steps` 0 the model is measured and otherwise left alone; DeepSpeed is not even imported.

    Args:
        objective: The model with its loss, on `device`.
        source: Micro-batches of each step.
        held_out: Text for the validation loss.
        settings: The training settings.
        device: Where to train.
        measure: Further measurements at each evaluation.
        resume: Checkpoint folder, for this work alone; the caller removes it once the model is saved.
        log: Called every few steps, from the step on at which the run resumes.
        label: Label of the progress bar.

    Raises:
        DivergedError: the loss, a gradient or a weight became NaN or infinite.
        InputError: no space is left for a checkpoint, or `choose_by` names something that is not measured.
    """

    def evaluated() -> dict[str, float]:
        loss = {"validation_loss": evaluate(objective, held_out, device)}
        return loss if measure is None else {**loss, **measure(objective.model)}

    begun = returned = time.monotonic()
    if settings.steps == 0:
        measured = evaluated()
        log(measured, 0)
        return TrainingResult(math.nan, time.monotonic() - begun, 0, steps=0, kept=0, measured=measured, log={0: measured})
    # 1. Open the engine, and continue from the newest checkpoint, if there is one.
    engine = create_engine(objective, settings, device)
    first, state = checkpoints.load_latest(engine, resume)
    if first and distributed.is_main():
        console.log.info("%s: goes on from step %d of %d", label, first, settings.steps)
    best, whole = BestWeights(resume, settings, state), TrainingLog(state, log, device)
    step, measured = first, dict[str, float]()
    with console.progress(total=settings.steps, initial=first, desc=label, unit="step", mininterval=2.0) as bar:
        while step < settings.steps:
            # 2. Take a step. Each has its own seed, so that dropout is the same after a resume.
            own = (settings.seed * 1_000_003 + step + 1) * distributed.world_size() + distributed.rank()
            torch.manual_seed(own % 2**64)
            parts = [part.to(device) for part in source.microbatches(step)]
            step += 1
            with tf32(settings, device):
                loss, count = _train_step(engine, objective, parts, settings)
            if not math.isfinite(loss):
                raise DivergedError(f"the training loss is {loss}", step, resume)
            # ZeRO skips a step over a gradient that is not finite without a word; float16 training expects such steps.
            if engine.skipped_steps > 0 and not engine.fp16_enabled():
                raise DivergedError("the gradient is no longer finite", step, resume)
            whole.count_step(sum(map(objective.target_tokens, parts)), loss, count)
            # 3. Log the means since the last line.
            saving = step % settings.checkpoint_every == 0 and step < settings.steps
            if step % _LOG_EVERY == 0 or step == settings.steps or saving:
                bar.set_postfix(whole.add_means(step, engine.get_lr()[0]), refresh=False)
            # 4. Evaluate, and keep the weights if they are the best so far; never measure or save broken ones.
            evaluating = step % settings.evaluate_every == 0 or step == settings.steps
            if (evaluating or saving) and not weights_finite(engine):
                raise DivergedError("weights are no longer finite", step, resume)
            if evaluating:
                measured = evaluated()
                with gathered_weights(engine):
                    best.update(objective.model, measured, step)
                whole.add(measured, step)
            if time.monotonic() - returned > _RETURN_EVERY:
                return_freed_memory()
                returned = time.monotonic()
            # 5. Save a checkpoint, which carries the log and the best weights.
            if saving:
                checkpoints.save(engine, resume, step, {**best.state_dict(), "log": whole.rows})
            bar.update()
    # 6. Keep the best weights, or the last, and measure those that are kept.
    close(engine)
    kept = best.restore_weights(objective.model)
    if kept not in (None, step) or not measured:
        measured = evaluated()
    distributed.barrier()
    seconds = time.monotonic() - begun
    return TrainingResult(whole.loss, seconds, first, step, kept or step, measured, whole.target_tokens, whole.rows)


def _train_step(
    engine: DeepSpeedEngine, objective: Objective, parts: list[Batch], settings: TrainingSettings
) -> tuple[float, float]:
    """Take a step; return its mean loss over all processes, and the count that the first term was divided by."""
    # The divisor covers all micro-batches of all processes, so it is known before the first of them runs.
    counts = objective.counts(parts)  # (terms,)
    engine.train()
    loss = torch.zeros((), device=counts.device)
    for part in parts:
        mine = engine(part, counts)
        backward(engine, mine, settings)
        engine.step()  # moves the weights after the last micro-batch only
        loss += mine.detach()
    return float(distributed.all_reduce(loss)), float(counts[0])


class TrainingLog:
    """Collects what is logged, and means since the last ones. Checkpoints carry the rows, so that a resumed run has them."""

    def __init__(self, state: Mapping[str, object], log: LogMetrics, device: torch.device) -> None:
        """Continue from a checkpoint's state, which is empty at first, and pass everything on to `log`."""
        self.rows = cast("Rows", state.get("log", {}))
        self._log, self._device = log, device
        known = [values["target_tokens"] for values in self.rows.values() if "target_tokens" in values]
        self.target_tokens = int(known[-1]) if known else 0
        """Target tokens over all steps and processes until the last line of means."""
        self.loss = math.nan
        """Mean loss of the last line of means."""
        self._reset()

    def _reset(self) -> None:
        self._sum, self._count, self._since = 0.0, 0.0, time.monotonic()
        self._tokens = torch.zeros((), device=self._device)

    def count_step(self, tokens: torch.Tensor | int, loss: float, count: float) -> None:
        """Count a step: its target tokens in this process, its loss, and the weight of that loss in the mean."""
        # Every token counts alike in the mean of several steps, as it does within one.
        self._sum += loss * count
        self._count += count
        self._tokens += tokens

    def add_means(self, step: int, rate: float) -> dict[str, str]:
        """Add the means since the last ones; return them as text for the progress bar."""
        tokens = float(distributed.all_reduce(self._tokens))
        speed = tokens / (time.monotonic() - self._since)
        self.target_tokens += int(tokens)
        # The count is 0 where no label can be learned, as in texts outside of the draft vocabulary.
        self.loss = self._sum / self._count if self._count else 0.0
        self.add({"loss": self.loss, "learning_rate": rate, "target_tokens": self.target_tokens}, step)
        # No row takes the speed: rows are saved with the model, and two equal trainings must leave equal files.
        self._log({"tokens_per_second": speed}, step)
        self._reset()
        return {"loss": f"{self.loss:.3f}", "tokens/s": f"{speed:.0f}"}

    def add(self, values: dict[str, float], step: int) -> None:
        """Add values to the row of a step."""
        self.rows.setdefault(step, {}).update(values)
        self._log(values, step)


def as_csv(rows: Rows) -> str:
    """Return a line for each step, with empty fields where a value was not measured at that step.

    There is always a column `loss`, which dvc plots, even of a model that was not trained.
    """
    names = dict.fromkeys(["loss", *(name for values in rows.values() for name in values)])
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **values} for step, values in rows.items())
    return text.getvalue()


# Not in inference mode: ZeRO stage 3 gathers weights here, which training needs afterwards.
@torch.no_grad()
def evaluate(objective: Objective, examples: TokenDataset, device: torch.device) -> float:
    """Return the mean loss per target token, in nats, without dropout; every process evaluates all texts."""
    objective.eval()
    rows = zip(examples.sources, examples.targets, strict=True)
    longest = max(len(target) + (len(source) if examples.decoder_only else 0) for source, target in rows)
    size = evaluation_batch(longest, objective.model.config.get_text_config().vocab_size)
    batches = [examples.batch(range(begin, min(begin + size, len(examples)))) for begin in range(0, len(examples), size)]
    sums = torch.stack([objective.sums(batch.to(device)) for batch in batches]).sum(0)  # (terms,)
    return float(objective.mean(sums, objective.own_counts(batches).to(device)))


def evaluation_batch(longest: int, vocabulary: int) -> int:
    """Return how many texts fit into an evaluation batch, of at most `longest` positions with logits of a vocabulary."""
    return max(1, min(_EVALUATION_BATCH, _MOST_LOGITS // (longest * vocabulary)))


class HeldOutQuality:
    """An `Evaluator` of `quality`: the metric of greedy outputs against all references, in points from 0 to 100.

    Outputs come from transformers' `generate`, so that a change of `tasks.decoding` does not require training again.
    """

    def __init__(self, examples: list[Example], tokenizer: PreTrainedTokenizerBase, text: TextSettings, metric: str) -> None:
        """Tokenise the held-out text.

        Args:
            examples: Sources with at least one reference each.
            tokenizer: The model's tokenizer.
            text: Length limits of sources and outputs.
            metric: One of `tasks.evaluation.scoring.metrics.METRICS`.
        """
        self._tokenizer, self._limit, self._metric = tokenizer, text.max_target_tokens, metric
        sources = encode_sources(tokenizer, [example.source for example in examples], text)
        # Texts of similar length are decoded together, to save padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        self._sources = [sources[index] for index in order]
        self.examples = [examples[index] for index in order]
        """The examples in the order of their outputs."""

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Return `{"quality": …}` of a model, which is left in evaluation mode."""
        references = [example.references for example in self.examples]
        return {"quality": value_of(self.outputs(model), references, self._metric)}

    def outputs(self, model: PreTrainedModel) -> list[str]:
        """Return the greedy output for each example; the model is left in evaluation mode."""
        model.eval()
        pad = self._tokenizer.pad_token_id
        outputs: list[str] = []
        for begin in range(0, len(self._sources), _EVALUATION_BATCH):
            sources = self._sources[begin : begin + _EVALUATION_BATCH]
            # Decoder-only models continue the row, so padding goes on the left; encoders ignore it.
            mask = pad_rows([[1] * len(row) for row in sources], 0).flip(1)
            ids = pad_rows([row[::-1] for row in sources], pad).flip(1)  # (texts, longest)
            tokens = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                do_sample=False,
                num_beams=1,
                max_new_tokens=self._limit,
                pad_token_id=pad,
            )
            # (texts, at most the limit): a decoder-only model repeats the prompt.
            written = tokens if model.config.is_encoder_decoder else tokens[:, ids.shape[1] :]
            outputs += self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return outputs
