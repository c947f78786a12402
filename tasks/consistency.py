"""Refuses a task of params.yaml whose sections contradict each other, before anything is trained.

Only what the file alone tells is checked. What a model with `pretrained` can do is known once its stage has loaded it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import GREEDY_ONLY, METHODS, T5_ONLY
from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import PERPLEXITY, PROGRAMS, metric_of
from tasks.evaluation.sweep.grid import expand_entry
from tasks.models.settings import from_large_problem, no_encoder_problem
from tasks.models.tokenizers import is_gguf

if TYPE_CHECKING:
    from tasks.config import Task
    from tasks.evaluation.sweep.grid import SweepPoint
    from tasks.machine import MachineSettings
    from tasks.models.settings import LayersSettings, ModelSettings

_GPT2_POSITIONS = 1024
"""Of a randomly initialised model (the default of transformers)."""
_SCORING_METHODS = ("bild", "token_cascade")
"""The methods of a grid that score a given text; the two baselines do as well."""


def check_task(task: Task, machine: MachineSettings) -> None:
    """Check the sections of a task against each other.

    Raises:
        InputError: names the section, the contradiction and the fix, for the first that is found.
    """
    for problem in _problems(task, machine):
        raise InputError(problem)


def _problems(task: Task, machine: MachineSettings) -> Iterator[str]:
    if task.metric == PROGRAMS and not task.run_generated_code:
        fix = "set run_generated_code to true beside it, or choose another metric"
        yield f"metric: pass_at_1 runs the models' outputs as programs on this machine, which is off; {fix}"
    yield from _from_large(task)
    yield from _pair(task)
    yield from _as_it_is(task)
    small = _small(task)
    for name, model, training in (
        ("finetune.large", task.models.large, task.finetune.large),
        ("finetune.small", small, task.finetune.small),
        ("align", small, task.align),
    ):
        # Alignment of the fine-tuned model or of layers of the large one starts from weights, so that the trunk may be frozen.
        loaded = name == "align" and (task.align.start == "fine_tuned" or task.models.small.from_large is not None)
        yield from (f"{name}: {problem}" for problem in training.deepspeed_problems())
        if model.pretrained is None:
            shape = (model.architecture, model.decoder_layers, machine.device)
            yield from (f"{name}: {problem}" for problem in training.model_problems(*shape, random_start=not loaded))
    yield from _calibration(task)
    if _is_perplexity(task):
        yield from _perplexity(task)
    yield from _of_the_grid(task)
    for index, entry in enumerate(task.sweep.grid):
        for point in expand_entry(entry):
            yield from (f"sweep.grid.{index}: {problem}" for problem in _point(point, task))


def _from_large(task: Task) -> Iterator[str]:
    small, large = task.models.small.from_large, task.models.large
    if large.from_large is not None:
        yield "models.large: from_large is for models.small, whose layers it takes from the large model; leave it out"
    if small is None:
        return
    # The stage of a pre-trained model checks the layers once it has loaded the model, before training.
    if large.pretrained is None:
        yield from _missing_layers(small, large)
    if task.align.start != "pretrained":
        begin = "stages control and align begin with layers of the large model"
        yield f"align: start is {task.align.start}, but with models.small.from_large {begin}; set it to pretrained"


def _missing_layers(small: LayersSettings, large: ModelSettings) -> Iterator[str]:
    if small.layers[-1] >= large.decoder_layers:
        yield from_large_problem("layers", small.layers[-1], large.decoder_layers, "decoder layers")
    if small.about_encoder is not None and large.architecture != "t5":
        yield no_encoder_problem(small.about_encoder, f"models.large, a {large.architecture}")
    elif small.encoder_layers is not None and small.encoder_layers[-1] >= large.encoder_layers:
        yield from_large_problem("encoder_layers", small.encoder_layers[-1], large.encoder_layers, "encoder layers")


def _small(task: Task) -> ModelSettings:
    """Return the settings of the small model, with the shape that it takes over if it is made of layers of the large one."""
    small = task.models.small
    if small.from_large is None:
        return small
    return dataclasses.replace(task.models.large, decoder_layers=len(small.from_large.layers))


def _pair(task: Task) -> Iterator[str]:
    small, large = _small(task), task.models.large
    if small.pretrained is None and large.pretrained is None and (small.architecture == "t5") != (large.architecture == "t5"):
        rule = "an encoder-decoder (t5) makes no pair with a decoder-only model (llama, gpt2); give both one architecture"
        yield f"models: small is {small.architecture} but large is {large.architecture}, and {rule}"
    if small.pretrained is None and large.pretrained is None and _width(small) >= _width(large):
        yield "models: small is as large as large, so that its drafts could save nothing; make its layers fewer or narrower"
    elif task.models.small.pretrained is not None and small.pretrained == large.pretrained:
        yield f"models: small and large are both {small.pretrained}, so that drafts could save nothing; name a smaller one"
    longest = task.text.max_source_tokens + task.text.max_target_tokens
    for name, model in (("small", small), ("large", large)):
        if model.pretrained is None and model.architecture == "gpt2" and longest > _GPT2_POSITIONS:
            said = f"text: max_source_tokens and max_target_tokens come to {longest}"
            yield f"{said}, but models.{name} is a gpt2 of {_GPT2_POSITIONS} positions; lower them"


def _width(model: ModelSettings) -> int:
    """Multiplications of a token in the decoder's layers, attention to other tokens aside."""
    return model.decoder_layers * model.d_model * (4 * model.d_kv * model.heads + 2 * model.d_ff)


