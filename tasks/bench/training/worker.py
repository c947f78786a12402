"""Runs each comparison, and each memory measurement, in its own process: reads a request from standard input, prints JSON."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from tasks import supervisor
from tasks.bench import memory
from tasks.bench.timing import Found
from tasks.bench.training.contenders import LENGTHS, Contender, DraftlineContender, TrainerContender, dataset_of
from tasks.bench.training.pausable import PausableLoop
from tasks.bench.training.recipes import Recipe, load_recipe
from tasks.evaluation.timing import synchronised_clock

_WARM = 3
"""Untimed first steps, which allocate memory."""
_MIB = 1 << 20


def run_in_process(what: str, recipe: Recipe, **more: object) -> Found:
    """Call one of the functions below, by name, in its own process."""
    request = json.dumps({"what": what, "recipe": asdict(recipe), **more})
    done = supervisor.run([sys.executable, "-m", "tasks.bench.training.worker"], text=request)
    if done.returncode:
        raise RuntimeError(f"{what} of {recipe.name} failed: {done.stderr.strip()[-500:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


class Timed:
    """A contender in a pausable loop."""

    def __init__(self, side: Contender, clock: Callable[[], float]) -> None:
        self.side, self.turns = side, PausableLoop(side.loop, clock)
        self.turns.advance(_WARM)

    def speed(self, steps: int) -> float:
        """Tokens per second of the next steps."""
        before = self.side.learned.tokens
        seconds = self.turns.advance(steps)
        return (self.side.learned.tokens - before) / seconds


@contextmanager
def _open(recipe: Recipe, names: list[str]) -> Iterator[dict[str, Timed]]:
    """The sides of these names: "ours", or what Trainer groups by. Ours comes last: it makes this process one of a group."""
    with ExitStack() as stack:
        found = {}
        for name in sorted(names, key="ours".__eq__):
            folder, opened = Path(stack.enter_context(tempfile.TemporaryDirectory())), load_recipe(recipe)
            side = (
                DraftlineContender(opened, folder)
                if name == "ours"
                else TrainerContender(opened, folder, dataset_of(opened.examples, name))
            )
            found[name] = Timed(side, synchronised_clock(opened.device.type))
            stack.callback(found[name].turns.stop)
        yield found


def tried(recipe: Recipe, steps: int, rounds: int) -> dict[str, float]:
    """Tokens a second of Trainer, grouped by each of `LENGTHS`: the median over rounds, interleaved."""
    with _open(recipe, list(LENGTHS)) as sides:
        speeds = _interleaved(sides, steps, rounds)
    return {name: statistics.median(found) for name, found in speeds.items()}


def compared(recipe: Recipe, steps: int, rounds: int, length: str) -> Found:
    """Ours and Trainer's in turns of `steps`, the order drawn anew each round, after a round that does not count."""
    with _open(recipe, ["ours", length]) as sides:
        speeds = _interleaved(sides, steps, rounds + 1)
        ours, theirs = speeds["ours"][1:], speeds[length][1:]
        losses = {"ours": sides["ours"].side.learned.losses, "trainer": sides[length].side.learned.losses}
    return {**ratios(ours, theirs), "losses": {name: _ends(found) for name, found in losses.items()}}


def ratios(ours: list[float], theirs: list[float]) -> Found:
    """The median of the rounds' ratios with the least and the most, and each side's median tokens a second."""
    found = [our / their for our, their in zip(ours, theirs, strict=True)]
    return {
        "ratio": round(statistics.median(found), 3),
        "least": round(min(found), 3),
        "most": round(max(found), 3),
        "ours": round(statistics.median(ours), 1),
        "trainer": round(statistics.median(theirs), 1),
    }


def peak(recipe: Recipe, steps: int, side: str) -> dict[str, float]:
    """Peak memory in MiB, of this process or of the GPU, when this contender trains alone."""
    with _open(recipe, [side]) as sides:
        sides[side].speed(steps)
        if torch.cuda.is_available():
            return {"mib": round(torch.cuda.max_memory_allocated() / _MIB, 1)}
        return {"mib": round(memory.peak_kib() / 1024, 1)}


def _interleaved(sides: Mapping[str, Timed], steps: int, rounds: int) -> dict[str, list[float]]:
    rng, found = random.Random(0), dict[str, list[float]]()  # noqa: S311 (an order, not a secret)
    for _ in range(rounds):
        for name in rng.sample(sorted(sides), len(sides)):
            found.setdefault(name, []).append(sides[name].speed(steps))
    return found


def _ends(losses: list[float]) -> list[float]:
    """The first and the last loss."""
    return [round(loss, 3) for loss in (*losses[:1], *losses[-1:])]


def main() -> None:
    """Answer the request."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    request = json.loads(sys.stdin.read())
    works: dict[str, Callable[..., object]] = {"tried": tried, "compared": compared, "peak": peak}
    print(json.dumps(works[request.pop("what")](Recipe(**request.pop("recipe")), **request)))


if __name__ == "__main__":
    main()
