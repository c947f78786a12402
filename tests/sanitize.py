"""The compiled kernel under AddressSanitizer and UBSan: `python -m tests.sanitize [--seconds S] [--seed N]`.

A child process, in which the sanitizers' library is loaded first, compiles the kernel with them and calls it through the
native runtime: with ids and lengths at and past every bound, then for a bounded time on models whose files are damaged at
random. The sanitizers end the process at the first access out of bounds; the status is 1 where damage is no refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tasks.decoding import load_pair
from tasks.decoding.decoder import BrokenLogitsError, GreedyAcceptance
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.runtimes import compiled
from tasks.errors import InputError
from tests.architectures import bart, gemma3, gpt2, llama
from tests.pair_folders import agreeing_pair
from tests.toys import VOCABULARY, toy_t5

FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
REFUSALS = (InputError, ValueError, IndexError, OverflowError)
IDS = (-(2**31), -1, 0, VOCABULARY - 1, VOCABULARY, 2**31 - 1)
LENGTHS = (-(2**31), -1, 0, 1, 63, 64, 65, 10**9)
ACCEPT = GreedyAcceptance(max_surprisal=2.0, keep_agreed=True, min_share=0.0)


def in_child(arguments: list[str]) -> int:
    """Run this module again with the sanitizers' library loaded first; return its status."""
    compiler = compiled.compiler_command()
    if compiler is None:
        raise SystemExit("error: no C++ compiler; install g++")
    # The C++ library too: else the sanitizers meet its exceptions before they know it.
    libraries = [
        subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "LD_PRELOAD": " ".join(str(Path(one).resolve()) for one in libraries),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "XDG_CACHE_HOME": cache,
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "2",
        }
        command = [sys.executable, "-m", "tests.sanitize", "--child", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


def bounds(done: Counter[str]) -> None:
    """Call each function of a decoder with ids and lengths at and past every bound, in each number format."""
    from tasks.decoding.decoder import Runtime
    from tasks.decoding.runtimes.choose import open_decoder

    for model, int8 in itertools.product((toy_t5(2, 1, 2), bart(2), gpt2(2), llama(2), gemma3(2)), (False, True)):
        decoder: Any = open_decoder(model.eval(), "large", VOCABULARY, Runtime("native", int8))

        ragged: list[list[list[int]]] = [[], [[3]], [[3]] * 3, [[], []], [[3] * 70, []]]

        def started(decoder: Any = decoder) -> Any:
            decoder.start(decoder.encode([[3, 4, 1], [5, 1]]))
            decoder.forward([[0, 3], [0]])
            return decoder

        def single(decoder: Any = decoder) -> Any:
            decoder.start(decoder.encode([[3, 4, 1]]))
            return decoder

        calls: list[Any] = [
            *(lambda one=one, decoder=decoder: decoder.encode([[one]]) for one in IDS),
            *(lambda one=one: started().forward([[one], [3]]) for one in IDS),
            *(lambda rows=rows: started().forward(rows) for rows in ragged),
            *(lambda pair=pair: started().rewind(pair) for pair in itertools.product(LENGTHS, repeat=2)),
            *(lambda one=one: started().rewind([one]) for one in LENGTHS),
            *(lambda one=one: started().reorder([one]) for one in (0, 1, 2, 10**9)),
            *(lambda one=one: single().continue_greedily([one], 3, DraftRule()) for one in IDS),
            *(lambda one=one: single().continue_greedily([3], one, DraftRule()) for one in LENGTHS),
            *(lambda one=one: single().check_draft([3], [one, 4], ACCEPT) for one in IDS),
            *(lambda one=one: single().check_draft([one], [], ACCEPT) for one in IDS),
        ]
        for call in calls:
            try:
                call()
                if len(decoder.lengths) == 2:
                    decoder.forward([[3], [4]])
                done["answered"] += 1
            except REFUSALS:
                done["refused"] += 1


def damage(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut or overwrite bytes; half of the places are in the header."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(max(1, min(len(changed), rng.choice((400, len(content))))))
        changed[place : place + rng.choice((0, 1, 8))] = rng.choice((b"\xff" * 8, bytes(8), rng.randbytes(1), b"-1", b"9"))
    return bytes(changed[: rng.randrange(len(changed)) if rng.random() < 0.1 else None])


def reconfigured(content: bytes, rng: random.Random) -> bytes:
    """Replace one value of a JSON object."""
    config = json.loads(content)
    config[rng.choice(list(config))] = rng.choice((-1, 0, 1, 3, 2**31, None, "", [], {}, True, 0.5, VOCABULARY))
    return json.dumps(config).encode()


def readers(seconds: float, seed: int, done: Counter[str]) -> None:
    """Damage a file of a pair, open the pair and decode with it, until the time is over."""
    rng, begun = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pairs = [agreeing_pair(Path(folder) / name, name) for name in ("t5", "llama", "gpt2")]
        for pair in pairs:
            for sums in pair.rglob("SHA256SUMS"):
                sums.unlink()
        while time.monotonic() - begun < seconds:
            pair = rng.choice(pairs)
            file = rng.choice(sorted(one for one in pair.rglob("*") if one.is_file()))
            whole = file.read_bytes()
            as_json = file.suffix == ".json" and rng.random() < 0.7 and whole[:1] == b"{"
            file.write_bytes(reconfigured(whole, rng) if as_json else damage(whole, rng))
            try:
                drawn: dict[str, Any] = {"do_sample": True, "temperature": 1.3, "top_k": 5, "top_p": 0.9}
                with contextlib.redirect_stderr(None):
                    load_pair(pair).generate(["ab cd", "ba dc fe"], **(drawn if rng.random() < 0.5 else {}))
                done["read"] += 1
            except (InputError, BrokenLogitsError):
                done["refused"] += 1
            except Exception as error:  # noqa: BLE001 (counted, and shown by its kind)
                done[f"{file.name}: {type(error).__name__} {str(error)[:80]!r}"] += 1
            file.write_bytes(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of damaged files (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (default: 0)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.child:
        return in_child(sys.argv[1:])
    os.environ.pop("LD_PRELOAD", None)  # the compiler takes minutes with it
    compiled.FLAGS += FLAGS
    # A library that was loaded without the sanitizers would say nothing.
    assert compiled.library() is not None, "the kernel does not compile with the sanitizers"
    torch.set_num_threads(2)
    called, read = Counter[str](), Counter[str]()
    bounds(called)
    print(f"bounds: {dict(called)}", flush=True)
    readers(arguments.seconds, arguments.seed, read)
    print(json.dumps({"bounds": called, "files": read}, indent=2))
    return 0 if read.keys() <= {"read", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
