"""Compare greedy decoding with llama.cpp, CTranslate2 and `transformers` on one Llama checkpoint, at equal precision.

Why it exists: random shapes and small trained pairs say little of a model that people use, and who decodes on a CPU uses
llama.cpp. Every contender gets the same prompts as token ids, runs in a process of its own at the fastest setting that a short
trial finds (threads, caches, compilation, attention, draft length), and all of them alternate in rounds of one run.

Run `python -m tasks.bench peers FOLDER`, or `--task NAME` for the models and the test inputs of a task: its aligned drafter
then drafts here, in BiLD at the setting that the sweep chose, and for `generate` (assisted generation). The last line is JSON:
by number format, `vanilla_over_best` is the median ratio to the best peer that does not draft, `speculative_over_best` and
`bild_over_best` to the best of all; above 1, decoding here is faster. int8 is compared with Q8_0 of llama.cpp.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tasks.bench.contenders import thread_counts
from tasks.bench.peers.contenders import Checkpoint, Contender, ContenderProcess, all_processes, contenders_of
from tasks.bench.targets import hardware
from tasks.bench.timing import Found, TimedWork, fastest, mean_ratio, median_ratio, time_interleaved
from tasks.corpora.example import read_jsonl
from tasks.corpora.summarization import generate
from tasks.decoding.decoder import Rows
from tasks.decoding.runtimes.packed import FORMATS
from tasks.errors import InputError
from tasks.evaluation.frontier import REPORTED_ON
from tasks.locks import timing_lock
from tasks.models.prompting import encode_sources
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths

OURS = ("vanilla", "speculative", "bild")
_TRIALS = 2
_SEED = 7


def read_prompts(folder: Path, count: int, limit: int) -> Rows:
    """Invented news reports with the request to sum them up, as token ids in the model's chat format where it has one."""
    tokenizer = load_tokenizer(folder)
    reports = generate({"train": count, "validation": 1, "test": 1}, _SEED)["train"]
    asked = [f"Summarise this report in one sentence.\n\n{one.source}" for one in reports]
    if getattr(tokenizer, "chat_template", None):
        asked = [
            tokenizer.apply_chat_template([{"role": "user", "content": one}], tokenize=False, add_generation_prompt=True)
            for one in asked
        ]
    prompts: Rows = [tokenizer(one, add_special_tokens=False)["input_ids"] for one in asked]
    if max(map(len, prompts)) + limit > 1024:
        raise InputError(f"--tokens is {limit}, with prompts of up to {max(map(len, prompts))}; both have 1024 positions")
    return prompts


@dataclass(frozen=True)
class Compared:
    """The models and what they read."""

    folder: Path
    prompts: Rows
    small: Path | None = None
    bild: Found | None = None
    """Settings of BiLD; None without a small model."""


def _compared(arguments: argparse.Namespace) -> Compared:
    """Return the checkpoint that is named, or the pair of a task; raise `InputError` where neither or both are."""
    count = arguments.examples * (arguments.rounds + 1)
    if (arguments.folder is None) == (arguments.task is None):
        raise InputError("name either a folder with a Llama or --task, a task whose models are trained")
    if arguments.task is None:
        return Compared(arguments.folder, read_prompts(arguments.folder, count, arguments.tokens))
    from tasks.bench.trained import bild_settings
    from tasks.config import load

    task, paths = load(arguments.params).task(arguments.task), TaskPaths(arguments.task)
    small, test = paths.model("aligned", task.seeds[0]), paths.split(REPORTED_ON)
    for needed in (paths.model("large"), small, test):
        if not needed.exists():
            raise InputError(f"{needed} is missing; make it with dvc repro align@{arguments.task}")
    sources = [example.source for example in read_jsonl(test)[:count]]
    prompts = encode_sources(load_tokenizer(paths.model("large")), sources, task.text)
    settings, _ = bild_settings(paths.rows("aligned"))
    return Compared(paths.model("large"), prompts, small, dataclasses.asdict(settings))


