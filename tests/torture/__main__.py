"""Faults inside the work of every stage: `python -m tests.torture [--faults N] [--seed S] [--stages NAME,…]`.

Each stage runs on a tiny project, undisturbed first. Then faults are drawn by the seed: one of `trials.HARMS`, at a point where
the stage changes a file, or in a file that it reads. After each, the stage runs again, and the project is compared with the
undisturbed one. The last line is JSON; the exit status is 1 unless `lost`, `doubled`, `wrong`, `hung` and `accepted` are all 0:

- `lost`: a file, row or record of MLflow is missing, or the stage does not end well when it is run again;
- `doubled`: a row or record is there twice;
- `wrong`: another content, a record that stays open, or a traceback where one line is due;
- `hung`: a process that does not end, or outlives its stage;
- `accepted`: a damaged file that was read without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.torture.children import Forks, compiled, forks
from tests.torture.project import STAGES, Undisturbed, build, can_mount
from tests.torture.trials import COLUMNS, HARMS, KINDS, Fault, Outcome, Trial

_WEIGHTS = {"prepare": 8, "finetune small": 5, "finetune large": 1, "calibrate": 5, "control": 2, "align": 4}
_WEIGHTS |= {"sweep": 2, "report": 2, "kernel": 1, "dvc": 6, "flow": 1}
"""How often each stage is disturbed."""
LIMITS = {"threads": 250, "megabytes": 12_000}
"""Of all processes together: the harness must not take its machine down."""


def drawn(number: int, seed: int, stages: Sequence[str], left_out: Container[str] = ()) -> list[Fault]:
    """Draw faults: each kind but those left out as often as the others in each stage, stages by their weights."""
    rng = random.Random(seed)
    weights = [_WEIGHTS[stage] for stage in stages]
    left: dict[str, list[str]] = {}
    found = []
    for index in range(number):
        stage = rng.choices(stages, weights)[0]
        if not left.get(stage):
            left[stage] = [kind for kind in KINDS.get(stage, HARMS) if kind not in left_out]
            rng.shuffle(left[stage])
        found.append(Fault(index, stage, left[stage].pop(), f"{seed} {index}"))
    return found


def run_all(faults: Sequence[Fault], known: dict[str, Undisturbed], folder: Path, workers: Sequence[Forks]) -> list[Outcome]:
    """Try the faults, as many at a time as there are processes that fork; say what went wrong as it does."""
    waiting: queue.SimpleQueue[Fault] = queue.SimpleQueue()
    for fault in faults:
        waiting.put(fault)
    done: list[Outcome] = []

    def work(own: Forks) -> None:
        while True:
            try:
                fault = waiting.get_nowait()
            except queue.Empty:
                return
            place = folder / f"fault{fault.number}"
            outcome = Trial(fault, known[fault.stage], place, own).run()
            done.append(outcome)
            line = f"{fault.number}: {fault.stage}, {HARMS[fault.kind]} ({outcome.place or 'not reached'})"
            print(line, *(f"\n  {column}: {reason}" for column, reason in outcome.found), flush=True)
            if not outcome.found:
                shutil.rmtree(place)

    with ThreadPoolExecutor(len(workers)) as pool:
        for ended in [pool.submit(work, own) for own in workers]:
            ended.result()
    return done


@contextlib.contextmanager
def bounded() -> Iterator[Counter[str]]:
    """What all processes took at most during the block, `threads` and `megabytes`; more than the limits ends the program."""
    taken, ended = Counter[str](), threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            now = Counter[str]()
            below = psutil.Process().children(recursive=True)
            for one in below:
                with contextlib.suppress(psutil.Error):
                    now.update(threads=one.num_threads(), megabytes=one.memory_info().rss >> 20)
            taken.update(now - taken)
            if over := [name for name, most in LIMITS.items() if now[name] > most]:
                print(f"stopped: {over[0]} {now[over[0]]}, at most {LIMITS[over[0]]}", file=sys.stderr, flush=True)
                for one in below:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield taken
    finally:
        ended.set()
        watcher.join()


def table(done: Sequence[Outcome]) -> str:
    """What was tried, as a table in Markdown: fault, stages, tries, what went wrong."""
    lines = ["| fault | where | tries | result |", "|---|---|---|---|"]
    for kind, words in HARMS.items():
        ours = [one for one in done if one.fault.kind == kind and one.place]
        if not ours:
            continue
        stages = Counter(one.fault.stage for one in ours)
        where = ", ".join(f"{stage} {stages[stage]}" for stage in STAGES if stages[stage])
        wrong = Counter(column for one in ours for column in {column for column, _ in one.found})
        lines.append(
            f"| {words} | {where} | {len(ours)} | {', '.join(f'{n} {c}' for c, n in wrong.items()) or 'as undisturbed'} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Try the faults and print what came of them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=304, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", default=",".join(STAGES), help="their names, separated by commas (default: all)")
    parser.add_argument("--only", default="", help="the faults of these numbers alone, separated by commas")
    parser.add_argument("--jobs", type=int, default=min(3, (os.cpu_count() or 1) + 1), help="at a time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to work, and to leave what went wrong (default: a temporary folder)")
    options = parser.parse_args(argv)
    stages = options.stages.split(",")
    if unknown := [stage for stage in stages if stage not in STAGES]:
        parser.error(f"there is no stage {unknown[0]}; there are {', '.join(STAGES)}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="draftline-torture-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with bounded() as taken, forks(compiled(folder), options.jobs) as workers:
            known = build(folder / "undisturbed", workers, stages)
            left_out = () if can_mount(folder / "mounted") else ("small",)
            faults = drawn(options.faults, options.seed, stages, left_out)
            only = {int(number) for number in options.only.split(",") if number}
            done = run_all([one for one in faults if not only or one.number in only], known, folder, workers)
    found = Counter(column for one in done for column in {column for column, _ in one.found})
    counts = {"faults": sum(bool(one.place) for one in done)} | {column: found[column] for column in COLUMNS}
    more = {"unfired": sum(not one.place for one in done), "seed": options.seed, "seconds": round(time.monotonic() - begun)}
    print(table(done))
    for kind in left_out:
        print(f"left out, since mounting is refused here: {HARMS[kind]}")
    print(json.dumps(counts | more | taken))
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
