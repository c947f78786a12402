"""Stage `prepare`: the corpus as JSONL splits, the sources without references beside them, and the tokenizer of both models.

`python -m tasks.prepare --task translation`
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

from tasks.corpora import files
from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example, write_jsonl
from tasks.corpora.settings import CorpusSettings, EmbeddedSettings
from tasks.errors import InputError, stage
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import load_tokenizer, train_tokenizer
from tasks.paths import TaskPaths


def load_corpus(settings: CorpusSettings, source: Path) -> Corpus:
    """The three splits and what is unlabelled, from the embedded generator or from the files in the folder `source`.

    Of the unlabelled, what repeats a source is left out: a drafter shall not learn from inputs that it is judged on.
    """
    corpus = _embedded(settings.embedded) if settings.files is None else files.read(settings.files, source)
    known = {example.source for split in SPLITS for example in corpus[split]}
    more = dict.fromkeys(example.source for example in corpus.get(UNLABELLED, []))
    return {**corpus, UNLABELLED: [Example(text, ()) for text in more if text not in known]}


def _embedded(settings: EmbeddedSettings) -> Corpus:
    sizes = {split: getattr(settings, split) for split in SPLITS}
    # Training examples are drawn last, so that more of them change nothing that stands before.
    sizes["train"] += settings.unlabelled
    corpus: Corpus = import_module(f"tasks.corpora.{settings.name}").generate(sizes, settings.seed)
    drawn = corpus["train"]
    return {**corpus, "train": drawn[: settings.train], UNLABELLED: drawn[settings.train :]}


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """One JSONL file a split, and one of the unlabelled; the folder appears whole or not at all."""
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
    corpus = load_corpus(task.corpus, params.corpus_source(arguments.task))
    for split in SPLITS:
        if not corpus[split]:
            raise InputError(f"task {arguments.task}: the {split} split is empty; give it at least one example")
    write_corpus(corpus, paths.corpus)
    write_tokenizer(task.tokenizer, corpus, paths.tokenizer)
    counts = [f"{len(corpus[split])} {split}" for split in (*SPLITS, UNLABELLED) if corpus[split]]
    print(f"{arguments.task}: {', '.join(counts)} examples")


if __name__ == "__main__":
    with stage():
        main()