def _as_it_is(task: Task) -> Iterator[str]:
    """Problems of pre-trained models that are taken as they are, and of prompts for them."""
    if task.finetune.large.steps == 0 and task.models.large.pretrained is None:
        yield "finetune.large: steps is 0, but models.large starts from random weights; set its pretrained, or steps"
    if task.align.unaligned == "as_it_is":
        if task.align.steps == 0:
            yield "align: steps is 0, so that no drafter learns anything; set it to at least 1"
        if task.align.start == "pretrained" and task.models.small.pretrained is None:
            fix = "set models.small.pretrained, or unaligned to trained"
            yield f"align: unaligned is as_it_is, but the small model starts from random weights or copied layers; {fix}"
    if task.text.chat_template and task.tokenizer.pretrained is None:
        yield "text: chat_template is true, but a tokenizer that is trained here has no template; set tokenizer.pretrained"
    for name, model, started in (("small", task.models.small, _small(task)), ("large", task.models.large, task.models.large)):
        if task.text.chat_template and started.pretrained is None and started.architecture == "t5":
            fix = "set its architecture to llama or gpt2"
            yield f"text: chat_template is true, but models.{name} is a t5, and a chat prompt needs a decoder-only model; {fix}"
        if model.pretrained is not None and is_gguf(model.pretrained) and task.tokenizer.pretrained is None:
            fix = f"set tokenizer.pretrained to {model.pretrained}"
            yield f"tokenizer: models.{name}.pretrained is a GGUF file, which has a tokenizer of its own; {fix}"


def _is_perplexity(task: Task) -> bool:
    return metric_of(task.metric).name == PERPLEXITY


def _perplexity(task: Task) -> Iterator[str]:
    """Problems of a task whose metric is of given texts; `_scored_point` has those of its grid."""
    if task.sweep.sampling != SamplingSettings(temperature=1.0):
        why = "a perplexity is of the distribution that tokens are drawn from"
        must = "sampling must be {temperature: 1.0} without top_k and top_p"
        yield f"sweep: with the metric perplexity {must}, since {why}; set it"
    if task.sweep.temperatures:
        yield "sweep: temperatures is set, but a perplexity is of temperature 1 alone; remove it"
    if task.sweep.samples > 1 or task.sweep.drafter_sampling is not None:
        yield "sweep: samples and drafter_sampling are of drawn tokens, and a perplexity draws none; remove them"
    trainings = {"finetune.large": task.finetune.large, "finetune.small": task.finetune.small, "align": task.align}
    for name, training in trainings.items():
        if training.choose_by == "quality":
            yield f"{name}: choose_by is quality, which is of outputs; set it to validation_loss, the logarithm of a perplexity"
    if task.align.draft_vocabulary:
        result = "all other tokens have no probability and a text with one of them an infinite perplexity"
        yield f"align: draft_vocabulary is {task.align.draft_vocabulary}, so that {result}; set it to 0"


