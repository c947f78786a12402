"""Runs a comparison or a memory measurement in a process of its own: it reads a request from standard input and prints JSON."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter

from tasks import supervisor
from tasks.bench import memory
from tasks.bench.training.contenders import LENGTHS, Contender, DraftlineContender, TrainerContender, dataset_of
from tasks.bench.training.pausable import PausableLoop
from tasks.bench.training.recipes import Recipe, load_recipe
from tasks.evaluation.timing import synchronised_clock

_WARM_UP_STEPS = 3
"""Untimed first steps, which allocate memory."""
_MIB = 1 << 20
OURS = "ours"
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """Speed of this project's loop over Trainer's, by round, and the median speeds in tokens per second."""

    ratio: float
    """Median over rounds."""
    least: float
    most: float
    ours: float
    trainer: float


@dataclass(frozen=True, kw_only=True)
class LoopComparison(SpeedRatio):
    """Both loops on the same model and text."""

    losses: dict[str, list[float]]
    """The first and the last loss of each contender, in nats per target token."""


def run_in_process(kind: type[_T], what: str, recipe: Recipe, **more: object) -> _T:
    """Call one of the functions below, by name, in a process of its own; return its result, which is of type `kind`."""
    request = json.dumps({"what": what, "recipe": asdict(recipe), **more})
    done = supervisor.run([sys.executable, "-m", "tasks.bench.training.worker"], text=request)
    if done.returncode:
        raise RuntimeError(f"{what} of {recipe.name} failed: {done.stderr.strip()[-500:]}")
    return TypeAdapter(kind).validate_json(done.stdout.splitlines()[-1])


class TimedContender:
    """A contender in a pausable loop."""

    def __init__(self, contender: Contender, clock: Callable[[], float]) -> None:
        self.learned, self.loop = contender.learned, PausableLoop(contender.loop, clock)
        self.loop.advance(_WARM_UP_STEPS)

    def speed(self, steps: int) -> float:
        """Run the next steps and return their speed in tokens per second."""
        before = self.learned.tokens
        seconds = self.loop.advance(steps)
        return (self.learned.tokens - before) / seconds


@contextmanager
def _open(recipe: Recipe, names: list[str]) -> Iterator[dict[str, TimedContender]]:
    """Open contenders by name: `OURS`, or the length by which Trainer groups.

    Ours is opened last, since DeepSpeed makes this process one of a group, which slows Trainer down.
    """
    with ExitStack() as stack:
        found = {}
        for name in sorted(names, key=OURS.__eq__):
            folder, opened = Path(stack.enter_context(tempfile.TemporaryDirectory())), load_recipe(recipe)
            contender = (
                DraftlineContender(opened, folder)
                if name == OURS
                else TrainerContender(opened, folder, dataset_of(opened.examples, name))
            )
            found[name] = TimedContender(contender, synchronised_clock(opened.device.type))
            stack.callback(found[name].loop.stop)
        yield found


def tried(recipe: Recipe, steps: int, rounds: int) -> dict[str, float]:
    """Return Trainer's tokens per second when it groups by each of `LENGTHS`: the median over interleaved rounds."""
    with _open(recipe, list(LENGTHS)) as contenders:
        speeds = _interleaved(contenders, steps, rounds)
    return {name: statistics.median(found) for name, found in speeds.items()}


def compared(recipe: Recipe, steps: int, rounds: int, length: str) -> LoopComparison:
    """Time both loops in rounds of `steps` each, in an order drawn anew for each round, after an untimed round."""
    with _open(recipe, [OURS, length]) as contenders:
        speeds = _interleaved(contenders, steps, rounds + 1)
        losses = {"ours": contenders[OURS].learned.losses, "trainer": contenders[length].learned.losses}
        ends = {name: _ends(found) for name, found in losses.items()}
    return LoopComparison(**asdict(speed_ratio(speeds[OURS][1:], speeds[length][1:])), losses=ends)


def speed_ratio(ours: list[float], theirs: list[float]) -> SpeedRatio:
    """Return the ratio of speeds in tokens per second; each round is compared with itself."""
    found = [our / their for our, their in zip(ours, theirs, strict=True)]
    return SpeedRatio(
        ratio=round(statistics.median(found), 3),
        least=round(min(found), 3),
        most=round(max(found), 3),
        ours=round(statistics.median(ours), 1),
        trainer=round(statistics.median(theirs), 1),
    )


def peak(recipe: Recipe, steps: int, contender: str) -> float:
    """Return the peak memory, in MiB, of this process or of the GPU when this contender trains alone."""
    with _open(recipe, [contender]) as contenders:
        contenders[contender].speed(steps)
        if torch.cuda.is_available():
            return round(torch.cuda.max_memory_allocated() / _MIB, 1)
        return round(memory.peak_kib() / 1024, 1)


def _interleaved(contenders: Mapping[str, TimedContender], steps: int, rounds: int) -> dict[str, list[float]]:
    rng, found = random.Random(0), dict[str, list[float]]()  # noqa: S311 (an order, not a secret)
    for _ in range(rounds):
        for name in rng.sample(sorted(contenders), len(contenders)):
            found.setdefault(name, []).append(contenders[name].speed(steps))
    return found


def _ends(losses: list[float]) -> list[float]:
    """Return the first and the last loss."""
    return [round(loss, 3) for loss in (*losses[:1], *losses[-1:])]


def main() -> None:
    """Answer the request."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    request = json.loads(sys.stdin.read())
    functions: dict[str, Callable[..., object]] = {"tried": tried, "compared": compared, "peak": peak}
    print(json.dumps(functions[request.pop("what")](Recipe(**request.pop("recipe")), **request), default=asdict))


if __name__ == "__main__":
    main()
