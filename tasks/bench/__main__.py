"""Run a benchmark: `python -m tasks.bench NAME`, with its options after the name.

    decoding   decoding against transformers.generate and CTranslate2 on the same weights, one text at a time and in batches
    gpu        the same on a CUDA GPU, with torch and transformers alone

Each logs its results as they are measured, and prints JSON. `--quick` runs every part at small sizes, to see that
it works; the numbers then mean nothing. The exit status is 1 where two contenders that must generate the same tokens do not.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tasks.bench.harness import UnequalError
from tasks.console import command_parser, log
from tasks.errors import stage

BENCHMARKS = ("decoding", "gpu")


def main(given: Sequence[str]) -> int:
    """Run the named benchmark and return the exit status."""
    if given[:1] and given[0] in BENCHMARKS:
        try:
            # One benchmark needs packages that another one does without, so only its own module is imported.
            importlib.import_module(f"tasks.bench.{given[0]}").main(given[1:])
        except UnequalError as error:
            log.error("%s", error)
            return 1
        return 0
    parser = command_parser(__doc__)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.parse_args(given)
    return 2


if __name__ == "__main__":
    with stage():
        raise SystemExit(main(sys.argv[1:]))