class FormatRun:
    """One number format: what every contender answered, and how long it took."""

    def __init__(self, prompts: Rows, limit: int, examples: int) -> None:
        self._prompts, self._limit, self._examples = prompts, limit, examples
        self.texts: dict[str, dict[int, list[int]]] = {}
        """By contender: new tokens by the index of the prompt, at the last setting that was run."""

    def timed(self, contender: Contender, setting: Found, process: ContenderProcess) -> TimedWork:
        """Work that returns the milliseconds of a new token: a round's prompts, one after the other, prompts included."""

        def run(round_index: int) -> float:
            chosen = self._chosen(round_index)
            answered = self._ask(process, setting, chosen, self._limit)
            self.texts.setdefault(contender.name, {}).update(zip(chosen, answered["texts"], strict=True))
            return 1000 * float(answered["seconds"]) / sum(map(len, answered["texts"]))

        return run

    def timed_first(self, setting: Found, process: ContenderProcess) -> TimedWork:
        """Work that returns the milliseconds from a prompt to its first new token."""

        def run(round_index: int) -> float:
            answered = self._ask(process, setting, self._chosen(round_index), 1)
            return 1000 * float(answered["seconds"]) / self._examples

        return run

    def _chosen(self, round_index: int) -> list[int]:
        first = round_index * self._examples
        return [(first + offset) % len(self._prompts) for offset in range(self._examples)]

    def _ask(self, process: ContenderProcess, setting: Found, chosen: list[int], limit: int) -> Found:
        return process.ask({"setting": setting, "prompts": [self._prompts[index] for index in chosen], "limit": limit})


def measure_format(
    processes: Mapping[str, ContenderProcess], contenders: Sequence[Contender], run: FormatRun, rounds: int
) -> Found:
    """Try every setting, time each contender's fastest one in interleaved rounds, and form the ratios."""
    rng = random.Random(0)  # noqa: S311 (an order, not a secret)
    present = [one for one in contenders if one.kind in processes]
    works = {
        (one.name, label): run.timed(one, setting, processes[one.kind])
        for one in present
        for label, setting in one.settings.items()
    }
    trial = time_interleaved(works, _TRIALS, rng)
    chosen = {one.name: fastest({label: trial[one.name, label] for label in one.settings}) for one in present}
    finals = {(one.name, False): works[one.name, chosen[one.name]] for one in present}
    finals |= {(one.name, True): run.timed_first(one.settings[chosen[one.name]], processes[one.kind]) for one in present}
    taken = time_interleaved(finals, rounds, rng)
    ms = {one.name: taken[one.name, False] for one in present}
    return {
        **ratios_of(ms, {one.name for one in present if one.drafts}),
        "contenders": {
            one.name: {
                "ms_per_token": round(statistics.median(ms[one.name]), 3),
                "first_token_ms": round(statistics.median(taken[one.name, True]), 1),
                "setting": chosen[one.name],
                "tried": {label: round(statistics.median(trial[one.name, label]), 3) for label in one.settings},
                "opening_seconds": round(processes[one.kind].opened["seconds"], 2),
                "texts_unlike_vanilla": differing(run.texts["vanilla"], run.texts[one.name]),
            }
            for one in present
        },
    }


def ratios_of(ms: Mapping[str, Sequence[float]], drafting: Container[str] = ()) -> Found:
    """The best peers by their medians, our ratios to them, and vanilla's to all others, with Student's intervals over rounds.

    There is no ratio to the best peer where none ran, and no interval of a single round.

    Args:
        ms: Milliseconds a token of each round by contender.
        drafting: Names of the peers that draft, with which vanilla is not compared.
    """
    peers = {name: taken for name, taken in ms.items() if name not in OURS}
    plain = {name: taken for name, taken in peers.items() if name not in drafting}
    best, best_plain = (fastest(some) if some else None for some in (peers, plain))
    found: Found = {"best": best, "best_without_drafts": best_plain}
    for name in (one for one in OURS if one in ms):
        to = best_plain if name == "vanilla" else best
        found[f"{name}_over_best"] = None if to is None else round(median_ratio(ms[name], peers[to]), 3)
    rounds = {name: [their / our for our, their in zip(ms["vanilla"], taken, strict=True)] for name, taken in ms.items()}
    del rounds["vanilla"]
    found["over"] = {name: round(statistics.median(ratios), 3) for name, ratios in rounds.items()}
    several = {name: mean_ratio(ratios)[1] for name, ratios in rounds.items() if len(ratios) > 1}
    return found | {"over_intervals": {name: [round(end, 3) for end in interval] for name, interval in several.items()}}


