"""Stage `calibrate`: the large model's greedy outputs for every training input (BiLD, section 3.5.1).

`python -m tasks.calibrate --task translation`
"""

from __future__ import annotations

import shutil
from typing import Any

from tasks.corpora.example import Example, read_jsonl, write_jsonl
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Decoder
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.opened import Runtime
from tasks.decoding.settings import CalibrateSettings, VanillaSettings
from tasks.decoding.strategies import Pair, Request
from tasks.errors import InputError, stage
from tasks.machine import set_up, working_lock
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_lengths, vocabulary_of
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.paths import TaskPaths


def label(
    examples: list[Example], large: Decoder, tokenizer: Any, text: TextSettings, settings: CalibrateSettings
) -> list[Example]:
    """The examples with the large model's greedy output as their only reference; empty outputs are left out."""
    sources = encode(tokenizer, [example.source for example in examples], text.max_source_tokens)
    generations = decode_all(
        "vanilla_large",
        VanillaSettings(),
        Pair(small=large, large=large),
        sources,
        Request(text.max_target_tokens),
        settings.batch_size,
        label="calibrate",
    )
    outputs = tokenizer.batch_decode([one.tokens for one in generations], skip_special_tokens=True)
    return [Example(example.source, (output,)) for example, output in zip(examples, outputs, strict=True) if output.strip()]


def main() -> None:
    """Labels the training inputs, and the validation inputs to hold out, and writes both."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    device, dtype = set_up(params.machine)
    tokenizer = load_tokenizer(paths.model("large"))
    partial = paths.calibration.with_name(paths.calibration.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with working_lock(device.type):
        model = load_model(paths.model("large"), device, dtype)
        check_lengths(model, "large", task.text)
        runtime = Runtime.of(params.machine.runtime, params.machine.dtype)
        large = open_decoder(model, "large", vocabulary_of(tokenizer, model), runtime)
        for split, target in (("validation", paths.held_out_calibration), ("train", paths.calibration_set)):
            examples = read_jsonl(paths.split(split))
            labelled = label(examples, large, tokenizer, task.text, task.calibrate)
            if not labelled:
                raise InputError(f"every output of {paths.model('large')} is empty; train it for more steps")
            write_jsonl(labelled, partial / target.name)
            empty = len(examples) - len(labelled)
            print(f"{arguments.task}: {len(labelled)} {split} inputs labelled, {empty} empty outputs left out")
    shutil.rmtree(paths.calibration, ignore_errors=True)
    partial.rename(paths.calibration)


if __name__ == "__main__":
    with stage():
        main()
