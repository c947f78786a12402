"""Stage `prepare`: the corpus as JSONL splits, and the tokenizer that both models share.

`python -m tasks.prepare --task translation`
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

from tasks.corpora import files
from tasks.corpora.example import SPLITS, Corpus, write_jsonl
from tasks.corpora.settings import CorpusSettings
from tasks.errors import InputError, stage
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import load_tokenizer, train_tokenizer
from tasks.paths import TaskPaths


def read_corpus(settings: CorpusSettings, source: Path) -> Corpus:
    """The three splits, from the embedded generator or from the files in the folder `source`."""
    if settings.files is not None:
        return files.read(settings.files, source)
    embedded = settings.embedded
    sizes = {split: getattr(embedded, split) for split in SPLITS}
    corpus: Corpus = import_module(f"tasks.corpora.{embedded.name}").generate(sizes, embedded.seed)
    return corpus


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """One JSONL file a split; the folder appears whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split, examples in corpus.items():
        write_jsonl(examples, partial / f"{split}.jsonl")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def write_tokenizer(settings: TokenizerSettings, corpus: Corpus, folder: Path) -> None:
    """Trains the tokenizer on both sides of the training split, or copies a published one."""
    if settings.pretrained is not None:
        tokenizer = load_tokenizer(settings.pretrained)
    else:
        sample = corpus["train"][: settings.sample]
        text = [example.source for example in sample] + [example.references[0] for example in sample]
        tokenizer = train_tokenizer(text, settings)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Reads `params.yaml`, writes the task's corpus and tokenizer."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params = load(arguments.params)
    task, paths = params.task(arguments.task), TaskPaths(arguments.task)
    corpus = read_corpus(task.corpus, params.text_of(arguments.task))
    for split in SPLITS:
        if not corpus[split]:
            raise InputError(f"task {arguments.task}: the {split} split is empty; give it at least one example")
    write_corpus(corpus, paths.corpus)
    write_tokenizer(task.tokenizer, corpus, paths.tokenizer)
    print(f"{arguments.task}: " + ", ".join(f"{len(corpus[split])} {split}" for split in SPLITS) + " examples")


if __name__ == "__main__":
    with stage():
        main()
