"""The papers' experiments as tasks of params.yaml: a data set as one paper used it, with one of its pairs."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tasks.corpora.data_sets import DATA_SETS
from tasks.corpora.settings import PAPERS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import preset_values

Section = dict[str, Any]
_OPEN = {"accumulation": 0, "precision": "auto"}
"""Of a training: what each stage chooses for the device."""
_DEPTH_AND_WIDTH = (("num_layers", "n_layer", "num_hidden_layers"), ("d_model", "n_embd", "hidden_size"))
"""Names in the configurations of the models."""
_TIMED = 500
_TIMED_AS = {"latency_examples": _TIMED, "latency_rounds": 3}
"""SpecCascade, E.1."""
FIRST_LAYER = "first-layer"
"""The small model of a pair that is the large one's first decoder layer on its frozen encoder (BiLD-v1, 4.1)."""


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run."""

    divisor: int
    """Every training takes this part of the paper's steps, but at least `fewest`."""
    fewest: int
    examples: int
    """The most examples of validation, and of test."""
    timed: int
    values: int
    """The most values of each setting of a grid, its ends among them."""


FULL = "full"
SCALES = {"day": Scale(25, 1000, 2000, 200, 5), "hour": Scale(500, 200, 300, 50, 3)}
"""The shortened ones, beside `FULL`."""


@dataclass(frozen=True)
class Variant:
    """How a paper used a data set; what it leaves open stands in `ours`."""

    data_set: str
    paper: str
    printed: str
    """Where the paper describes it."""
    metric: str
    lengths: tuple[int, int]
    """Longest source and target, in tokens."""
    pairs: list[str]
    """`small:large`, the paper's first; `small` may be `FIRST_LAYER`."""
    large: Section
    """Training of the large model, as `finetune.large`."""
    align: Section
    grid: list[Section]
    sweep: Section
    ours: list[str]
    shots: int = 0
    """Examples of train before each source."""
    held_out: int = 0
    """Examples of validation, and of test, that are used; 0: all of the data set's splits."""
    calibrate: Section = field(default_factory=dict)
    text: Section = field(default_factory=dict)
    options: Section = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Data set and paper, which a task of params.yaml may be called."""
        return f"{self.data_set}-{self.paper}"

    def section(self, pair: str = "", scale: str = FULL) -> Section:
        """The task as params.yaml holds it under `tasks`.

        Args:
            pair: One of `pairs`, or any two models of one tokenizer; empty for the first.
            scale: `FULL`, or a key of `SCALES`.

        Raises:
            InputError: see `checked_pair`.
        """
        small, large = checked_pair(pair or self.pairs[0], self)
        drafter = {"from_large": {"layers": [0], "share_encoder": True}} if small == FIRST_LAYER else {"pretrained": small}
        hub = {"preset": self.data_set, **({"shots": self.shots} if self.shots else {})}
        task = {
            "seeds": [1],
            "metric": self.metric,
            **self.options,
            "corpus": {"source": "hub", "hub": hub, "paper": max(filter(self.paper.startswith, PAPERS), key=len)},
            "text": {"max_source_tokens": self.lengths[0], "max_target_tokens": self.lengths[1], **self.text},
            "tokenizer": {"pretrained": large},
            "models": {"large": {"pretrained": large}, "small": drafter},
            "finetune": {"large": {**_OPEN, **self.large}, "small": {"steps": 0, "batch_size": 16}},
            "calibrate": {"batch_size": 0, **self.calibrate},
            "align": {"start": "pretrained", **_OPEN, **self.align},
            "sweep": {"grid": self.grid, "quality_batch": 0, **self.sweep, **_TIMED_AS},
        }
        if self.held_out:
            task["corpus"]["hub"]["splits"] = self._held_out(self.held_out)
        return task if scale == FULL else self._shortened(task, scale)

    def _held_out(self, most: int) -> Section:
        splits = DATA_SETS[self.data_set].splits
        return {one: _first(splits[one], min(most, self.held_out or most)) for one in ("validation", "test")}

    def _shortened(self, task: Section, scale: str) -> Section:
        rule = SCALES[scale]
        # 1. Steps, and with them the texts that the large model labels.
        task["finetune"]["large"] = _fewer_steps(task["finetune"]["large"], rule)
        task["align"] = _fewer_steps(task["align"], rule)
        whole, steps = (self.large["steps"], self.align["steps"]), (task["finetune"]["large"]["steps"], task["align"]["steps"])
        seen = steps[1] * task["align"]["batch_size"]
        examples = DATA_SETS[self.data_set].examples[0]
        if examples > seen:
            task["calibrate"]["fraction"] = math.ceil(1e4 * seen / examples) / 1e4
        # 2. Held-out texts.
        task["corpus"]["hub"]["splits"] = self._held_out(rule.examples)
        task["sweep"]["latency_examples"] = min(_TIMED, rule.timed)
        # 3. The grid, with the ranges of its presets written out.
        task["sweep"]["grid"] = [_thinned(entry, rule.values) for entry in self.grid]
        if "temperatures" in self.sweep:  # beside the main one
            task["sweep"]["temperatures"] = _some(self.sweep["temperatures"], rule.values - 1)
        trained = "; ".join(
            f"{name} takes {less:,} of {all_of:,} steps"
            for name, less, all_of in zip(("the large model", "each drafter"), steps, whole, strict=True)
            if less < all_of
        )
        said = [trained, f"at most {rule.examples:,} examples of validation and of test", f"{rule.timed} timed texts"]
        said.append(f"at most {rule.values} values of each setting")
        note = "; ".join(one for one in said if one)
        task["corpus"]["note"] = f"This is {self.printed}, shortened to the scale `{scale}`: {note}."
        return task


@dataclass(frozen=True)
class Card:
    """A GPU, as its maker's data sheet describes it; bytes, bytes a second, and operations a second of dense matrices."""

    name: str
    memory: float
    bandwidth: float
    float32: float
    """In TF32 where there is that."""
    bfloat16: float
    """0: not native."""