def differing(ours: Mapping[int, list[int]], theirs: Mapping[int, list[int]]) -> str:
    """How many of the texts that both have made differ, as `n of m`."""
    both = ours.keys() & theirs.keys()
    return f"{sum(ours[index] != theirs[index] for index in both)} of {len(both)}"


def format_lines(number_format: str, found: Found) -> Iterator[str]:
    """A table of a number format."""
    heads = f"{'ms/token':>9} {'first token':>12} {'opens in s':>11} {'vanilla is':>20}"
    yield f"\n{number_format:16}{heads}  unlike vanilla  fastest setting"
    for name, one in found["contenders"].items():
        over = f"{found['over'][name]:.2f} x" if name in found["over"] else ""
        if name in found["over_intervals"]:
            low, high = found["over_intervals"][name]
            over += f" [{low:.2f}, {high:.2f}]"
        times = f"{one['ms_per_token']:>9.2f} {one['first_token_ms']:>9.1f} ms {one['opening_seconds']:>11.2f} {over:>20}"
        yield f"  {name:14}{times}  {one['texts_unlike_vanilla']:14}  {one['setting']}"
    if found["best"] is not None:
        drafted = ", ".join(f"{name} {found[f'{name}_over_best']:.2f}" for name in OURS[1:] if f"{name}_over_best" in found)
        vanilla = found["vanilla_over_best"]
        plain = "" if vanilla is None else f"; vanilla over {found['best_without_drafts']}: {vanilla:.2f}"
        yield f"  over the best peer, {found['best']}: {drafted}{plain}"


def main(given: list[str]) -> None:
    """Print a table for each number format, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="a Llama of transformers with its tokenizer")
    parser.add_argument("--task", help="in place of a folder: the models, test inputs and BiLD setting of this task")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="number formats (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: %(default)s)")
    parser.add_argument("--examples", type=int, default=2, help="prompts of a round (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="most new tokens of a prompt (default: %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of threads to try (default: 1 and all cores)")
    parser.add_argument("--llama-cpp-python", type=Path, help="interpreter of an environment with llama-cpp-python and gguf")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    for name in ("rounds", "examples", "tokens"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    text = json.dumps(compare(arguments, partial(print, flush=True)))
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def compare(arguments: argparse.Namespace, say: partial[None]) -> Found:
    """Measure every number format that was asked for, and print each as it is done."""
    from transformers import AutoConfig

    compared = _compared(arguments)
    config = AutoConfig.from_pretrained(compared.folder)
    if config.model_type != "llama":
        raise InputError(f"{compared.folder} holds a model of type {config.model_type}; name a Llama")
    ends = [config.eos_token_id] if isinstance(config.eos_token_id, int) else list(config.eos_token_id)
    prompts = compared.prompts
    contenders = contenders_of(arguments.threads or thread_counts(1), compared.bild)
    found: Found = {}
    versions: Found = {}
    with tempfile.TemporaryDirectory() as scratch, timing_lock("cpu"):
        model = Checkpoint(compared.folder, ends, Path(scratch), arguments.llama_cpp_python, compared.small)
        for number_format in arguments.formats:
            with all_processes(model, number_format, say) as processes:
                run = FormatRun(prompts, arguments.tokens, arguments.examples)
                found[number_format] = measure_format(processes, contenders, run, arguments.rounds)
                versions |= {kind: one.opened["version"] for kind, one in processes.items() if "version" in one.opened}
            for line in format_lines(number_format, found[number_format]):
                say(line)
    size = {"prompt_tokens": [min(map(len, prompts)), max(map(len, prompts))], "new_tokens": arguments.tokens}
    described = hardware()
    return {**described, "peer_versions": versions, "rounds": arguments.rounds, **size, "formats": found}