def _scored_point(point: SweepPoint) -> Iterator[str]:
    """Problems of a point with the metric perplexity: methods and settings that decode no given text."""
    if point.method not in _SCORING_METHODS:
        yield (
            f"{point.method} scores no given text: a lossless method has the large model's perplexity by definition, and in "
            f"others a drawn token decides what is kept; with this metric a grid takes {' and '.join(_SCORING_METHODS)}"
        )
    settings = point.settings
    if isinstance(settings, BildSettings) and settings.rollback_threshold < math.inf:
        said = f"bild has a rollback_threshold of {settings.rollback_threshold:g}"
        yield f"{said}, but no token of a given text is replaced; set it to .inf"
    if isinstance(settings, BildSettings) and settings.drafter != "small":
        said = f"bild has the drafter {settings.drafter}, whose drafts a given text replaces"
        yield f"{said}; with the metric perplexity use small"


def _of_the_grid(task: Task) -> Iterator[str]:
    """Problems of the grid as a whole, and of settings that it has no use for."""
    if not task.sweep.grid:
        yield "sweep: grid is empty, so that no method would be measured; name one, or leave grid out for the default points"
    swept, asked = {entry.method for entry in task.sweep.grid}, task.sweep.seed_methods
    if unknown := [method for method in asked if method not in METHODS]:
        yield f"sweep: seed_methods names {unknown[0]}, which is no method; it must be some of {', '.join(METHODS)}"
    elif len(task.seeds) > 1 and swept and swept.isdisjoint(asked):
        yield "sweep: seed_methods has no method of the grid, so that further seeds would measure nothing; add one"
    warm = [temperature for temperature in task.sweep.temperatures if temperature > 0]
    if warm and swept.issubset(GREEDY_ONLY):
        yield f"sweep: temperatures has {warm[0]:g}, but no method of the grid draws tokens; add one or remove the value"


def _calibration(task: Task) -> Iterator[str]:
    kept = task.calibrate.top_logits
    if task.align.reads_stored and not kept:
        yield "align: reference is stored, but calibrate.top_logits is 0, so nothing is stored; set one of the two"
    if task.calibrate.texts == "references" and task.align.loss == "sequence":
        said = f"align: loss is {task.align.loss}, which reads the text alone"
        fix = "set loss to a divergence, for example forward_kl, or calibrate.texts to outputs"
        yield f"{said}, but with calibrate.texts references that is the control's own text; {fix}"
    if task.calibrate.keep_over_long and task.align.loss == "sequence":
        said = "calibrate: keep_over_long keeps texts without an end, which align.loss sequence would end where they are cut"
        yield f"{said}; set align.loss to a divergence, for example forward_kl, or keep_over_long to false"
    drafted = task.align.draft_vocabulary
    if task.align.reads_stored and 0 < drafted <= kept:
        said = f"align: draft_vocabulary is {drafted}, of which the {kept} stored predictions (calibrate.top_logits)"
        yield f"{said} might leave no token to the rest; raise the one or lower the other"
    if task.tokenizer.pretrained is None and drafted > task.tokenizer.vocabulary:
        yield f"align: draft_vocabulary is {drafted}, but tokenizer.vocabulary is {task.tokenizer.vocabulary}; lower it"
    if task.tokenizer.pretrained is None and kept > task.tokenizer.vocabulary:
        yield f"calibrate: top_logits is {kept}, but tokenizer.vocabulary is {task.tokenizer.vocabulary}; lower it"


def _point(point: SweepPoint, task: Task) -> Iterator[str]:
    degree = task.sweep.sampling.temperature
    if _is_perplexity(task):
        yield from _scored_point(point)
    if point.method in GREEDY_ONLY and degree > 0:
        yield f"{point.method} draws no tokens, but sweep.sampling.temperature is {degree}; set it to 0 or remove the entry"
    large, training = task.models.large, task.finetune.large
    if large.pretrained is not None:
        return
    if point.method in T5_ONLY and large.architecture != "t5":
        yield f"{point.method} needs the layers of a t5, but models.large is a {large.architecture}; remove the entry"
    if getattr(point.settings, "confidence", None) == "classifier" and not training.exit_classifier:
        fix = "set its exit_classifier or remove the value"
        yield f"{point.method} with confidence classifier needs a classifier, which finetune.large does not train; {fix}"
    drafter = getattr(point.settings, "drafter", None)
    if drafter == "heads" and not training.draft_heads:
        yield "the drafter heads needs heads, which finetune.large does not train; set its draft_heads or remove the value"
    if drafter == "early_layer" and training.exit_layer >= large.decoder_layers:
        said = f"the drafter early_layer runs {training.exit_layer} layers (finetune.large.exit_layer)"
        yield f"{said}, but models.large has {large.decoder_layers} decoder layers; it needs more, or remove the value"
