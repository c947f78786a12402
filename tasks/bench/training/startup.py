"""Times a process from its start to the end of its first training step: `tasks.finetune`, and a script that uses Trainer.

Each runs in a process of its own: `python -m tasks.bench.training.startup CONTENDER TASK PARAMS MODEL STARTED`. STARTED is the
monotonic time at which the process was requested. Imports are inside the functions, since each contender pays for its own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import supervisor

if TYPE_CHECKING:
    from tasks.training.data import ExampleColumns
    from tasks.training.settings import TrainingSettings

PARTS = ("imports", "files", "first step")
"""Import of modules; tokenising text and creating a model; optimiser, engine and one step."""


def startup_seconds(contender: str, task: str, params: str, model: str, rounds: int) -> dict[str, float]:
    """Return the seconds of each part and of all: medians over fresh processes, after one that warms the file cache."""
    found = [_once(contender, task, params, model) for _ in range(rounds + 1)][1:]
    parts = {part: round(statistics.median(one[part] for one in found), 2) for part in PARTS}
    return {**parts, "all": round(statistics.median(sum(one.values()) for one in found), 2)}


def _once(contender: str, task: str, params: str, model: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tasks.bench.training.startup", contender, task, params, model, repr(time.monotonic())]
    done = supervisor.run(command)
    if done.returncode:
        raise RuntimeError(f"starting {contender} failed: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class _FirstStep(BaseException):
    """Ends a loop after its first step; loops do not catch it."""


class _Laps:
    def __init__(self, started: float) -> None:
        self._last, self._parts, self._steps = started, list[float](), 0

    def lap(self) -> None:
        now = time.monotonic()
        self._parts.append(now - self._last)
        self._last = now

    def begin(self) -> None:
        """Called when a step begins; the second step ends the measurement."""
        self._steps += 1
        if self._steps == 2:
            self.lap()
            raise _FirstStep

    def as_json(self) -> str:
        return json.dumps(dict(zip(PARTS, self._parts, strict=True)))


def _ours(task: str, params: str, model: str, laps: _Laps) -> None:
    """Train as `tasks.finetune` does, without recording."""
    from tasks.bench.training.contenders import DraftlineContender
    from tasks.bench.training.recipes import LoadedRecipe, endless
    from tasks.config import load
    from tasks.paths import TaskPaths
    from tasks.training.context import TrainingJob, open_context

    laps.lap()
    loaded, paths = load(Path(params)), TaskPaths(task)
    chosen = loaded.task(task)
    settings: TrainingSettings = getattr(chosen.finetune, model)
    job = TrainingJob(
        name=model,
        stage="finetune",
        paths=paths,
        model=getattr(chosen.models, model),
        training=settings,
        text=chosen.text,
        machine=loaded.machine,
        metric=chosen.metric,
        train_file=paths.split("train"),
        held_out_file=paths.split("validation"),
    )
    read = open_context(job)
    laps.lap()
    opened = LoadedRecipe(read.model, read.tokenizer, read.examples, endless(settings, settings.optimizer), read.device)
    with tempfile.TemporaryDirectory() as folder:
        DraftlineContender(opened, Path(folder)).loop(laps.begin)


def _theirs(task: str, params: str, model: str, laps: _Laps) -> None:
    """Train as the guides of `transformers` show: `datasets` reads and tokenises, Trainer trains."""
    import datasets
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments  # noqa: F401 (imported as such a script does)

    from tasks.bench.training.contenders import TrainerContender
    from tasks.bench.training.recipes import LoadedRecipe, endless
    from tasks.config import load
    from tasks.machine import set_up
    from tasks.models.checkpoints import initial_model
    from tasks.models.prompting import encode_sources
    from tasks.models.tokenizers import encode, load_tokenizer
    from tasks.paths import CACHE, TaskPaths
    from tasks.training.data import TokenDataset

    laps.lap()
    loaded, paths = load(Path(params)), TaskPaths(task)
    chosen, device = loaded.task(task), set_up(loaded.machine)[0]
    settings: TrainingSettings = getattr(chosen.finetune, model)
    tokenizer = load_tokenizer(paths.tokenizer)
    start = initial_model(getattr(chosen.models, model), len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)

    def tokenise(rows: ExampleColumns) -> dict[str, Sequence[object]]:
        sources = encode_sources(tokenizer, rows["source"], chosen.text)
        targets = encode(tokenizer, [row[0] for row in rows["references"]], chosen.text.max_target_tokens)
        masks = [[1] * len(source) for source in sources]
        return {"input_ids": sources, "attention_mask": masks, "labels": targets, "length": [len(row) for row in targets]}

    datasets.disable_progress_bars()
    raw = datasets.Dataset.from_json(str(paths.split("train")), keep_in_memory=True, cache_dir=str(CACHE / "datasets"))
    read = raw.map(tokenise, batched=True, remove_columns=raw.column_names, keep_in_memory=True)
    laps.lap()
    opened = LoadedRecipe(start.to(device), tokenizer, TokenDataset([], [], 0), endless(settings, settings.optimizer), device)
    with tempfile.TemporaryDirectory() as folder:
        TrainerContender(opened, Path(folder), read).loop(laps.begin)


def main() -> None:
    """Run one contender to the end of its first step."""
    contender, task, params, model, started = sys.argv[1:]
    laps = _Laps(float(started))
    try:
        {"ours": _ours, "trainer": _theirs}[contender](task, params, model, laps)
    except _FirstStep:
        print(laps.as_json(), flush=True)


if __name__ == "__main__":
    main()
