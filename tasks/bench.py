"""How fast decoding is here, beside `transformers.generate` on the same weights and inputs, in one run.

Why it exists: a speed-up is worth something only against a baseline that is no slower than what everybody has. So vanilla
decoding, which every result of this project is a ratio of, is set against `generate`, alone and batched; then the methods
against vanilla. Pairs are timed one right after the other and their median ratio is given; above 1, we are faster.

`python -m tasks.bench --task translation` after `make repro`; the last line is JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tasks.corpora.example import read_jsonl
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.strategies import Request, decode
from tasks.errors import stage
from tasks.machine import set_up, timing_lock
from tasks.models.checkpoints import load_model
from tasks.models.pair import vocabulary_of
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.paths import TaskPaths

_BATCH = 32


def rival(model: Any, sources: list[list[int]], limit: int) -> torch.Tensor:
    """`transformers.generate`, greedy, with the dynamic cache that it is fastest with on a CPU."""
    from transformers import DynamicCache, EncoderDecoderCache

    encoded = model.config.is_encoder_decoder
    widest = max(map(len, sources))

    def padded(rows: list[list[int]]) -> torch.Tensor:
        # A prompt is padded on the left, a source that is encoded on the right.
        gaps = [[0] * (widest - len(row)) for row in rows]
        filled = [row + gap if encoded else gap + row for row, gap in zip(rows, gaps, strict=True)]
        return torch.tensor(filled, device=model.device)

    output: torch.Tensor = model.generate(
        input_ids=padded(sources),
        attention_mask=padded([[1] * len(source) for source in sources]),
        max_new_tokens=limit,
        do_sample=False,
        past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()) if encoded else DynamicCache(),
    )
    return output


def median_ratio(ours: Callable[[int], object], theirs: Callable[[int], object], rounds: int, chance: random.Random) -> float:
    """Median over the rounds of their time over ours, in an order drawn anew each round, after one untimed round."""
    ratios = []
    for turn in range(rounds + 1):
        seconds = {}
        for run in chance.sample([ours, theirs], 2):
            begun = time.perf_counter()
            run(turn)
            seconds[run] = time.perf_counter() - begun
        ratios.append(seconds[theirs] / seconds[ours])
    return statistics.median(ratios[1:])


def main() -> None:
    """Prints a line a comparison, and all of them as JSON."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="timed pairs of each comparison (default: %(default)s)")
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    device, dtype = set_up(params.machine)
    small_model, large_model = (load_model(paths.model(name), device, dtype) for name in ("aligned", "large"))
    tokenizer = load_tokenizer(paths.model("large"))
    pair = open_pair(small_model, large_model, vocabulary_of(tokenizer, small_model, large_model))
    examples = read_jsonl(paths.split("validation"))
    sources = encode(tokenizer, [one.source for one in examples], task.text.max_source_tokens)
    request = Request(task.text.max_target_tokens)

    def here(method: str, settings: Any, count: int = 1) -> Callable[[int], object]:
        return lambda turn: decode(method, settings, pair, _window(sources, turn, count), request)

    def there(count: int = 1) -> Callable[[int], object]:
        return lambda turn: rival(large_model, _window(sources, turn, count), request.max_new_tokens)

    vanilla = here("vanilla_large", VanillaSettings())
    comparisons = {
        "vanilla_over_generate": (vanilla, there()),
        "batched_over_generate": (here("vanilla_large", VanillaSettings(), _BATCH), there(_BATCH)),
        "bild_over_vanilla": (here("bild", BildSettings()), vanilla),
        "speculative_over_vanilla": (here("speculative", SpeculativeSettings()), vanilla),
    }
    chance = random.Random(0)  # noqa: S311 (an order, not a secret)
    result: dict[str, Any] = {"task": arguments.task, "device": device.type, "threads": torch.get_num_threads()}
    with timing_lock(device.type):
        for name, (ours, theirs) in comparisons.items():
            result[name] = round(median_ratio(ours, theirs, arguments.rounds, chance), 3)
            print(f"{name}: {result[name]}", flush=True)
    print(json.dumps(result))


def _window(sources: list[list[int]], turn: int, count: int) -> list[list[int]]:
    return [sources[(turn * count + offset) % len(sources)] for offset in range(count)]


if __name__ == "__main__":
    with stage():
        main()
