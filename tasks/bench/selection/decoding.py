"""Make a pool: decode fresh examples by replaying a grid with trained models, and predict each setting's speed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.bench.selection.pool import Arm, Pool
from tasks.corpora.example import Example, read_jsonl
from tasks.corpora.settings import EmbeddedSettings
from tasks.decoding.decoder import Runtime
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import CALIBRATED, ORACLES, SamplingSettings, VanillaSettings
from tasks.errors import InputError
from tasks.evaluation.quality import example_statistics
from tasks.evaluation.sweeping.costs import Costs, measure_costs
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split
from tasks.evaluation.sweeping.point_evaluator import is_vanillas_output
from tasks.evaluation.sweeping.replaying import replay_grid
from tasks.evaluation.timing import on_threads
from tasks.lineage import lineage
from tasks.machine import set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_pair, vocabulary_size
from tasks.models.tokenizers import load_tokenizer
from tasks.schema import Params, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SEED_STEP = 1_000_003
"""Added to the corpus seed for fresh examples."""
_CHUNK = 500
"""Examples replayed together; their predictions are forgotten afterwards."""
_COST_SOURCES = 24


def fresh_examples(settings: EmbeddedSettings | None, count: int, known: Iterable[Path]) -> list[Example]:
    """New examples of an embedded corpus, with several references like those of its validation split.

    Args:
        settings: of the corpus.
        count: how many.
        known: splits whose sources are left out.

    Raises:
        InputError: the corpus is not embedded, or it has too few further examples.
    """
    if settings is None:
        raise InputError("the corpus is not embedded, so that no fresh examples can be generated; name a file by --examples")
    sources = {example.source for path in known if path.is_file() for example in read_jsonl(path)}
    # The sources of the splits are drawn from the same grammar, so that some of the fresh ones are known.
    drawn = import_module(f"tasks.corpora.{settings.name}").generate(
        {"train": 0, "validation": 0, "test": count + count // 4 + 100}, settings.seed + _SEED_STEP
    )
    found = [example for example in drawn["test"] if example.source not in sources][:count]
    if len(found) < count:
        raise InputError(f"only {len(found)} of {count} fresh examples were found; ask for fewer")
    return found


def make_pool(
    params: Params, task: Task, large: Path, drafters: Mapping[str, Path], points: Sequence[SweepPoint], examples: list[Example]
) -> Pool:
    """Decode the examples with every setting of every drafter.

    Args:
        params: machine settings.
        task: text lengths, metric, sampling.
        large: folder of the large model.
        drafters: folder of each small model by the name of its arm.
        points: the grid; settings that cannot be replayed, and oracles, are left out.
        examples: of the pool.

    Raises:
        InputError: the models do not fit each other.
    """
    device, dtype = set_up(params.machine)
    tokenizer, model = load_tokenizer(large), load_model(large, device, dtype)
    request = Request(task.text.max_target_tokens, SamplingSettings(), task.sweep.seed)
    arms: list[Arm] = []
    vanilla: NDArray[np.generic] | None = None
    for name, folder in drafters.items():
        check_pair(load_tokenizer(folder), tokenizer, str(folder), str(large))
        small = load_model(folder, device, dtype)
        runtime = Runtime.of(params.machine.runtime, params.machine.dtype)
        pair = open_pair(small, model, vocabulary_size(tokenizer, small, model), [], runtime)
        decoded = _Arm(pair, request, task, tokenizer, [one for one in points if _replayable(one)])
        with on_threads(task.sweep.latency_threads):
            vanilla = decoded.run(examples, f"pool {name}")
        arms.append(decoded.finish(name))
    if vanilla is None:
        raise InputError("a pool needs at least one drafter")
    origin = lineage(inputs=[str(large), *map(str, drafters.values())])
    about = {"examples": str(len(examples)), "processor": str(origin.get("host_cpu", "")), "made": time.strftime("%Y-%m-%d")}
    return Pool(vanilla, arms, about)


def _replayable(point: SweepPoint) -> bool:
    """Whether a setting may be chosen, and drafts from nothing but the small model."""
    return point.method not in ORACLES and getattr(point.settings, "drafter", "small") not in CALIBRATED


class _Arm:
    """Replays the grid of one pair, chunk by chunk."""

    def __init__(
        self, pair: Pair, request: Request, task: Task, tokenizer: PreTrainedTokenizerBase, points: list[SweepPoint]
    ) -> None:
        self._pair, self._request, self._task, self._tokenizer, self._points = pair, request, task, tokenizer, points
        self._statistics: dict[int, list[NDArray[np.generic]]] = {}
        self._latencies: dict[int, list[float]] = {}
        self._vanilla_latencies: list[float] = []
        self._costs: Costs | None = None

    def run(self, examples: list[Example], label: str) -> NDArray[np.generic]:
        """Replay all examples, and return the statistics of vanilla."""
        vanilla = []
        for begin in range(0, len(examples), _CHUNK):
            text = self._task.text
            chunk = examples[begin : begin + _CHUNK]
            split = Split("pool", chunk, self._tokenizer, text, self._task.sweep)
            vanilla.append(self._chunk(split, f"{label} {begin}"))
        return np.concatenate(vanilla)

    def _chunk(self, split: Split, label: str) -> NDArray[np.generic]:
        if self._costs is None:
            self._costs = measure_costs(self._pair, split.sources[:_COST_SOURCES], self._request, time.perf_counter)
        outputs = Outputs("decoded")
        for example, source in enumerate(split.sources):
            [generation] = decode(VANILLA.method, VanillaSettings(), self._pair, [source], self._request)
            outputs.add(example, generation, timed=example in split.timed)
        with tempfile.TemporaryDirectory() as folder:
            replayed = replay_grid(self._points, self._pair, self._request, split, Path(folder), label, [outputs.tokens])
        for index, found in replayed.outputs.items():
            self._statistics.setdefault(index, []).append(self._scored(found, split))
            self._latencies.setdefault(index, []).append(self._costs.latency(self._points[index].method, found.timed(split)))
        self._vanilla_latencies.append(self._costs.latency(VANILLA.method, outputs.timed(split)))
        return self._scored(outputs, split)

    def _scored(self, outputs: Outputs, split: Split) -> NDArray[np.generic]:
        texts = self._tokenizer.batch_decode(outputs.tokens, skip_special_tokens=True)
        return example_statistics(texts, [one.references for one in split.examples], self._task.metric)

    def finish(self, name: str) -> Arm:
        """The arm, without settings that failed on some example."""
        chunks = len(self._vanilla_latencies)
        kept = [index for index, parts in self._statistics.items() if len(parts) == chunks]
        statistics = np.stack([np.concatenate(self._statistics[index]) for index in kept])
        vanilla = float(np.mean(self._vanilla_latencies))
        return Arm(
            name,
            statistics.astype(np.int16) if statistics.dtype == np.int32 else statistics.astype(np.float32),
            np.array([vanilla / np.mean(self._latencies[index]) for index in kept]),
            np.array([is_vanillas_output(self._points[index]) for index in kept]),
            [str(self._points[index]) for index in kept],
        )
