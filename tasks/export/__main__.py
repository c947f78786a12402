"""Write a pair in the form that another engine opens: `python -m tasks.export results/translation/pair --to transformers OUT`.

OUT is a new folder with the models, what the engine needs to draft as the pair's certificate says, and a README.md that shows a
call. What the form cannot carry is printed in one line and written there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.errors import InputError, stage
from tasks.export import to_ctranslate2, to_gguf, to_openvino, to_transformers, to_vllm
from tasks.export.source import read_source
from tasks.files import atomic_folder

FORMATS = {
    "transformers": to_transformers.write,
    "ctranslate2": to_ctranslate2.write,
    "openvino": to_openvino.write,
    "gguf": to_gguf.write,
    "vllm": to_vllm.write,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", type=Path, metavar="PAIR", help="a folder with pair.json, which the report stage writes")
    parser.add_argument("--to", required=True, choices=FORMATS, help="the engine that is to open the pair")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; it must not exist")
    return parser


def main() -> None:
    """Export the pair and say what was left behind."""
    arguments = _parser().parse_args()
    source, out = read_source(arguments.pair), arguments.out
    if out.exists():
        raise InputError(f"{out} exists; name a new folder, or remove it")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.absolute().parent} is no folder; make it, or name another")
    with atomic_folder(out.absolute()) as partial:
        lost = FORMATS[arguments.to](source, partial)
    print(f"{out}: for {arguments.to}; not carried over: {'; '.join(lost)}")


if __name__ == "__main__":
    with stage():
        main()