def _fewer_steps(training: Section, rule: Scale) -> Section:
    steps = min(training["steps"], max(rule.fewest, training["steps"] // rule.divisor))
    if steps == training["steps"]:
        return dict(training)
    often = max(1, steps // 4)
    warmup = {"warmup_steps": min(training["warmup_steps"], steps // 10)} if "warmup_steps" in training else {}
    return {**training, **warmup, "steps": steps, "evaluate_every": often, "checkpoint_every": often}


def _first(split: str, most: int) -> str:
    """A slice with at most so many examples of a split, or of the first or last ones of it that a slice names."""
    name, _, part = split.partition("[")
    counted = re.search(r"\d+", part)
    most = min(most, int(counted[0])) if counted else most
    return f"{name}[-{most}:]" if part.startswith("-") else f"{name}[:{most}]"


def _thinned(entry: Section, most: int) -> Section:
    ranges = preset_values(GridSettings(**entry))
    return {"method": entry["method"], "values": {name: _some(values, most) for name, values in ranges.items()}}


def _some(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the values, the ends among them."""
    last = len(values) - 1
    return list(values) if last < most else [values[round(index * last / (most - 1))] for index in range(most)]


def checked_pair(pair: str, variant: Variant) -> tuple[str, str]:
    """Small and large model of a pair `small:large`.

    Raises:
        InputError: a model is none of the papers' or of another kind than the variant's, or the two do not fit each other.
    """
    names = pair.split(":")
    if len(names) != 2 or names[1] not in MODELS or names[0] not in (FIRST_LAYER, *MODELS):
        raise InputError(f"{variant.name} has no pair {pair!r}; {_nearest(pair, variant.pairs)}")
    small, large = names
    if small != FIRST_LAYER and MODELS[small]["tokenizer"] != MODELS[large]["tokenizer"]:
        raise InputError(f"{small} and {large} share no tokenizer; {_nearest(pair, variant.pairs)}")
    if small != FIRST_LAYER and _size(small) >= _size(large):
        raise InputError(f"{small} is not smaller than {large}; {_nearest(pair, variant.pairs)}")
    if _has_encoder(large) != (wanted := _has_encoder(variant.pairs[0].split(":")[1])):
        kind = "encoder-decoder" if wanted else "decoder-only"
        raise InputError(f"{variant.name} takes {kind} models, and {large} is none; {_nearest(pair, variant.pairs)}")
    return small, large


def _size(model: str) -> int:
    """Layers times the square of the width: larger for the larger of two models of one family."""
    shape = MODELS[model]
    layers, width = (next(shape[name] for name in names if name in shape) for names in _DEPTH_AND_WIDTH)
    return int(layers * width**2)


def _has_encoder(model: str) -> bool:
    return "num_layers" in MODELS[model]


def variant_of(data_set: str, paper: str = "") -> Variant:
    """The variant of a data set and a paper, of which `data_set` may be the name with both; without a paper the first one.

    Raises:
        InputError: there is none; names the nearest.
    """
    used = [one for one in VARIANTS if one.data_set == data_set]
    fitting = [one for one in VARIANTS if paper in ("", one.paper) and data_set in (one.data_set, one.name)]
    if fitting:
        return fitting[0]
    if other := next((one for one in VARIANTS if one.name == data_set), None):
        raise InputError(f"{data_set} is a variant of the paper {other.paper}; leave out --paper, or name {other.data_set}")
    if used:
        raise InputError(f"no paper {paper!r} used {data_set}; {_nearest(paper, [one.paper for one in used])}")
    raise InputError(f"there is no variant {data_set!r}; {_nearest(data_set, [*DATA_SETS, *(one.name for one in VARIANTS)])}")


def _nearest(given: str, known: Iterable[str]) -> str:
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}? There are {', '.join(known)}" if near else f"there are {', '.join(known)}"


def _packaged(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_PUBLISHED = _packaged("models.yaml")
MODELS: dict[str, Section] = _PUBLISHED["models"]
"""For each published model its tokenizer, its number format, and its shape as its configuration names it."""
CARDS = {name: Card(name, **values) for name, values in _PUBLISHED["cards"].items()}
VARIANTS = [Variant(**entry) for entry in _packaged("variants.yaml")["variants"]]
